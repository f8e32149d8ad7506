"""A plain linear layer that uses vLLM's kernels."""

from __future__ import annotations

import torch
from torch import nn
from vllm.model_executor.layers.linear import UnquantizedLinearMethod


class KernelLinear(nn.Linear):
    """A linear layer through vLLM's kernels, whole on every rank.

    On a CPU they pack the weight once it is loaded, where torch would again in every call.
    """

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__(in_features, out_features)
        self.quant_method = UnquantizedLinearMethod()  # vLLM's loader looks for it by this name.

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """[..., in] to [..., out]."""
        return self.quant_method.apply(self, hidden_states, self.bias)
