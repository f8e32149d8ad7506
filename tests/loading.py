"""Modules made without vLLM's loader, finished as it would."""

from __future__ import annotations

from typing import Any, TypeVar

from torch import nn

Module = TypeVar("Module", bound=nn.Module)


def loaded(module: Module) -> Module:
    """Have each layer with kernels of its own take its weights over, as after loading."""
    for layer in module.modules():
        method: Any = getattr(layer, "quant_method", None)
        if method is not None:
            method.process_weights_after_loading(layer)
    return module
