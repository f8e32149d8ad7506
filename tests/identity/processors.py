"""A logits processor of vLLM's V1 interface whose masks depend on every token given out so far."""

from __future__ import annotations

from typing import Any

import torch
from vllm.v1.sample.logits_processor import LogitsProcessor
from vllm.v1.sample.logits_processor.builtin import process_dict_updates

CLASSES = 13
EOS_ID = 1


def fold(tokens: list[int]) -> int:
    """A number that any missing, stale or swapped token changes."""
    value = 17
    for token in tokens:
        value = (value * 31 + token + 1) & 0xFFFFF
    return value


class History(LogitsProcessor):
    """For requests with ``extra_args["history"]``: allows two of 13 classes of ids, chosen by all
    output ids; with ``extra_args["eos_at"]`` also forces the end, now and then, from there on.

    A placeholder among the ids raises, which kills the engine (I5).
    """

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        self.rows: dict[int, tuple[list[int], int | None]] = {}
        self.classes = torch.arange(vllm_config.model_config.get_vocab_size()) % CLASSES

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: Any) -> None:
        process_dict_updates(self.rows, batch_update, _row)
        for output, _ in self.rows.values():
            _check(output)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        for row, (output, eos_at) in self.rows.items():
            _check(output)
            key = fold(output)
            keep = (self.classes == key % CLASSES) | (self.classes == key // CLASSES % CLASSES)
            if eos_at is not None and len(output) >= eos_at and key % 3 == 0:
                keep = torch.zeros_like(keep)
                keep[EOS_ID] = True
            logits[row].masked_fill_(~keep, float("-inf"))
        return logits


def _row(params: Any, prompt: Any, output: list[int]) -> tuple[list[int], int | None] | None:
    extra = params.extra_args or {}
    return (output, extra.get("eos_at")) if extra.get("history") else None


def _check(output: list[int]) -> None:
    if -1 in output:
        raise AssertionError(f"a logits processor saw a placeholder: {output[-8:]}")
