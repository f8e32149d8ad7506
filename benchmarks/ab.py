"""Photon against stock vLLM on this machine, over HTTP.

    python -m benchmarks.ab [--quick] [--model DIR] [--spatial-model DIR] [--out DIR]
    python -m benchmarks.ab --arm stock-blocking=http://... --arm photon=http://...

Every round starts a fresh server for each arm and reads back which loop it runs; the servers then
take turns at each load, in an order that changes from repeat to repeat, while the others are idle.
The same vLLM, weights and flags serve all arms.
"""

import argparse
import contextlib
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tqdm import tqdm

from benchmarks import ab_report
from benchmarks.cells import Run, make_cells
from benchmarks.load import Load, Objectives, run_text
from benchmarks.machine import describe_machine
from benchmarks.servers import (
    BLOCKING,
    DEFAULT,
    PHOTON,
    PHOTON_BLOCKING,
    Arm,
    RunningServer,
    Server,
    served_model,
)
from benchmarks.spatial_load import run_spatial
from benchmarks.text_model import SHAPES, make_text_model

SHORT, LONG = 3, 110  # output tokens
POISSON_SHARE = 0.6  # of the baseline's closed-loop throughput
_REST = 1.2  # seconds; an idle worker polls for one second after its last step
_SERVE_FLAGS = (
    *("--enforce-eager", "--max-model-len", "1024", "--max-num-seqs", "64"),
    *("--kv-cache-memory-bytes", str(256 << 20), "--no-enable-prefix-caching"),
)


@dataclass(frozen=True)
class Plan:
    """How much to measure: rounds of fresh servers, repeats of each load within a round."""

    rounds: int
    repeats: int
    loads: tuple[Load, ...]
    poisson: tuple[Load, ...]


def text_plan(quick: bool) -> Plan:
    if quick:
        loads = tuple(_text(LONG, n, count) for n, count in ((1, 3), (8, 16), (32, 32)))
        return Plan(1, 5, loads, (_text(LONG, 32, 16, "poisson"),))
    counts = {1: 8, 8: 32, 32: 96, 64: 128}
    loads = tuple(_text(LONG, n, count) for n, count in counts.items())
    loads += tuple(_text(SHORT, n, 8 * count) for n, count in counts.items())
    poisson = (_text(LONG, 64, 64, "poisson"), _text(SHORT, 64, 256, "poisson"))
    return Plan(2, 3, loads, poisson)


def spatial_plan(quick: bool) -> Plan:
    counts = {1: 4, 8: 16} if quick else {1: 8, 8: 32, 32: 64, 64: 96}
    kinds = ("point", "detect") if quick else ("point", "detect", "query", "mixed")
    loads = tuple(Load(k, k, 19, n, count) for k in kinds for n, count in counts.items())
    return Plan(1 if quick else 2, 3, loads, ())


def _text(tokens: int, concurrency: int, requests: int, prefix: str = "text") -> Load:
    return Load(f"{prefix}-{tokens}", "text", tokens, concurrency, requests)


class Comparison:
    """Runs one plan over arms and keeps every run."""

    def __init__(self, plan: Plan, goals: Objectives) -> None:
        self.plan = plan
        self.goals = goals
        self.runs: list[Run] = []
        self.modes: dict[str, str] = {}
        self._rates: dict[str, float] = {}

    def round(self, servers: Sequence[Server | RunningServer], number: int, bar: tqdm) -> None:
        """Every load of the plan on running servers, each warmed up by a run of its own."""
        self.modes |= {server.arm.name: server.mode for server in servers}
        loads = [*self.plan.loads, *self.plan.poisson]
        for position, load in enumerate(loads):
            if load in self.plan.poisson:
                load = replace(load, rate=self._poisson_rate(load, servers[0].arm.name))
            for repeat in range(-1, self.plan.repeats):
                for server in _turns(servers, repeat + position + number):
                    bar.set_description(f"{load.name} x{load.concurrency} {server.arm.name}")
                    time.sleep(_REST)
                    metrics = self._run(server, load, seed=number * 100 + repeat + 1)
                    if repeat >= 0:
                        self.runs.append(Run(server.arm.name, load, number, repeat, metrics))
                    bar.update()

    def _run(self, server: Server | RunningServer, load: Load, seed: int) -> dict[str, float]:
        run = run_text if load.kind == "text" else run_spatial
        return run(server.url, served_model(server.url), load, self.goals, seed)

    def _poisson_rate(self, load: Load, baseline: str) -> float:
        """A share of the most that the baseline did in the closed loops of the same length.

        Found once, so that every round has the same arrivals.
        """
        if load.name not in self._rates:
            found = [
                run.metrics["req_per_s"]
                for run in self.runs
                if run.arm == baseline and run.load.tokens == load.tokens
            ]
            self._rates[load.name] = round(POISSON_SHARE * max(found), 2)
        return self._rates[load.name]


