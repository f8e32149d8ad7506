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
from vllm.model_executor.layers.linear import UnquantizedLinearMethod
from vllm.model_executor.models.utils import AutoWeightsLoader
from vllm.utils.torch_utils import async_tensor_h2d

from vllm_photon.models.hf_config import Region
from vllm_photon.spatial.tokens import COORD_BINS, SIZE_BINS, SpatialVocab, size_value


class KernelLinear(nn.Linear):
    """A linear layer through vLLM's kernels, whole on every rank.

    On a CPU they pack the weight once it is loaded, where torch would again in every call.
    """

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__(in_features, out_features)
        self.quant_method = UnquantizedLinearMethod()  # vLLM's loader looks for it by this name.

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """[n, in] to [n, out]."""
        return self.quant_method.apply(self, hidden_states, self.bias)


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
        self._tables: _Tables | None = None
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
        self._tables = None
        return AutoWeightsLoader(self).load_weights(weights)

    def embed(self, ids: torch.Tensor, text_embeds: torch.Tensor) -> torch.Tensor:
        """Put the embeddings of virtual ids in the place of the text's.

        ``ids`` [n] int64, ``text_embeds`` [n, dim]; returns [n, dim]. Positions of an image, whose
        embeddings come from elsewhere, stay as they are.
        """
        if self._tables is None:
            self._tables = self._tabulate()
        tables, offset = self._tables, ids - self.vocab.vocab_size
        coords = tables.coords[offset.clamp(0, COORD_BINS - 1)]
        is_coord = (offset >= 0) & (offset < COORD_BINS)
        embeds = torch.where(is_coord[:, None], coords, text_embeds)
        is_size = (offset >= COORD_BINS) & (ids < self.vocab.image_id)
        if not known_empty(is_size):
            code = (offset - COORD_BINS).clamp(0, SIZE_BINS * SIZE_BINS - 1)
            angle = tables.widths[code // SIZE_BINS] + tables.heights[code % SIZE_BINS]
            sizes = self.size_encoder(_features(angle, self.size_features.dtype))
            embeds = torch.where(is_size[:, None], sizes, embeds)
        return embeds

    def decode(self, hidden_states: torch.Tensor, sampled: torch.Tensor) -> torch.Tensor:
        """Replace sampled coord and size placeholders by virtual ids.

        ``hidden_states`` [n, dim] from before the last norm, ``sampled`` [n, 1]; returns [n, 1] of
        the same dtype. The likeliest bin wins, the lowest of equals.
        """
        if self.ln is not None:
            hidden_states = self.ln(hidden_states)
        if sampled.is_cpu:
            return self._decode_known(hidden_states, sampled)
        return self._decode_all(hidden_states, sampled)

    def _decode_known(self, hidden_states: torch.Tensor, sampled: torch.Tensor) -> torch.Tensor:
        """On a CPU, where the host can look, each head reads the rows that sampled it."""
        ids = sampled[:, 0].numpy().copy()
        (coords,) = (ids == self.vocab.coord_id).nonzero()
        (sizes,) = (ids == self.vocab.size_id).nonzero()
        if len(coords):
            ids[coords] = self._coord_id(_places(self.coord_decoder(_take(hidden_states, coords))))
        if len(sizes):
            places = _places(self._size_scores(_take(hidden_states, sizes)))
            ids[sizes] = self._size_id(places[:, 0], places[:, 1])
        return torch.from_numpy(ids)[:, None]

    def _decode_all(self, hidden_states: torch.Tensor, sampled: torch.Tensor) -> torch.Tensor:
        """On a device both heads read all rows: the host doesn't know what each has sampled."""
        coords = self._coord_id(self.coord_decoder(hidden_states).argmax(dim=-1))
        sizes = self._size_id(*self._size_scores(hidden_states).argmax(dim=-1).unbind(dim=1))
        ids = torch.where(sampled == self.vocab.coord_id, coords[:, None], sampled)
        ids = torch.where(sampled == self.vocab.size_id, sizes[:, None], ids)
        return ids.to(sampled.dtype)

    def _size_scores(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self.size_decoder(hidden_states).unflatten(-1, (2, SIZE_BINS))

    def _coord_id(self, bins: Any) -> Any:
        return self.vocab.vocab_size + bins

    def _size_id(self, widths: Any, heights: Any) -> Any:
        return self.vocab.vocab_size + COORD_BINS + widths * SIZE_BINS + heights

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


def known_empty(mask: torch.Tensor) -> bool:
    """Whether no row is set, as far as that can be told without waiting for a device."""
    return mask.is_cpu and not bool(mask.any())


def _take(hidden_states: torch.Tensor, rows: np.ndarray) -> torch.Tensor:
    return hidden_states if len(rows) == len(hidden_states) else hidden_states[rows]


def _places(scores: torch.Tensor) -> np.ndarray:
    """Where the largest score along the last dimension is; a tenth of torch's time on a CPU."""
    return scores.float().numpy().argmax(axis=-1)


def _angle(values: torch.Tensor, frequencies: torch.Tensor) -> torch.Tensor:
    """[n, 1] float32 values and [1, f] frequencies to [n, f] float32 angles.

    Float32 whatever the weights are: bfloat16 would round neighbouring bins, and whole turns of
    the high frequencies, together.
    """
    return 2 * math.pi * values @ frequencies.float()


def _features(angle: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """[n, f] angles to [n, 2 f] Fourier features."""
    return torch.cat((angle.cos(), angle.sin()), dim=-1).to(dtype)
