"""Many random requests on every engine, photon against its reference.

``python -m tests.identity.soak --requests 10000``: prints a line for each workload and a summary;
ends with status 1 when anything differed. A workload that differed is named by setup and seed;
``--setups NAME --seed SEED --requests N`` with N at most the batch size runs it again alone.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from tests.identity import models
from tests.identity.compare import differences
from tests.identity.engines import SETUPS, run
from tests.identity.generator import random_workload
from tests.identity.workload import Result, Workload

BATCH = 60
PER_ENGINE = 30
"""Workloads that one start of an engine runs."""


def soak(requests: int, seed: int, setups: list[str]) -> bool:
    """Run ``requests`` requests, spread over ``setups`` in turn; whether all answers agreed."""
    began, done, turn = time.monotonic(), 0, 0
    total: Counter[str] = Counter()
    failed: list[str] = []
    print(f"soak: {requests} requests, seed {seed}, on {', '.join(setups)}", flush=True)
    while done < requests:
        name = setups[turn % len(setups)]
        sizes = _sizes(min(requests - done, -(-requests // len(setups)), BATCH * PER_ENGINE))
        workloads = [
            random_workload(name, seed + 1000 * turn + index, size)
            for index, size in enumerate(sizes)
        ]
        print(f"{name}: {sum(sizes)} requests in {len(workloads)} workloads", flush=True)
        try:
            judged = _round(name, workloads)
        except RuntimeError as error:
            print(error, flush=True)
            failed.append(f"{workloads[0].name} to {workloads[-1].name}: an engine failed")
            judged = []
        for workload, wrong, counts in judged:
            total.update(counts)
            total["requests"] += len(workload.asks)
            total["workloads"] += 1
            for line in wrong:
                print(f"  DIFFERS {workload.name}: {line}", flush=True)
            if wrong:
                failed.append(workload.name)
        done += sum(sizes)
        turn += 1
        print(f"  {done} of {requests} after {time.monotonic() - began:.0f} s", flush=True)
    print("summary: " + ", ".join(f"{value} {key}" for key, value in sorted(total.items())))
    print(f"differing workloads: {len(failed)}" + "".join(f"\n  {name}" for name in failed))
    return not failed


def _round(
    name: str, workloads: list[Workload]
) -> list[tuple[Workload, list[str], dict[str, int]]]:
    """What differed and what happened in photon's engine, for each workload."""
    setup = SETUPS[name]
    model, loras = models.MODELS[setup.model](), models.text_loras(setup.loras)

    def results(form: str) -> list[Result]:
        return run(setup, form, workloads, model, loras)

    with ThreadPoolExecutor(2) as pool:
        expected, actual = pool.map(results, setup.forms[:2])
    judged = []
    for workload, left, right in zip(workloads, expected, actual, strict=True):
        counts = {**right.counts, "sequences": len(right.answers)}
        counts["tokens"] = sum(len(answer.tokens) for answer in right.answers.values())
        judged.append((workload, differences(workload, left, right), counts))
    return judged


def _sizes(requests: int) -> list[int]:
    whole, rest = divmod(requests, BATCH)
    return [BATCH] * whole + [rest] * (rest > 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--setups", nargs="+", choices=sorted(SETUPS), default=list(SETUPS))
    options = parser.parse_args()
    sys.exit(not soak(options.requests, options.seed, options.setups))


if __name__ == "__main__":
    main()
