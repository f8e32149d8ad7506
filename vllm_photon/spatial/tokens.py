"""Coordinates and sizes as token ids above the vocabulary.

Moondream's language model samples one placeholder token, *coord* or *size*; the value itself is
read by a region head from the same hidden state, and the next input embedding is computed from
that value. So that one position is one id, unique per value (prefix caching, preemption with
recompute and streaming then work unchanged), the sampled placeholder is replaced by a *virtual
id* at or above the vocabulary size V:

    coord bin b            -> V + b                                0 <= b < 1024
    size bins (w, h)       -> V + 1024 + w * 1024 + h              0 <= w, h < 1024
    image position         -> V + 1024 + 1024 * 1024               only in prompts, never sampled

Values, as in the published Moondream code (``region.py``): a coordinate is bin / 1024 of the image
side, a size is 2 ** (bin / 1023 * 10 - 10) of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

COORD_BINS = 1024
SIZE_BINS = 1024


@dataclass(frozen=True, slots=True)
class Coord:
    """One coordinate, by bin; x and y are told apart by the grammar, not by the id."""

    bin: int


@dataclass(frozen=True, slots=True)
class Size:
    """Width and height of a box, by bin."""

    width_bin: int
    height_bin: int


@dataclass(frozen=True, slots=True)
class SpatialVocab:
    """The virtual ids over a vocabulary of ``vocab_size`` ordinary tokens.

    ``coord_id`` and ``size_id`` are the placeholders that the language model itself samples,
    ``coord_divisor`` is what a coordinate bin is divided by: 1024 in the published code, 1023 in
    Moondream's engine.
    """

    vocab_size: int
    coord_id: int = 5
    size_id: int = 6
    coord_divisor: int = COORD_BINS

    @property
    def image_id(self) -> int:
        """The id that stands in a prompt for every position of an image; never sampled."""
        return self.vocab_size + COORD_BINS + SIZE_BINS * SIZE_BINS

    @property
    def end(self) -> int:
        """One past the largest virtual id."""
        return self.image_id + 1

    def encode(self, token: Coord | Size) -> int:
        """The id of a coordinate or size. ValueError when a bin is out of range."""
        if isinstance(token, Coord):
            if not 0 <= token.bin < COORD_BINS:
                raise ValueError(f"coordinate bin {token.bin} is not in [0, {COORD_BINS})")
            return self.vocab_size + token.bin
        if not (0 <= token.width_bin < SIZE_BINS and 0 <= token.height_bin < SIZE_BINS):
            raise ValueError(f"size bins {token} are not in [0, {SIZE_BINS})")
        return self.vocab_size + COORD_BINS + token.width_bin * SIZE_BINS + token.height_bin

    def decode(self, token_id: int) -> Coord | Size | None:
        """What an id stands for; None for an ordinary token or an image position.

        ValueError for an id beyond the last virtual one.
        """
        offset = token_id - self.vocab_size
        if offset < 0 or token_id == self.image_id:
            return None
        if offset < COORD_BINS:
            return Coord(offset)
        offset -= COORD_BINS
        if offset < SIZE_BINS * SIZE_BINS:
            return Size(*divmod(offset, SIZE_BINS))
        raise ValueError(f"token id {token_id} is beyond the last virtual id {self.end - 1}")

    def placeholder(self, token_id: int) -> int:
        """The token that the language model sampled for this id: coord, size or the id itself."""
        token = self.decode(token_id)
        if token is None:
            return token_id
        return self.coord_id if isinstance(token, Coord) else self.size_id

    def coord_value(self, bin_: int) -> float:
        """Coordinate of a bin, as a share of the image side."""
        return bin_ / self.coord_divisor

    def coord_bin(self, value: float) -> int:
        """Nearest bin of a coordinate, clamped to the range of bins."""
        return min(max(round(value * self.coord_divisor), 0), COORD_BINS - 1)


def size_value(bin_: int) -> float:
    """Side of a box, as a share of the image side, in [2**-10, 1]."""
    return 2.0 ** (bin_ / (SIZE_BINS - 1) * 10.0 - 10.0)


def size_bin(value: float) -> int:
    """Nearest bin of a box side, clamped to the range of bins."""
    exponent = math.log2(max(value, 2.0**-10))
    return min(max(round((exponent + 10.0) / 10.0 * (SIZE_BINS - 1)), 0), SIZE_BINS - 1)
