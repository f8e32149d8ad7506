"""How long the device stands idle in a step: stock blocking against pipelined, measured.

    python -m benchmarks.bubble [--quick] [--out DIR]

Two real vLLM engines run over a virtual device (`benchmarks.emulated`), whose times are changed
between measurements: the rows of the published table, then a sweep of the device's step time.
Beside each measurement stands the prediction of a cost model that was calibrated at other times.
"""

import argparse
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from benchmarks import bubble_report
from benchmarks.cost_model import PUBLISHED, HostCost, zombie_tax
from benchmarks.emulated.device import DeviceTimes
from benchmarks.emulated.engine import MAX_STREAMS, PROMPT, EmulatedEngine, loop_length
from benchmarks.machine import describe_machine
from benchmarks.stats import Estimate, median, ratio_of_medians
from benchmarks.text_model import make_text_model

MODES = ("blocking", "pipelined")
STREAMS = (1, 8, MAX_STREAMS)
CALIBRATION = DeviceTimes(4.75, 0.25)  # where the blocking host time is found
ZOMBIE_LENGTH = 110  # tokens


@dataclass(frozen=True)
class Plan:
    """How much to measure."""

    repeats: int
    tokens: int
    sweep_ms: tuple[float, ...]
    sweep_streams: tuple[int, ...]
    zombie_streams: tuple[int, ...]
    zombie_requests: int


FULL = Plan(7, 110, (0.5, 1, 2, 3, 4, 6, 8, 12, 16, 24, 40), (1, 8, 32), (1, 8), 40)
QUICK = Plan(3, 40, (0.5, 2, 8, 24), (8,), (1,), 6)


class Bench:
    """Both engines and the measurements that they share."""

    def __init__(self, engines: dict[str, EmulatedEngine], plan: Plan) -> None:
        self.engines = engines
        self.plan = plan
        self.host: dict[int, HostCost] = {}

    def steps(self, times: DeviceTimes, streams: int) -> dict[str, list[float]]:
        """Milliseconds a step of each repeat, by mode; the modes take turns."""
        tokens = min(self.plan.tokens, max(24, int(1500 / max(times.step_ms, 0.1))))
        found: dict[str, list[float]] = {mode: [] for mode in MODES}
        for mode in MODES:
            self.engines[mode].set_times(times)
            self.engines[mode].decode(streams, tokens)
        for repeat in range(self.plan.repeats):
            for mode in MODES if repeat % 2 == 0 else reversed(MODES):
                found[mode].append(self.engines[mode].decode(streams, tokens).step_ms)
        return found

    def calibrate(self, streams: int) -> HostCost:
        """Find the host's share of a step, at device times that no row has."""
        blocking = median(self.steps(CALIBRATION, streams)["blocking"]).value
        floor = median(self.steps(DeviceTimes(0, 0), streams)["pipelined"]).value
        self.host[streams] = HostCost(blocking - CALIBRATION.step_ms, floor)
        return self.host[streams]

    def row(self, name: str, times: DeviceTimes, streams: int) -> dict[str, Any]:
        runs = self.steps(times, streams)
        blocking, pipelined = median(runs["blocking"]), median(runs["pipelined"])
        speedup = ratio_of_medians(runs["blocking"], runs["pipelined"])
        host = self.host[streams]
        return {
            "name": name,
            "streams": streams,
            "device_ms": times.step_ms,
            "blocking_ms": blocking.value,
            "pipelined_ms": pipelined.value,
            "blocking_bubble_ms": blocking.value - times.step_ms,
            "pipelined_bubble_ms": pipelined.value - times.step_ms,
            "speedup": speedup.value,
            "predicted_blocking_ms": host.blocking_step(times.step_ms),
            "predicted_pipelined_ms": host.pipelined_step(times.step_ms),
            "predicted_speedup": host.speedup(times.step_ms),
            "intervals": _intervals(blocking_ms=blocking, pipelined_ms=pipelined, speedup=speedup),
            "runs": runs,
        }

    def zombies(self, times: DeviceTimes, streams: int) -> dict[str, Any]:
        """What surprise ends cost the pipelined engine, against ends that it can foresee."""
        engine, count, length = self.engines["pipelined"], self.plan.zombie_requests, ZOMBIE_LENGTH
        engine.set_times(times)
        needed = sum(PROMPT + loop_length(i, streams, length) - 1 for i in range(count))
        spans: dict[bool, list[float]] = {False: [], True: []}
        rows = 0
        for repeat in range(self.plan.repeats):
            for surprise in (False, True) if repeat % 2 == 0 else (True, False):
                log = engine.closed_loop(streams, count, length, surprise)
                spans[surprise].append(log[-1].sampling_end - log[0].forward_start)
                if surprise:
                    rows = sum(step.rows for step in log) - needed
        slowdown = ratio_of_medians(spans[True], spans[False])
        return {
            "streams": streams,
            "length": length,
            "device_ms": times.step_ms,
            "zombie_rows_per_request": rows / count,
            "tax": slowdown.value - 1,
            "tax_interval": [slowdown.low - 1, slowdown.high - 1],
            "predicted_tax": zombie_tax(length, streams),
            "runs_s": {"foreseen": spans[False], "surprise": spans[True]},
        }


