"""vLLM's model runner V2 on a CPU: its Triton kernels run in Triton's interpreter.

:func:`enable` must run before anything imports vLLM, in the process of the engine. The interpreter
does not run two of the kernels; torch code that does the same stands in for them here.
"""

from __future__ import annotations

import os
from typing import Any


class _Driver:
    @staticmethod
    def is_active() -> bool:
        return True


class _Backend:
    """vLLM takes Triton for usable on a CPU when it names a backend ``cpu``."""

    driver = _Driver
    compiler = None


def enable() -> None:
    """Set the process up and choose model runner V2."""
    os.environ.update(TRITON_INTERPRET="1", VLLM_USE_V2_MODEL_RUNNER="1")
    from triton.backends import backends

    backends["cpu"] = _Backend
    _stand_in_for_top_k_top_p()
    _stand_in_for_bitmask()
    _warm_up_as_on_a_gpu()


def _warm_up_as_on_a_gpu() -> None:
    """The GPU's worker runs warm-up steps whose outputs nobody reads; the CPU's has none."""
    from vllm.v1.worker.cpu_worker import CPUWorker
    from vllm.v1.worker.gpu.warmup import warmup_kernels

    stock = CPUWorker.compile_or_warm_up_model

    def compile_or_warm_up_model(self: Any) -> Any:
        warmup_kernels(self.model_runner, self.execute_model, self.sample_tokens)
        return stock(self)

    CPUWorker.compile_or_warm_up_model = compile_or_warm_up_model


def _stand_in_for_top_k_top_p() -> None:
    from vllm.v1.sample.ops import topk_topp_sampler

    topk_topp_sampler.apply_top_k_top_p_triton = topk_topp_sampler.apply_top_k_top_p_pytorch


def _stand_in_for_bitmask() -> None:
    from vllm.v1.worker.gpu import structured_outputs

    structured_outputs._apply_grammar_bitmask_kernel = _BitmaskKernel()


class _BitmaskKernel:
    """Called like the kernel: ``kernel[grid](...)``."""

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return self._apply

    @staticmethod
    def _apply(
        logits: Any,
        logits_stride: int,
        rows_of_masks: Any,
        cu_num_logits: Any,
        bitmask: Any,
        bitmask_stride: int,
        vocab_size: int,
        MASK_STRIDE: int,
        BLOCK_SIZE: int,
    ) -> None:
        import torch

        bits = torch.arange(32, dtype=torch.int32)
        for mask, key in zip(bitmask, rows_of_masks.tolist(), strict=False):
            request, position = divmod(key, MASK_STRIDE)
            row = int(cu_num_logits[request]) + position
            if row < int(cu_num_logits[request + 1]):
                allowed = ((mask[:, None] >> bits) & 1).flatten()[:vocab_size].bool()
                logits[row].masked_fill_(~allowed, float("-inf"))
