"""Region heads: coordinates and sizes to embeddings and back.

A coordinate or a size enters the text model as Fourier features through one linear layer, and is
read from a hidden state by a decoder over bins.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from vllm.model_executor.models.utils import AutoWeightsLoader
from vllm.utils.torch_utils import async_tensor_h2d

from vllm_photon.models.hf_config import Region
from vllm_photon.models.linear import KernelLinear
from vllm_photon.spatial.tokens import COORD_BINS, SIZE_BINS, SpatialVocab, size_value

EmbedText: TypeAlias = Callable[[torch.Tensor], torch.Tensor]
assert COORD_BINS == SIZE_BINS, "the table of widths counts on it"


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
    table of embeddings; its features are the sine of the sum of a row of ``widths``
    [1025, size_feat_dim] and a row of ``heights`` [1024, size_feat_dim], float32. The cosines among
    them are sines a quarter turn on. The rows of widths begin at 1: ids of coordinates, which come
    before those of sizes, are as many as one width has.
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

    def embed(self, ids: torch.Tensor, embed_text: EmbedText) -> torch.Tensor:
        """[n] ids, virtual ones included, to [n, dim].

        ``embed_text`` makes [n, dim] of ids below the vocabulary and is given no others (invariant
        I10). The positions of an image, whose embeddings come from elsewhere, hold anything finite.
        """
        return (self._embed_known if ids.is_cpu else self._embed_all)(ids, embed_text)

    def _embed_known(self, ids: torch.Tensor, embed_text: EmbedText) -> torch.Tensor:
        """On a CPU, where the host can look, each kind of id costs only where there is one."""
        first = self.vocab.vocab_size
        offsets = [id_ - first for id_ in ids.tolist()]
        if max(offsets, default=-1) < 0:
            return embed_text(ids)
        tables = self._tables()
        coords = [row for row, offset in enumerate(offsets) if 0 <= offset < COORD_BINS]
        image = self.vocab.image_id - first
        sizes = [row for row, offset in enumerate(offsets) if COORD_BINS <= offset < image]
        if len(coords) + len(sizes) == len(offsets):
            # The rows of sizes hold a coordinate until they are written: one lookup does for all.
            bins = torch.tensor([offset if offset < COORD_BINS else 0 for offset in offsets])
            embeds = tables.coords.index_select(0, bins)
        else:
            embeds = embed_text(ids.clamp(max=first - 1))
            if coords:
                bins = torch.tensor([offsets[row] for row in coords])
                embeds.index_copy_(0, torch.tensor(coords), tables.coords.index_select(0, bins))
        if sizes:
            # In numpy, which takes a good half of torch's time for so little.
            rows, columns = zip(*(divmod(offsets[row], SIZE_BINS) for row in sizes), strict=True)
            angle = tables.widths.numpy().take(rows, 0) + tables.heights.numpy().take(columns, 0)
            features = torch.from_numpy(np.sin(angle)).to(embeds.dtype)
            embeds.index_copy_(0, torch.tensor(sizes), self.size_encoder(features))
        return embeds

    def _embed_all(self, ids: torch.Tensor, embed_text: EmbedText) -> torch.Tensor:
        """On a device every row is embedded in every way: the host doesn't know which it needs."""
        first = self.vocab.vocab_size
        embeds = embed_text(ids.clamp(max=first - 1))
        tables, offset = self._tables(), ids.long() - first
        coords = tables.coords[offset.clamp(0, COORD_BINS - 1)]
        rows = (offset // SIZE_BINS).clamp(0, SIZE_BINS)
        angle = tables.widths[rows] + tables.heights[offset % SIZE_BINS]
        sizes = self.size_encoder(angle.sin().to(embeds.dtype))
        values = torch.where((offset < COORD_BINS)[:, None], coords, sizes)
        return torch.where((offset < 0)[:, None], embeds, values)

    def decode(
        self, hidden_states: torch.Tensor, sampled: torch.Tensor, *, sizes: bool = True
    ) -> torch.Tensor:
        """Replace sampled coord and size placeholders by virtual ids.

        ``hidden_states`` [n, dim] from before the last norm, ``sampled`` [n, 1]; returns [n, 1] of
        the same dtype. The likeliest bin wins, the lowest of equals. Without ``sizes`` a sampled
        size may stay as it is: the caller wants none.
        """
        if self.ln is not None:
            hidden_states = self.ln(hidden_states)
        if sampled.is_cpu:
            return self._decode_known(hidden_states, sampled)
        return self._decode_all(hidden_states, sampled, sizes)

    def _decode_known(self, hidden_states: torch.Tensor, sampled: torch.Tensor) -> torch.Tensor:
        """On a CPU, where the host can look, each head reads the rows that sampled it."""
        decoded = sampled.clone()
        values = decoded.numpy()[:, 0]
        ids = values.tolist()
        coords = [row for row, id_ in enumerate(ids) if id_ == self.vocab.coord_id]
        sizes = [row for row, id_ in enumerate(ids) if id_ == self.vocab.size_id]
        if coords:
            bins = _places(self.coord_decoder(_take(hidden_states, coords)))
            values[coords] = self._coord_id(bins)
        if sizes:
            bins = _places(self._size_scores(_take(hidden_states, sizes)))
            values[sizes] = self._size_id(bins[:, 0], bins[:, 1])
        return decoded

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

    @torch.no_grad()
    def _tabulate(self) -> _Tables:
        device = self.coord_features.device
        coords, sizes = (
            async_tensor_h2d(values, device, torch.float32)[:, None]
            for values in (
                [self.vocab.coord_value(bin_) for bin_ in range(COORD_BINS)],
                [size_value(bin_) for bin_ in range(SIZE_BINS)],
            )
        )
        coord_angle = _angle(coords, self.coord_features)
        features = torch.cat((coord_angle.cos(), coord_angle.sin()), dim=-1)
        width, height = (_angle(sizes, row) for row in self.size_features.split(1))
        return _Tables(
            self.coord_encoder(features.to(self.coord_features.dtype)),
            F.pad(torch.cat((width + math.pi / 2, width), dim=-1), (0, 0, 1, 0)),
            torch.cat((height, height), dim=-1),
        )


def _take(hidden_states: torch.Tensor, rows: list[int]) -> torch.Tensor:
    if len(rows) == len(hidden_states):
        return hidden_states
    return hidden_states.index_select(0, torch.tensor(rows))


def _places(scores: torch.Tensor) -> np.ndarray:
    """Where the largest score along the last dimension is; numpy takes a third of torch's time."""
    return scores.float().numpy().argmax(axis=-1)


def _angle(values: torch.Tensor, frequencies: torch.Tensor) -> torch.Tensor:
    """[n, 1] float32 values and [1, f] frequencies to [n, f] float32 angles.

    Float32 whatever the weights are: bfloat16 would round neighbouring bins, and whole turns of
    the high frequencies, together.
    """
    return 2 * math.pi * values @ frequencies.float()
