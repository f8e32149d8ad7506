"""Region heads: coordinates and sizes to embeddings and back.

A coordinate or a size enters the text model as Fourier features through one linear layer, and is
read from a hidden state by a decoder over bins.
"""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F
from vllm.model_executor.layers.linear import UnquantizedLinearMethod

from vllm_photon.models.hf_config import Region
from vllm_photon.spatial.tokens import COORD_BINS, SIZE_BINS, SpatialVocab


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
        self.ln: nn.Module
        self.coord_decoder: nn.Module
        self.size_decoder: nn.Module
        if single_layer:
            self.ln = nn.LayerNorm(config.dim)
            self.coord_decoder = KernelLinear(config.dim, config.coord_out_dim)
            self.size_decoder = KernelLinear(config.dim, config.size_out_dim)
        else:
            self.ln = nn.Identity()
            self.coord_decoder = RegionMLP(config.dim, config.inner_dim, config.coord_out_dim)
            self.size_decoder = RegionMLP(config.dim, config.inner_dim, config.size_out_dim)

    def embed(self, ids: torch.Tensor, text_embeds: torch.Tensor) -> torch.Tensor:
        """Put the embeddings of virtual ids in the place of the text's.

        ``ids`` [n] int64, ``text_embeds`` [n, dim]; returns [n, dim]. Positions of an image, whose
        embeddings come from elsewhere, stay as they are.
        """
        offset = ids - self.vocab.vocab_size
        is_coord = (offset >= 0) & (offset < COORD_BINS)
        is_size = (offset >= COORD_BINS) & (ids < self.vocab.image_id)
        embeds = text_embeds
        if not known_empty(is_coord):
            coord = offset.clamp(0, COORD_BINS - 1).float() / self.vocab.coord_divisor
            found = self.coord_encoder(_fourier(coord[:, None], self.coord_features))
            embeds = torch.where(is_coord[:, None], found, embeds)
        if not known_empty(is_size):
            code = (offset - COORD_BINS).clamp(0, SIZE_BINS * SIZE_BINS - 1)
            bins = torch.stack((code // SIZE_BINS, code % SIZE_BINS), dim=-1).float()
            size = torch.exp2(bins / (SIZE_BINS - 1) * 10.0 - 10.0)
            found = self.size_encoder(_fourier(size, self.size_features))
            embeds = torch.where(is_size[:, None], found, embeds)
        return embeds

    def decode(self, hidden_states: torch.Tensor, sampled: torch.Tensor) -> torch.Tensor:
        """Replace sampled coord and size placeholders by virtual ids.

        ``hidden_states`` [n, dim] from before the last norm, ``sampled`` [n, 1]; returns [n, 1] of
        the same dtype. The likeliest bin wins, the lowest of equals.
        """
        vocab = self.vocab
        hidden_states = self.ln(hidden_states)
        is_coord, is_size = sampled == vocab.coord_id, sampled == vocab.size_id
        ids = sampled
        if not known_empty(is_coord):
            coord = self.coord_decoder(hidden_states).argmax(dim=-1, keepdim=True)
            ids = torch.where(is_coord, vocab.vocab_size + coord, ids)
        if not known_empty(is_size):
            size = self.size_decoder(hidden_states).unflatten(-1, (2, SIZE_BINS)).argmax(dim=-1)
            code = size[:, :1] * SIZE_BINS + size[:, 1:]
            ids = torch.where(is_size, vocab.vocab_size + COORD_BINS + code, ids)
        return ids.to(sampled.dtype)


def known_empty(mask: torch.Tensor) -> bool:
    """Whether no row is set, as far as that can be told without waiting for a device."""
    return mask.is_cpu and not bool(mask.any())


def _fourier(values: torch.Tensor, frequencies: torch.Tensor) -> torch.Tensor:
    """[n, d] float32 values and [d, f] frequencies to [n, 2 f] features of the latter's dtype.

    The angles are float32 whatever the weights are: bfloat16 would round neighbouring bins, and
    whole turns of the high frequencies, together.
    """
    angle = 2 * math.pi * values @ frequencies.float()
    return torch.cat((angle.cos(), angle.sin()), dim=-1).to(frequencies.dtype)
