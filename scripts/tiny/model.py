"""A tiny Moondream 2 in plain torch, with the published parameter names, made for training.

Shapes: B pictures, N = grid * grid image positions, P = 1 + N prefix positions (BOS and the
image), T packed question positions. The prefix is computed once per picture; every question of
that picture attends to it and to itself, so one vision pass serves many questions.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ROPE_DIMS = 32
HEAD_DIM = 64

KeyValue = tuple[Tensor, Tensor]


def _gelu(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


class Mlp(nn.Module):
    def __init__(self, dim: int, inner: int, out: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, inner)
        self.fc2 = nn.Linear(inner, out)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(_gelu(self.fc1(x)))


class Attention(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(B, S, dim) to queries, keys and values of (B, heads, S, head_dim)."""
        b, s, d = x.shape
        qkv = self.qkv(x).view(b, s, 3, self.heads, d // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        return q, k, v

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The output, and the first head's attention (B, queries, keys).

        Written out: on CPUs in bfloat16 this is twice as fast as the fused kernel.
        """
        scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-1, -2)
        if bias is not None:
            scores = scores + bias
        shares = torch.softmax(scores, dim=-1, dtype=scores.dtype)
        return self.proj((shares @ v).transpose(1, 2).flatten(2)), shares[:, 0]


class VisionBlock(nn.Module):
    def __init__(self, dim: int, heads: int, ff: int) -> None:
        super().__init__()
        self.ln1 = nn.LayerNorm(dim)
        self.attn = Attention(dim, heads)
        self.ln2 = nn.LayerNorm(dim)
        self.mlp = Mlp(dim, ff, dim)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn.attend(*self.attn.project(self.ln1(x)))[0]
        return x + self.mlp(self.ln2(x))


class Vision(nn.Module):
    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        dim = config["enc_dim"]
        self.patch = config["enc_patch_size"]
        self.grid = config["crop_size"] // self.patch
        self.patch_emb = nn.Linear(3 * self.patch**2, dim)
        self.pos_emb = nn.Parameter(torch.randn(1, self.grid**2, dim) * 0.02)
        self.blocks = nn.ModuleList(
            VisionBlock(dim, config["enc_n_heads"], config["enc_ff_dim"])
            for _ in range(config["enc_n_layers"])
        )
        self.post_ln = nn.LayerNorm(dim)
        self.proj_mlp = Mlp(2 * dim, config["proj_inner_dim"], config["proj_out_dim"])

    def encode(self, pixels: Tensor) -> Tensor:
        """(B, H, W, 3) in [-1, 1] to (B, N, enc_dim)."""
        b, g, p = pixels.shape[0], self.grid, self.patch
        x = pixels.view(b, g, p, g, p, 3).permute(0, 1, 3, 5, 2, 4).reshape(b, g * g, 3 * p * p)
        x = self.patch_emb(x)
        x = x + self.pos_emb.to(x.dtype)
        for block in self.blocks:
            x = block(x)
        return self.post_ln(x)

    def project(self, features: Tensor) -> Tensor:
        """Global and local features are the same here: one crop shows the whole picture."""
        return self.proj_mlp(torch.cat([features, features], dim=-1))


class TextBlock(nn.Module):
    def __init__(self, dim: int, ff: int) -> None:
        super().__init__()
        self.ln = nn.LayerNorm(dim)
        self.attn = Attention(dim, dim // HEAD_DIM)
        self.mlp = Mlp(dim, ff, dim)


class Text(nn.Module):
    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        dim = config["dim"]
        self.wte = nn.Parameter(torch.randn(config["vocab_size"], dim) * 0.1)
        self.blocks = nn.ModuleList(
            TextBlock(dim, config["ff_dim"]) for _ in range(config["n_layers"])
        )
        self.post_ln = nn.LayerNorm(dim)
        self.lm_head = nn.Linear(dim, config["vocab_size"])
        inverse = 1e4 ** -(torch.arange(0, ROPE_DIMS, 2).float() / ROPE_DIMS)
        angles = torch.arange(512).float()[:, None] * inverse
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        """Rotary embedding of the first 32 dims, split by halves; positions is (B or 1, S)."""
        cos = self.cos[positions][:, None].to(x.dtype)
        sin = self.sin[positions][:, None].to(x.dtype)
        a, b, rest = x.split((ROPE_DIMS // 2, ROPE_DIMS // 2, HEAD_DIM - ROPE_DIMS), dim=-1)
        return torch.cat([a * cos - b * sin, a * sin + b * cos, rest], dim=-1)

    def prefix(self, x: Tensor) -> list[KeyValue]:
        """Keys and values of every layer for the bidirectional prefix x, (B, P, dim)."""
        positions = torch.arange(x.shape[1])[None]
        cache: list[KeyValue] = []
        for i, block in enumerate(self.blocks):
            normed = block.ln(x)
            q, k, v = block.attn.project(normed)
            k = self.rotate(k, positions)
            cache.append((k, v))
            if i + 1 < len(self.blocks):
                q = self.rotate(q, positions)
                x = x + block.attn.attend(q, k, v)[0] + block.mlp(normed)
        return cache

    def tail(
        self, x: Tensor, positions: Tensor, mask: Tensor, cache: list[KeyValue]
    ) -> tuple[Tensor, list[Tensor]]:
        """Hidden states before post_ln, and each layer's attention of the first head.

        x is (B, T, dim), mask is (B or 1, 1, T, P + T), true where attention is allowed.
        """
        bias = torch.zeros(mask.shape, dtype=cache[0][0].dtype).masked_fill(~mask, -1e4)
        shares = []
        for block, (k0, v0) in zip(self.blocks, cache, strict=True):
            normed = block.ln(x)
            q, k, v = block.attn.project(normed)
            q, k = self.rotate(q, positions), self.rotate(k, positions)
            out, share = block.attn.attend(q, torch.cat([k0, k], 2), torch.cat([v0, v], 2), bias)
            shares.append(share)
            x = x + out + block.mlp(normed)
        return x, shares

    def logits(self, hidden: Tensor) -> Tensor:
        return self.lm_head(self.post_ln(hidden))


class Region(nn.Module):
    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        dim, inner = config["dim"], config["inner_dim"]
        self.coord_features = nn.Parameter(torch.randn(1, config["coord_feat_dim"] // 2) * 2)
        self.coord_encoder = nn.Linear(config["coord_feat_dim"], dim)
        self.coord_decoder = Mlp(dim, inner, config["coord_out_dim"])
        self.size_features = nn.Parameter(torch.randn(2, config["size_feat_dim"] // 2))
        self.size_encoder = nn.Linear(config["size_feat_dim"], dim)
        self.size_decoder = Mlp(dim, inner, config["size_out_dim"])

    def encode_coord(self, values: Tensor) -> Tensor:
        """(..., 1) in [0, 1] to (..., dim)."""
        return self.coord_encoder(_fourier(values, self.coord_features))

    def encode_size(self, values: Tensor) -> Tensor:
        """(..., 2) in [0, 1] to (..., dim)."""
        return self.size_encoder(_fourier(values, self.size_features))


def _fourier(values: Tensor, frequencies: Tensor) -> Tensor:
    angle = (2 * math.pi * values[..., None] * frequencies).sum(-2)
    return torch.cat([angle.cos(), angle.sin()], dim=-1)


class TinyMoondream(nn.Module):
    """`state_dict()` keys are the published ones without the leading "model."."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        self.vision = Vision(config["vision"])
        self.text = Text(config["text"])
        self.region = Region(config["region"])
        self.bos_id = config["tokenizer"]["bos_id"]

    def prefix(self, image: Tensor) -> list[KeyValue]:
        """Keys and values of BOS and the image embeddings (B, N, dim)."""
        bos = self.text.wte[self.bos_id].expand(image.shape[0], 1, -1)
        return self.text.prefix(torch.cat([bos.to(image.dtype), image], dim=1))

    def embed(self, ids: Tensor, kind: Tensor, coord: Tensor, size: Tensor) -> Tensor:
        """Input embeddings (B, T, dim): kind 0 reads ids, 1 reads coord, 2 reads size."""
        coords = self.region.encode_coord(coord[kind == 1][:, None])
        sizes = self.region.encode_size(size[kind == 2])
        x = F.embedding(ids, self.text.wte).to(coords.dtype)
        x = x.index_put((kind == 1).nonzero(as_tuple=True), coords)
        return x.index_put((kind == 2).nonzero(as_tuple=True), sizes)


class PatchHeads(nn.Module):
    """What each patch shows, asked of the vision features in training only."""

    def __init__(self, dim: int, colours: int, kinds: int) -> None:
        super().__init__()
        self.colour = nn.Linear(dim, colours + 1)
        self.kind = nn.Linear(dim, kinds + 1)
        self.centre = nn.Linear(dim, 1)
        self.box = nn.Linear(dim, 4)
