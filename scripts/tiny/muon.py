"""Muon for CPUs: matrices of one shape are orthogonalised together, in bfloat16."""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

# Coefficients of the quintic iteration that drives singular values towards one.
_A, _B, _C = 3.4445, -4.7750, 2.0315


def orthogonalise(x: Tensor, rounds: int = 5) -> Tensor:
    """The nearest semi-orthogonal matrices to x (count, rows, columns), roughly."""
    tall = x.shape[1] > x.shape[2]
    x = (x.mT if tall else x).bfloat16()
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(rounds):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=_B, alpha=_C), x, beta=_A)
    return x.mT if tall else x


class Muon(torch.optim.Optimizer):
    """Momentum, orthogonalised, scaled to the root mean square of an AdamW step.

    A matrix of three times as many rows as columns is a fused query, key and value projection:
    its thirds are treated as matrices of their own.
    """

    def __init__(
        self,
        params: Iterable[dict[str, Any]],
        lr: float,
        momentum: float = 0.95,
        decay: float = 0.01,
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "decay": decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            by_shape: dict[tuple[int, int], list[tuple[Tensor, Tensor]]] = defaultdict(list)
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if "momentum" not in state:
                    state["momentum"] = torch.zeros_like(p)
                state["momentum"].lerp_(p.grad, 1 - group["momentum"])
                update = p.grad.lerp(state["momentum"], group["momentum"])
                parts = 3 if p.shape[0] == 3 * p.shape[1] else 1
                for weight, change in zip(p.chunk(parts), update.chunk(parts), strict=True):
                    by_shape[tuple(weight.shape)].append((weight, change))
            for shape, pairs in by_shape.items():
                changes = orthogonalise(torch.stack([change for _, change in pairs]))
                rate = group["lr"] * 0.2 * max(shape) ** 0.5
                for (weight, _), change in zip(pairs, changes, strict=True):
                    weight.mul_(1 - group["lr"] * group["decay"]).sub_(rate * change)