def _turns(servers: Sequence[Any], start: int) -> Sequence[Any]:
    """The servers in an order that rotates with `start` and reverses at every other one."""
    shift = start % len(servers)
    order = [*servers[shift:], *servers[:shift]]
    return order if start % 2 == 0 else order[::-1]


def compare(
    arms: Sequence[Arm], model: Path, plan: Plan, goals: Objectives, out: Path
) -> Comparison:
    """Start fresh servers in every round and run the plan on them."""
    comparison = Comparison(plan, goals)
    loads = len(plan.loads) + len(plan.poisson)
    total = plan.rounds * len(arms) * (1 + loads * (plan.repeats + 1))
    with tqdm(total=total, unit="run") as bar:
        for number in range(plan.rounds):
            with contextlib.ExitStack() as stack:
                servers = []
                for arm in _turns(arms, number):
                    bar.set_description(f"start {arm.name}")
                    log = out / "logs" / f"{model.name}-{arm.name}-{number}.log"
                    server = Server(arm, model, _SERVE_FLAGS, log)
                    servers.append(stack.enter_context(server))
                    bar.update()
                servers.sort(key=lambda server: arms.index(server.arm))
                comparison.round(servers, number, bar)
    return comparison


def compare_running(named: Sequence[Sequence[str]], plan: Plan, goals: Objectives) -> Comparison:
    """The plan on servers that are running already, given by name and URL."""
    comparison = Comparison(plan, goals)
    with contextlib.ExitStack() as stack, tqdm(unit="run") as bar:
        servers = [stack.enter_context(RunningServer(name, url)) for name, url in named]
        for number in range(plan.rounds):
            comparison.round(servers, number, bar)
    return comparison


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="about five minutes on two cores")
    parser.add_argument("--arm", action="append", default=[], metavar="NAME=URL")
    parser.add_argument("--model", type=Path, help="a text model (default: one made on the spot)")
    parser.add_argument("--size", choices=sorted(SHAPES), default="tiny", help="of that model")
    parser.add_argument("--spatial-model", type=Path, help="a Moondream; adds its skills as loads")
    parser.add_argument("--ttft-ms", type=float, default=500, help="objective for goodput")
    parser.add_argument("--tpot-ms", type=float, default=50, help="objective for goodput")
    parser.add_argument("--out", type=Path, default=Path("out/ab"))
    options = parser.parse_args()
    if any("=" not in item for item in options.arm):
        parser.error("--arm needs NAME=URL")
    if len(options.arm) == 1:
        parser.error("--arm compares servers: give it at least twice")
    named = [item.split("=", 1) for item in options.arm]
    for name, url in named:
        try:
            served_model(url)
        except (OSError, ValueError) as error:
            parser.error(f"--arm {name}: no vLLM server answers at {url} ({error})")
    goals = Objectives(options.ttft_ms, options.tpot_ms)
    machine = describe_machine()
    plans = text_plan(options.quick), spatial_plan(options.quick)
    if named:
        done = [compare_running(named, plans[0], goals)]
    else:
        model = options.model or make_text_model(Path("out/models") / options.size, options.size)
        done = [compare((BLOCKING, DEFAULT, PHOTON), model, plans[0], goals, options.out)]
        if options.spatial_model:
            arms = (PHOTON_BLOCKING, PHOTON)
            done.append(compare(arms, options.spatial_model, plans[1], goals, options.out))
    results = {
        "machine": machine,
        "objectives": asdict(goals),
        "modes": {name: mode for part in done for name, mode in part.modes.items()},
        "cells": [cell for part in done for cell in make_cells(part.runs)],
        "runs": [asdict(run) for part in done for run in part.runs],
    }
    print(ab_report.write(results, options.out))


if __name__ == "__main__":
    main()
