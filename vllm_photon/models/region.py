"""Region heads: coordinates and sizes to embeddings and back.

A coordinate or a size enters the text model as Fourier features through one linear layer, and is
read from a hidden state by a decoder over bins.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from vllm.model_executor.models.utils import AutoWeightsLoader
from vllm.utils.torch_utils import async_tensor_h2d

from vllm_photon.models.hf_config import Region
from vllm_photon.models.linear import KernelLinear
from vllm_photon.spatial.tokens import COORD_BINS, SIZE_BINS, SpatialVocab, size_value

# As many coordinates and sizes there are.
VALUES = COORD_BINS + SIZE_BINS * SIZE_BINS


class RegionMLP(nn.Module):
    """Decoder of Moondream 2: two linear layers with a tanh GELU between them."""

    def __init__(self, dim: int, inner_dim: int, out_dim: int) -> None:
        super().__init__()
        self.fc1 = KernelLinear(dim, inner_dim)
        self.fc2 = KernelLinear(inner_dim, out_dim)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """[n, dim] to [n, out_dim]."""
        return self.fc2(F.gelu(self.fc1(hidden_states), approximate="tanh"))


class _Tables(NamedTuple):
    """What depends on a bin alone.

    ``coords`` [1024, dim] is every coordinate's embedding. A size has two bins, too many for one
    table of embeddings; the angle of its features is the sum of a row of ``widths`` and a row of
    ``heights``, [1024, size_feat_dim / 2] float32 each.
    """

    coords: torch.Tensor
    widths: torch.Tensor
    heights: torch.Tensor


class RegionHeads(nn.Module):
    """Both encoders and both decoders; whole on every rank of a tensor-parallel group.

    The decoders are Moondream 2's, or with ``single_layer`` Moondream 3's: one normalisation for
    both and one linear layer each.
    """

    def __init__(self, config: Region, vocab: SpatialVocab, *, single_layer: bool = False) -> None:
        super().__init__()
        self.vocab = vocab
        self.coord_features = nn.Parameter(torch.empty(1, config.coord_feat_dim // 2))
        self.size_features = nn.Parameter(torch.empty(2, config.size_feat_dim // 2))
        self.coord_encoder = KernelLinear(config.coord_feat_dim, config.dim)
        self.size_encoder = KernelLinear(config.size_feat_dim, config.dim)
        # Made when first needed: by then the weights are loaded, whichever loader brought them.
        self._made_tables: _Tables | None = None
        self.ln: nn.Module | None
        self.coord_decoder: nn.Module
        self.size_decoder: nn.Module
        if single_layer:
            self.ln = nn.LayerNorm(config.dim)
            self.coord_decoder = KernelLinear(config.dim, config.coord_out_dim)
            self.size_decoder = KernelLinear(config.dim, config.size_out_dim)
        else:
            self.ln = None
            self.coord_decoder = RegionMLP(config.dim, config.inner_dim, config.coord_out_dim)
            self.size_decoder = RegionMLP(config.dim, config.inner_dim, config.size_out_dim)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Called by vLLM's loader, also when new weights replace old ones."""
        self._made_tables = None
        return AutoWeightsLoader(self).load_weights(weights)

    def embed(self, ids: torch.Tensor, text_embeds: torch.Tensor) -> torch.Tensor:
        """Put the embeddings of virtual ids in the place of the text's.

        ``ids`` [n] integers, ``text_embeds`` [n, dim], which may be written to; returns [n, dim].
        Positions of an image, whose embeddings come from elsewhere, stay as they are.
        """
        if ids.is_cpu:
            return self._embed_known(ids, text_embeds)
        return self._embed_all(ids.long(), text_embeds)

    def _embed_known(self, ids: torch.Tensor, text_embeds: torch.Tensor) -> torch.Tensor:
        """On a CPU, where the host can look, only virtual ids cost anything."""
        offsets = [id_ - self.vocab.vocab_size for id_ in ids.tolist()]
        coords = [row for row, offset in enumerate(offsets) if 0 <= offset < COORD_BINS]
        sizes = [row for row, offset in enumerate(offsets) if COORD_BINS <= offset < VALUES]
        tables = self._tables()
        if coords:
            bins = torch.tensor([offsets[row] for row in coords])
            text_embeds.index_copy_(0, torch.tensor(coords), tables.coords.index_select(0, bins))
        if sizes:
            # In numpy, which takes a good half of torch's time for so little.
            widths, heights = zip(
                *(divmod(offsets[row] - COORD_BINS, SIZE_BINS) for row in sizes), strict=True
            )
            angle = tables.widths.numpy().take(widths, 0) + tables.heights.numpy().take(heights, 0)
            features = torch.from_numpy(np.concatenate((np.cos(angle), np.sin(angle)), axis=-1))
            embeds = self.size_encoder(features.to(text_embeds.dtype))
            text_embeds.index_copy_(0, torch.tensor(sizes), embeds)
        return text_embeds

    def _embed_all(self, ids: torch.Tensor, text_embeds: torch.Tensor) -> torch.Tensor:
        """On a device every row is embedded in every way: the host doesn't know which it needs."""
        tables, offset = self._tables(), ids - self.vocab.vocab_size
        coords = tables.coords[offset.clamp(0, COORD_BINS - 1)]
        code = (offset - COORD_BINS).clamp(0, SIZE_BINS * SIZE_BINS - 1)
        angle = tables.widths[code // SIZE_BINS] + tables.heights[code % SIZE_BINS]
        sizes = self.size_encoder(_features(angle, text_embeds.dtype))
        values = torch.where((offset < COORD_BINS)[:, None], coords, sizes)
        return torch.where(((offset >= 0) & (offset < VALUES))[:, None], values, text_embeds)

    def decode(
        self, hidden_states: torch.Tensor, sampled: torch.Tensor, *, sizes: bool = True
    ) -> torch.Tensor:
        """Replace sampled coord and size placeholders by virtual ids.

        ``hidden_states`` [n, dim] from before the last norm, ``sampled`` [n, 1]; returns [n, 1] of
        the same dtype. The likeliest bin wins, the lowest of equals. Without ``sizes`` the caller
        knows that no row has sampled a size.
        """
        if self.ln is not None:
            hidden_states = self.ln(hidden_states)
        if sampled.is_cpu:
            return self._decode_known(hidden_states, sampled)
        return self._decode_all(hidden_states, sampled, sizes)

    def _decode_known(self, hidden_states: torch.Tensor, sampled: torch.Tensor) -> torch.Tensor:
        """On a CPU, where the host can look, each head reads the rows that sampled it."""
        ids = sampled[:, 0].tolist()
        coords = [row for row, id_ in enumerate(ids) if id_ == self.vocab.coord_id]
        sizes = [row for row, id_ in enumerate(ids) if id_ == self.vocab.size_id]
        if coords:
            scores = self.coord_decoder(_take(hidden_states, coords))
            for row, bin_ in zip(coords, _places(scores), strict=True):
                ids[row] = self._coord_id(bin_)
        if sizes:
            scores = self._size_scores(_take(hidden_states, sizes))
            for row, (width, height) in zip(sizes, _places(scores), strict=True):
                ids[row] = self._size_id(width, height)
        return sampled.new_tensor(ids)[:, None]

    def _decode_all(
        self, hidden_states: torch.Tensor, sampled: torch.Tensor, sizes: bool
    ) -> torch.Tensor:
        """On a device a head reads all rows: the host doesn't know what each has sampled."""
        ids = self._coord_id(self.coord_decoder(hidden_states).argmax(dim=-1))
        decoded = torch.where(sampled == self.vocab.coord_id, ids[:, None], sampled)
        if sizes:
            ids = self._size_id(*self._size_scores(hidden_states).argmax(dim=-1).unbind(dim=1))
            decoded = torch.where(sampled == self.vocab.size_id, ids[:, None], decoded)
        return decoded.to(sampled.dtype)

    def _size_scores(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self.size_decoder(hidden_states).unflatten(-1, (2, SIZE_BINS))

    def _coord_id(self, bins: Any) -> Any:
        return self.vocab.vocab_size + bins

    def _size_id(self, widths: Any, heights: Any) -> Any:
        return self.vocab.vocab_size + COORD_BINS + widths * SIZE_BINS + heights

    def _tables(self) -> _Tables:
        if self._made_tables is None:
            self._made_tables = self._tabulate()
        return self._made_tables

    def _tabulate(self) -> _Tables:
        device = self.coord_features.device
        coords, sizes = (
            async_tensor_h2d(values, device, torch.float32)[:, None]
            for values in (
                [self.vocab.coord_value(bin_) for bin_ in range(COORD_BINS)],
                [size_value(bin_) for bin_ in range(SIZE_BINS)],
            )
        )
        width, height = self.size_features.split(1)
        features = _features(_angle(coords, self.coord_features), self.coord_features.dtype)
        return _Tables(self.coord_encoder(features), _angle(sizes, width), _angle(sizes, height))


def known_ordinary(ids: torch.Tensor, vocab_size: int) -> bool:
    """Whether no id is virtual, as far as that can be told without waiting for a device."""
    return ids.is_cpu and max(ids.tolist(), default=0) < vocab_size


def _take(hidden_states: torch.Tensor, rows: list[int]) -> torch.Tensor:
    return hidden_states if len(rows) == len(hidden_states) else hidden_states[rows]


def _places(scores: torch.Tensor) -> list[Any]:
    """Where the largest score along the last dimension is; numpy takes a third of torch's time."""
    return scores.float().numpy().argmax(axis=-1).tolist()


def _angle(values: torch.Tensor, frequencies: torch.Tensor) -> torch.Tensor:
    """[n, 1] float32 values and [1, f] frequencies to [n, f] float32 angles.

    Float32 whatever the weights are: bfloat16 would round neighbouring bins, and whole turns of
    the high frequencies, together.
    """
    return 2 * math.pi * values @ frequencies.float()


def _features(angle: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """[n, f] angles to [n, 2 f] Fourier features."""
    return torch.cat((angle.cos(), angle.sin()), dim=-1).to(dtype)
