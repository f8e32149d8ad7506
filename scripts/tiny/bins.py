"""Coordinates and sizes as bins, and the losses over them."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

BINS = 1024
# An x is answered on bins that are multiples of AXIS_STEP, a y half-way between: see blueprint.
AXIS_STEP = 8
AXIS_FREQUENCY = BINS // AXIS_STEP


def axis_bins(values: Tensor, axis: int) -> Tensor:
    """The nearest bins of coordinates on that axis (0 is x)."""
    shift = axis * AXIS_STEP // 2
    steps = ((values * BINS - shift) / AXIS_STEP).round()
    return (steps.clamp(0, AXIS_FREQUENCY - 1) * AXIS_STEP + shift).long()


def coord_bin(value: float, axis: int) -> int:
    """As `axis_bins`, for one value."""
    shift = axis * AXIS_STEP // 2
    step = min(max(round((value * BINS - shift) / AXIS_STEP), 0), AXIS_FREQUENCY - 1)
    return step * AXIS_STEP + shift


def size_bin(value: float) -> int:
    """The bin of a width or height: ten octaves, 1023 steps."""
    return min(max(round((math.log2(max(value, 2**-10)) + 10) / 10 * 1023), 0), BINS - 1)


def size_value(index: int) -> float:
    return 2.0 ** (index / 1023 * 10 - 10)


# Width of the targets, in bins: near misses cost little.
_COORD_SIGMA, _SIZE_SIGMA = 10.0, 12.0


def coord_loss(logits: Tensor, bins: Tensor) -> Tensor:
    """Mean loss of (M, 1024) logits; zero for a perfectly smoothed answer on the bins' axis."""
    offset = torch.arange(BINS, dtype=torch.float32)[None] - bins[:, None]
    scores = -0.5 * (offset / _COORD_SIGMA) ** 2
    return _smooth(logits, scores.masked_fill(offset % AXIS_STEP != 0, -math.inf))


def size_loss(logits: Tensor, bins: Tensor) -> Tensor:
    """Mean loss of (M, 1024) logits of one side each."""
    offset = torch.arange(BINS, dtype=torch.float32)[None] - bins[:, None]
    return _smooth(logits, -0.5 * (offset / _SIZE_SIGMA) ** 2)


def _smooth(logits: Tensor, scores: Tensor) -> Tensor:
    """Divergence of the predicted bins from the softmax of the scores."""
    return F.kl_div(
        F.log_softmax(logits.float(), -1), torch.softmax(scores, -1), reduction="batchmean"
    )