def measure(bench: Bench) -> dict[str, Any]:
    """Everything in the plan, with a progress bar."""
    plan = bench.plan
    jobs = len(STREAMS) + len(PUBLISHED) + len(plan.sweep_ms) * len(plan.sweep_streams)
    with tqdm(total=jobs + len(plan.zombie_streams), unit="cell") as bar:

        def track(label: str, values: Iterator[Any]) -> list[Any]:
            bar.set_description(label)
            return [value for value in values if bar.update() or True]

        track("calibration", (bench.calibrate(streams) for streams in STREAMS))
        rows = track("published rows", (_published_row(bench, row) for row in PUBLISHED))
        sweep = track(
            "sweep",
            (
                bench.row(f"{ms:g} ms x{n}", DeviceTimes(0.95 * ms, 0.05 * ms), n)
                for n in plan.sweep_streams
                for ms in plan.sweep_ms
            ),
        )
        zombies = track(
            "zombies",
            (bench.zombies(_published_times(n), n) for n in plan.zombie_streams),
        )
    host = {str(n): asdict(cost) for n, cost in bench.host.items()}
    return {"rows": rows, "sweep": sweep, "zombies": zombies, "host_cost": host}


def _published_row(bench: Bench, row: Any) -> dict[str, Any]:
    found = bench.row(row.name, DeviceTimes(row.forward_ms, row.sampling_ms), row.streams)
    return found | {
        "published_speedup": row.speedup,
        "published_blocking_ms": row.blocking_ms,
        "published_pipelined_ms": row.pipelined_ms,
    }


def _published_times(streams: int) -> DeviceTimes:
    row = next(row for row in PUBLISHED if row.gpu == "B200" and row.streams == streams)
    return DeviceTimes(row.forward_ms, row.sampling_ms)


def _intervals(**estimates: Estimate) -> dict[str, list[float]]:
    return {name: [e.low, e.high] for name, e in estimates.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer repeats, under two minutes")
    parser.add_argument("--out", type=Path, default=Path("out/bubble"))
    parser.add_argument("--model", type=Path, default=Path("out/models/tiny"))
    parser.add_argument("--executor", choices=["mp", "uni"], default="mp")
    options = parser.parse_args()
    plan = QUICK if options.quick else FULL
    model = make_text_model(options.model)
    engines: dict[str, EmulatedEngine] = {}
    try:
        for mode in tqdm(MODES, desc="engines", unit="engine"):
            engines[mode] = EmulatedEngine(mode, model, options.executor)
        results = measure(Bench(engines, plan))
    finally:
        for engine in engines.values():
            engine.close()
    head = {"machine": describe_machine(), "executor": options.executor, "plan": asdict(plan)}
    print(bubble_report.write(head | results, options.out))


if __name__ == "__main__":
    main()
