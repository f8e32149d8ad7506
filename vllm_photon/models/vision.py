"""The vision tower: crops of images to embeddings of the text model's width."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional as F
from vllm.distributed import get_tensor_model_parallel_world_size
from vllm.model_executor.layers.attention.mm_encoder_attention import MMEncoderAttention
from vllm.model_executor.layers.linear import (
    ColumnParallelLinear,
    QKVParallelLinear,
    RowParallelLinear,
)
from vllm.model_executor.layers.quantization import QuantizationConfig

from vllm_photon.models.hf_config import Vision
from vllm_photon.models.linear import KernelLinear


class ParallelMLP(nn.Module):
    """Linear, tanh GELU, linear, split over the tensor-parallel group."""

    def __init__(
        self,
        dim: int,
        inner_dim: int,
        out_dim: int,
        quant_config: QuantizationConfig | None,
        prefix: str,
    ) -> None:
        super().__init__()
        self.fc1 = ColumnParallelLinear(
            dim, inner_dim, quant_config=quant_config, prefix=f"{prefix}.fc1"
        )
        self.fc2 = RowParallelLinear(
            inner_dim, out_dim, quant_config=quant_config, prefix=f"{prefix}.fc2"
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., dim] to [..., out_dim]."""
        x, _ = self.fc1(x)
        x, _ = self.fc2(F.gelu(x, approximate="tanh"))
        return x


class VisionAttention(nn.Module):
    """Full attention within a crop."""

    def __init__(
        self, dim: int, n_heads: int, quant_config: QuantizationConfig | None, prefix: str
    ) -> None:
        super().__init__()
        head_dim = dim // n_heads
        self.qkv = QKVParallelLinear(
            dim, head_dim, n_heads, quant_config=quant_config, prefix=f"{prefix}.qkv"
        )
        self.proj = RowParallelLinear(dim, dim, quant_config=quant_config, prefix=f"{prefix}.proj")
        self.attn = MMEncoderAttention(
            num_heads=n_heads // get_tensor_model_parallel_world_size(),
            head_size=head_dim,
            scale=head_dim**-0.5,
            prefix=f"{prefix}.attn",
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[crops, patches, dim] to the same."""
        qkv, _ = self.qkv(x)
        q, k, v = qkv.chunk(3, dim=-1)
        out, _ = self.proj(self.attn(q, k, v))
        return out


class VisionBlock(nn.Module):
    """Attention, then the MLP, each after a normalisation of its own."""

    def __init__(
        self, config: Vision, quant_config: QuantizationConfig | None, prefix: str
    ) -> None:
        super().__init__()
        self.ln1 = nn.LayerNorm(config.enc_dim)
        self.attn = VisionAttention(
            config.enc_dim, config.enc_n_heads, quant_config, f"{prefix}.attn"
        )
        self.ln2 = nn.LayerNorm(config.enc_dim)
        self.mlp = ParallelMLP(
            config.enc_dim, config.enc_ff_dim, config.enc_dim, quant_config, f"{prefix}.mlp"
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[crops, patches, dim] to the same."""
        x = x + self.attn(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class VisionTower(nn.Module):
    """Encoder over single crops, stitching of an image's crops, projection."""

    def __init__(
        self, config: Vision, quant_config: QuantizationConfig | None, prefix: str
    ) -> None:
        super().__init__()
        self.config = config
        patch_dim = config.enc_patch_size**2 * config.in_channels
        self.patch_emb = KernelLinear(patch_dim, config.enc_dim)
        self.pos_emb = nn.Parameter(torch.empty(1, config.grid**2, config.enc_dim))
        self.blocks = nn.ModuleList(
            VisionBlock(config, quant_config, f"{prefix}.blocks.{i}")
            for i in range(config.enc_n_layers)
        )
        self.post_ln = nn.LayerNorm(config.enc_dim)
        self.proj_mlp = ParallelMLP(
            2 * config.enc_dim,
            config.proj_inner_dim,
            config.proj_out_dim,
            quant_config,
            f"{prefix}.proj_mlp",
        )
        # The published code normalises in bfloat16 whatever the weights are. A table of its 256
        # results is exact on every device and keeps crops at one byte a value until here.
        levels = torch.arange(256).to(torch.bfloat16)
        self.register_buffer("levels", ((levels / 255.0) - 0.5) / 0.5, persistent=False)

    def forward(
        self, crops: torch.Tensor, tilings: Sequence[tuple[int, int]]
    ) -> list[torch.Tensor]:
        """Embed all images of a call, all their crops in one batch.

        ``crops`` [c, crop_size, crop_size, 3] uint8 holds for each image its global crop and then
        its local ones row by row, ``tilings`` their (rows, columns); returns for each image
        [grid * grid, proj_out_dim].
        """
        features = self._encode(crops)
        grid, dim = self.config.grid, self.config.enc_dim
        combined = []
        images = features.split([1 + rows * columns for rows, columns in tilings])
        for image, tiling in zip(images, tilings, strict=True):
            local = stitch(image[1:].view(-1, grid, grid, dim), tiling, self.config.overlap_margin)
            if local.shape[:2] != (grid, grid):
                local = F.adaptive_avg_pool2d(local.permute(2, 0, 1), grid).permute(1, 2, 0)
            combined.append(torch.cat((image[0], local.flatten(0, 1)), dim=-1))
        return list(self.proj_mlp(torch.stack(combined)).unbind())

    def _encode(self, crops: torch.Tensor) -> torch.Tensor:
        # A quarter of the time that indexing by a tensor of this shape takes on a CPU.
        pixels = self.levels.index_select(0, crops.flatten().int()).view(crops.shape)
        pixels = pixels.to(self.pos_emb.dtype)
        x = self.patch_emb(patches(pixels, self.config.enc_patch_size)) + self.pos_emb
        for block in self.blocks:
            x = block(x)
        return self.post_ln(x)


def patches(pixels: torch.Tensor, size: int) -> torch.Tensor:
    """[c, height, width, channels] to [c, patches, channels * size * size], row by row."""
    blocks = pixels.unflatten(1, (-1, size)).unflatten(3, (-1, size))
    return blocks.permute(0, 1, 3, 5, 2, 4).flatten(3).flatten(1, 2)


def stitch(tiles: torch.Tensor, tiling: tuple[int, int], margin: int) -> torch.Tensor:
    """Join overlapping tiles, each giving up its margin where it has a neighbour.

    ``tiles`` [rows * columns, grid, grid, dim]; returns [height, width, dim].
    """
    rows, columns = tiling
    grid = tiles.shape[1]

    def kept(index: int, count: int) -> slice:
        return slice(margin if index > 0 else 0, grid - margin if index < count - 1 else grid)

    return torch.cat(
        [
            torch.cat(
                [
                    tiles[row * columns + column, kept(row, rows), kept(column, columns)]
                    for column in range(columns)
                ],
                dim=1,
            )
            for row in range(rows)
        ]
    )
