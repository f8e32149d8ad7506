"""The text decoder that Moondream 2 and 3 share: blocks of attention and MLP side by side."""

from __future__ import annotations

from itertools import islice

import torch
from torch import nn
from vllm.config import VllmConfig
from vllm.distributed import get_pp_group, get_tensor_model_parallel_world_size
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.layers.linear import QKVParallelLinear, RowParallelLinear
from vllm.model_executor.layers.rotary_embedding import get_rope
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
from vllm.model_executor.models.utils import (
    make_empty_intermediate_tensors_factory,
    make_layers,
)
from vllm.platforms import current_platform
from vllm.sequence import IntermediateTensors
from vllm.v1.attention.backend import AttentionBackend

from vllm_photon.models.hf_config import MoondreamTextConfig
from vllm_photon.models.region import RegionHeads
from vllm_photon.models.vision import ParallelMLP

ROTARY_DIM = 32


class TextAttention(nn.Module):
    """Attention with rotary positions on the first 32 dimensions of each head."""

    def __init__(self, config: MoondreamTextConfig, vllm_config: VllmConfig, prefix: str) -> None:
        super().__init__()
        tp_size = get_tensor_model_parallel_world_size()
        dim, quant_config = config.hidden_size, vllm_config.quant_config
        self.head_dim = dim // config.num_attention_heads
        self.qkv = QKVParallelLinear(
            dim,
            self.head_dim,
            config.num_attention_heads,
            config.num_key_value_heads,
            quant_config=quant_config,
            prefix=f"{prefix}.qkv",
        )
        self.proj = RowParallelLinear(dim, dim, quant_config=quant_config, prefix=f"{prefix}.proj")
        self.n_heads = config.num_attention_heads // tp_size
        self.n_kv_heads = max(1, config.num_key_value_heads // tp_size)
        self.split = [
            self.n_heads * self.head_dim,
            self.n_kv_heads * self.head_dim,
            self.n_kv_heads * self.head_dim,
        ]
        self.rotary_emb = get_rope(
            self.head_dim,
            max_position=config.max_position_embeddings,
            is_neox_style=True,
            rope_parameters={
                "rope_type": "default",
                "rope_theta": config.rope_base,
                "partial_rotary_factor": ROTARY_DIM / self.head_dim,
            },
        )
        self.attn = Attention(
            self.n_heads,
            self.head_dim,
            scale=self.head_dim**-0.5,
            num_kv_heads=self.n_kv_heads,
            cache_config=vllm_config.cache_config,
            quant_config=quant_config,
            prefix=f"{prefix}.attn",
            attn_backend=_prefix_backend(),
        )

    def forward(self, positions: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """``positions`` [n], ``x`` [n, dim]; returns [n, dim]."""
        qkv, _ = self.qkv(x)
        q, k, v = self.scale_qv(positions, qkv)
        q, k = self.rotary_emb(positions, q, k)
        out, _ = self.proj(self.attn(q, k, v))
        return out

    def scale_qv(
        self, positions: torch.Tensor, qkv: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries, keys, values from their joint projection; Moondream 3 scales two of them."""
        q, k, v = qkv.split(self.split, dim=-1)
        return q, k, v


class TextBlock(nn.Module):
    """One normalisation feeds attention and MLP, both are added to the stream."""

    def __init__(self, config: MoondreamTextConfig, vllm_config: VllmConfig, prefix: str) -> None:
        super().__init__()
        self.ln = nn.LayerNorm(config.hidden_size)
        self.attn = self.make_attention(config, vllm_config, f"{prefix}.attn")
        self.mlp = self.make_mlp(config, vllm_config, f"{prefix}.mlp")

    def make_attention(
        self, config: MoondreamTextConfig, vllm_config: VllmConfig, prefix: str
    ) -> nn.Module:
        """The block's attention."""
        return TextAttention(config, vllm_config, prefix)

    def make_mlp(
        self, config: MoondreamTextConfig, vllm_config: VllmConfig, prefix: str
    ) -> nn.Module:
        """The block's MLP."""
        dim = config.hidden_size
        return ParallelMLP(dim, config.intermediate_size, dim, vllm_config.quant_config, prefix)

    def forward(self, positions: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """``positions`` [n], ``x`` [n, dim]; returns [n, dim]."""
        normed = self.ln(x)
        return x + self.attn(positions, normed) + self.mlp(normed)


class TextModel(nn.Module):
    """Embedding and blocks. The last norm, ``post_ln``, is left to whoever computes logits.

    ``region`` embeds the virtual ids above the vocabulary.
    """

    block_class = TextBlock

    def __init__(
        self,
        config: MoondreamTextConfig,
        region: RegionHeads,
        vllm_config: VllmConfig,
        prefix: str,
    ) -> None:
        super().__init__()
        dim = config.hidden_size
        self.wte = VocabParallelEmbedding(config.vocab_size, dim, prefix=f"{prefix}.wte")
        self.start_layer, self.end_layer, self.blocks = make_layers(
            config.num_hidden_layers,
            lambda prefix: self.block_class(config, vllm_config, prefix),
            prefix=f"{prefix}.blocks",
        )
        self.post_ln = nn.LayerNorm(dim)
        self.make_empty_intermediate_tensors = make_empty_intermediate_tensors_factory(
            ["hidden_states"], dim
        )
        # In a tuple, so that the heads stay the outer model's child and weight names theirs.
        self._region = (region,)

    def embed_input_ids(self, input_ids: torch.Tensor) -> torch.Tensor:
        """[n] ids, virtual ones included, to [n, dim]."""
        return self._region[0].embed(input_ids, self.wte)

    def forward(
        self,
        input_ids: torch.Tensor | None,
        positions: torch.Tensor,
        intermediate_tensors: IntermediateTensors | None = None,
        inputs_embeds: torch.Tensor | None = None,
    ) -> torch.Tensor | IntermediateTensors:
        """Hidden states [n, dim] of the last block, before ``post_ln``."""
        if not get_pp_group().is_first_rank:
            assert intermediate_tensors is not None
            x = intermediate_tensors["hidden_states"]
        elif inputs_embeds is not None:
            x = inputs_embeds
        else:
            assert input_ids is not None
            x = self.embed_input_ids(input_ids)
        for block in islice(self.blocks, self.start_layer, self.end_layer):
            x = block(positions, x)
        if not get_pp_group().is_last_rank:
            return IntermediateTensors({"hidden_states": x})
        return x


def _prefix_backend() -> type[AttentionBackend] | None:
    """Prefix-LM attention where vLLM has none; elsewhere its own choice."""
    if not current_platform.is_cpu():
        return None
    from vllm_photon.models.prefix_attention import PrefixAttentionBackend

    return PrefixAttentionBackend
