"""Moondream 3: scaled queries and values, a mixture of experts, one-layer region decoders."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from vllm.config import VllmConfig
from vllm.distributed import (
    get_tensor_model_parallel_rank,
    get_tensor_model_parallel_world_size,
    tensor_model_parallel_all_reduce,
)
from vllm.model_executor.layers.fused_moe import MoEActivation, fused_experts
from vllm.model_executor.layers.fused_moe.config import biased_moe_quant_config
from vllm.model_executor.layers.linear import ReplicatedLinear
from vllm.model_executor.models.utils import extract_layer_index
from vllm.multimodal import MULTIMODAL_REGISTRY
from vllm.platforms import current_platform

from vllm_photon.config import ENGINE_RULES
from vllm_photon.models.hf_config import MoE, MoondreamTextConfig
from vllm_photon.models.moondream import MoondreamForCausalLM
from vllm_photon.models.processing import (
    MoondreamDummyInputs,
    MoondreamProcessingInfo,
    MoondreamProcessor,
)
from vllm_photon.models.text import TextAttention, TextBlock, TextModel


class Tau(nn.Module):
    """How much each head's queries and values are scaled, by content and by position.

    The factor is ``tanh(gelu(qkv) @ w.T) + 0.5 + sigmoid(alpha * log(position + 1))``. In a
    tensor-parallel group each rank multiplies the part of ``qkv`` that it has and the sums are
    reduced, which is far less to send than ``qkv`` itself. The published code takes the exact
    GELU, Moondream's engine the tanh form.
    """

    def __init__(self, n_heads: int, head_dim: int, gelu: str) -> None:
        super().__init__()
        self.gelu = gelu
        self.rank = get_tensor_model_parallel_rank()
        self.size = get_tensor_model_parallel_world_size()
        self.local_heads = n_heads // self.size
        width = 3 * self.local_heads * head_dim
        self.alpha = nn.Parameter(torch.empty(n_heads))
        self.wq = nn.Parameter(torch.empty(n_heads, width))
        self.wv = nn.Parameter(torch.empty(n_heads, width))
        for weight in (self.wq, self.wv):
            weight.weight_loader = self._load

    def forward(
        self, positions: torch.Tensor, qkv: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """``positions`` [n], ``qkv`` [n, local width]; for q and v [n, local heads] each."""
        features = F.gelu(qkv, approximate=self.gelu)
        sums = torch.cat((F.linear(features, self.wq), F.linear(features, self.wv)), dim=-1)
        if self.size > 1:
            sums = tensor_model_parallel_all_reduce(sums)
        log_position = (positions.float() + 1).log()[:, None]
        by_position = 0.5 + torch.sigmoid(self.alpha.float() * log_position)
        scale_q, scale_v = (
            (torch.tanh(part) + by_position).to(qkv.dtype) for part in sums.chunk(2, dim=-1)
        )
        own = slice(self.rank * self.local_heads, (self.rank + 1) * self.local_heads)
        return scale_q[:, own], scale_v[:, own]

    def _load(self, parameter: nn.Parameter, loaded: torch.Tensor) -> None:
        parts = [part.chunk(self.size, dim=-1)[self.rank] for part in loaded.chunk(3, dim=-1)]
        parameter.data.copy_(torch.cat(parts, dim=-1))


class TauAttention(TextAttention):
    """Attention with queries and values scaled before the rotation."""

    def __init__(self, config: MoondreamTextConfig, vllm_config: VllmConfig, prefix: str) -> None:
        super().__init__(config, vllm_config, prefix)
        if config.num_attention_heads != config.num_key_value_heads:
            raise ValueError("text.n_kv_heads must equal n_heads where values are scaled by head")
        gelu = "tanh" if vllm_config.model_config.hf_config.rules == ENGINE_RULES else "none"
        self.tau = Tau(config.num_attention_heads, self.head_dim, gelu)

    def scale_qv(
        self, positions: torch.Tensor, qkv: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """See the base class."""
        q, k, v = super().scale_qv(positions, qkv)
        scale_q, scale_v = self.tau(positions, qkv)
        return self._scaled(q, scale_q), k, self._scaled(v, scale_v)

    def _scaled(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return (x.unflatten(-1, (-1, self.head_dim)) * scale[..., None]).flatten(-2)


class Experts(nn.Module):
    """One weight of all experts, ``[experts, ...]``, split over ranks along ``dim``.

    With ``halves`` the split dimension holds two halves, and each rank takes its part of both.
    """

    def __init__(self, shape: tuple[int, int, int], dim: int, *, halves: bool = False) -> None:
        super().__init__()
        self.dim, self.pieces = dim, 2 if halves else 1
        self.size = get_tensor_model_parallel_world_size()
        local = list(shape)
        local[dim] //= self.size
        self.weight = nn.Parameter(torch.empty(local))
        self.weight.weight_loader = self._load

    def _load(self, parameter: nn.Parameter, loaded: torch.Tensor) -> None:
        rank = get_tensor_model_parallel_rank()
        parts = [
            piece.chunk(self.size, dim=self.dim)[rank]
            for piece in loaded.chunk(self.pieces, dim=self.dim)
        ]
        parameter.data.copy_(torch.cat(parts, dim=self.dim))


class ExpertMLP(nn.Module):
    """Each token through its best experts: ``fc2(gelu(gate) * (up + 1))``, exact GELU.

    The weights of the chosen experts are a softmax over their router logits alone.
    """

    def __init__(self, dim: int, config: MoE, prefix: str) -> None:
        super().__init__()
        self.top = config.n_experts_per_tok
        self.router = ReplicatedLinear(dim, config.n_experts, prefix=f"{prefix}.router")
        inner = config.expert_inner_dim
        self.fc1 = Experts((config.n_experts, 2 * inner, dim), dim=1, halves=True)
        self.fc2 = Experts((config.n_experts, dim, inner), dim=2)
        # vLLM's kernel computes gelu(gate) * up; a bias of one on the second half makes it ours.
        bias = torch.zeros(self.fc1.weight.shape[:2], dtype=torch.float32)
        bias[:, bias.shape[1] // 2 :] = 1.0
        self.register_buffer("bias", bias, persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[n, dim] to the same."""
        logits, _ = self.router(x)
        top_logits, experts = torch.topk(logits, self.top, dim=-1)
        weights = F.softmax(top_logits, dim=-1, dtype=torch.float32).to(x.dtype)
        if current_platform.is_cpu():
            out = self._one_by_one(x, weights, experts)
        else:
            out = fused_experts(
                hidden_states=x.contiguous(),
                w1=self.fc1.weight,
                w2=self.fc2.weight,
                topk_weights=weights,
                topk_ids=experts,
                activation=MoEActivation.GELU,
                quant_config=biased_moe_quant_config(self.bias, None),
            )
        if get_tensor_model_parallel_world_size() > 1:
            out = tensor_model_parallel_all_reduce(out)
        return out

    def _one_by_one(
        self, x: torch.Tensor, weights: torch.Tensor, experts: torch.Tensor
    ) -> torch.Tensor:
        out = torch.zeros_like(x)
        for expert in experts.unique().tolist():
            rows, rank = (experts == expert).nonzero(as_tuple=True)
            gate, up = F.linear(x[rows], self.fc1.weight[expert]).chunk(2, dim=-1)
            y = F.linear(F.gelu(gate) * (up + 1), self.fc2.weight[expert])
            out.index_add_(0, rows, y * weights[rows, rank, None])
        return out


class Moondream3Block(TextBlock):
    """Dense below the first layer with experts."""

    def make_attention(
        self, config: MoondreamTextConfig, vllm_config: VllmConfig, prefix: str
    ) -> nn.Module:
        """The block's attention."""
        return TauAttention(config, vllm_config, prefix)

    def make_mlp(
        self, config: MoondreamTextConfig, vllm_config: VllmConfig, prefix: str
    ) -> nn.Module:
        """The block's MLP."""
        if extract_layer_index(prefix) < config.experts.start_layer:
            return super().make_mlp(config, vllm_config, prefix)
        return ExpertMLP(config.hidden_size, config.experts, prefix)


class Moondream3TextModel(TextModel):
    """The text decoder of Moondream 3."""

    block_class = Moondream3Block


@MULTIMODAL_REGISTRY.register_processor(
    MoondreamProcessor, info=MoondreamProcessingInfo, dummy_inputs=MoondreamDummyInputs
)
class Moondream3ForCausalLM(MoondreamForCausalLM):
    """The shared model around Moondream 3's text decoder and region decoders."""

    text_class = Moondream3TextModel
    single_layer_region = True
