"""Medians with confidence intervals, for a handful of repeats. Pure."""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np

_RESAMPLES = 2000


@dataclass(frozen=True)
class Estimate:
    """A median (or a ratio of medians) with its 95 % bootstrap interval."""

    value: float
    low: float
    high: float

    def as_dict(self) -> dict[str, float]:
        return asdict(self)


def median(samples: Sequence[float], seed: int = 0) -> Estimate:
    """The median of at least one sample; ValueError if there is none."""
    draws = _resample(samples, np.random.default_rng(seed))
    return _estimate(float(np.median(samples)), np.median(draws, axis=1))


def ratio_of_medians(over: Sequence[float], under: Sequence[float], seed: int = 0) -> Estimate:
    """median(over) / median(under), each side resampled on its own; `under` must be positive."""
    _expect_positive(under)
    rng = np.random.default_rng(seed)
    tops = np.median(_resample(over, rng), axis=1)
    bottoms = np.median(_resample(under, rng), axis=1)
    return _estimate(float(np.median(over) / np.median(under)), tops / bottoms)


def median_of_ratios(over: Sequence[float], under: Sequence[float], seed: int = 0) -> Estimate:
    """The median of over[i] / under[i], for runs made in pairs; `under` must be positive.

    What slows both runs of a pair, such as a neighbour on the machine, is not in it.
    """
    _expect_positive(under)
    return median([top / bottom for top, bottom in zip(over, under, strict=True)], seed)


def geometric_mean(values: Sequence[float]) -> float:
    """Of at least one positive value; ValueError otherwise."""
    if not values or min(values) <= 0:
        raise ValueError(f"a geometric mean needs positive values: {list(values)}")
    return math.exp(sum(map(math.log, values)) / len(values))


def percentile(samples: Sequence[float], percent: float) -> float:
    """Linear between neighbours; NaN if there is no sample."""
    return float(np.percentile(samples, percent)) if len(samples) else math.nan


def summarize(runs: Sequence[dict[str, float]], pick: Callable[[str], bool]) -> dict[str, Estimate]:
    """The median over runs of every metric that `pick` accepts and every run has."""
    names = [n for n in runs[0] if pick(n) and all(n in run for run in runs)]
    return {name: median([run[name] for run in runs]) for name in names}


def _expect_positive(under: Sequence[float]) -> None:
    if min(under, default=0.0) <= 0:
        raise ValueError(f"a ratio needs positive samples below the line: {list(under)}")


def _resample(samples: Sequence[float], rng: np.random.Generator) -> np.ndarray:
    """[resamples, samples]"""
    if not len(samples):
        raise ValueError("no samples")
    values = np.asarray(samples, dtype=float)
    return rng.choice(values, size=(_RESAMPLES, len(values)))


def _estimate(value: float, draws: np.ndarray) -> Estimate:
    low, high = np.percentile(draws, [2.5, 97.5])
    return Estimate(value, float(low), float(high))
