"""Runs of an A/B gathered into cells: one for each load, concurrency and arm. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.load import Load
from benchmarks.stats import geometric_mean, ratio_of_medians, summarize

BASELINES = ("stock-blocking", "photon-blocking")
HEADLINE = "output_tok_per_s"


@dataclass(frozen=True)
class Run:
    """One run of one load on one arm; `metrics` is the record of `benchmarks.load`."""

    arm: str
    load: Load
    round: int
    repeat: int
    metrics: dict[str, float]


def make_cells(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Medians with intervals, and tokens per second against the blocking arm of the same load.

    The baseline is the blocking arm if there is one, else the arm that ran first.
    """
    groups: dict[tuple[str, int], dict[str, list[Run]]] = {}
    for run in runs:
        key = (run.load.name, run.load.concurrency)
        groups.setdefault(key, {}).setdefault(run.arm, []).append(run)
    cells = []
    for (name, concurrency), arms in groups.items():
        baseline = next((arm for arm in BASELINES if arm in arms), next(iter(arms)))
        under = [run.metrics[HEADLINE] for run in arms[baseline]]
        for arm, mine in arms.items():
            estimates = summarize([run.metrics for run in mine], lambda _: True)
            ratio = ratio_of_medians([run.metrics[HEADLINE] for run in mine], under)
            cells.append(
                {
                    "arm": arm,
                    "load": name,
                    "concurrency": concurrency,
                    "rate": mine[0].load.rate,
                    "repeats": len(mine),
                    "baseline": baseline,
                    "ratio_vs_blocking": ratio.value,
                    "ratio_interval": [ratio.low, ratio.high],
                    "failed_total": sum(run.metrics["failed"] for run in mine),
                }
                | {metric: estimate.value for metric, estimate in estimates.items()}
                | {"intervals": {m: [e.low, e.high] for m, e in estimates.items()}}
            )
    return cells


def overall(cells: Sequence[dict[str, Any]], arm: str) -> dict[str, float] | None:
    """Geometric mean and worst cell of an arm over the closed loops; None if it has none.

    Open-loop cells are left out: their throughput is the arrival rate.
    """
    ratios = [c["ratio_vs_blocking"] for c in cells if c["arm"] == arm and c["rate"] is None]
    if not ratios:
        return None
    return {"geometric_mean": geometric_mean(ratios), "worst": min(ratios), "best": max(ratios)}
