"""Places in model runner V2's sampling that index by token id, made safe for virtual ids (I10).

Each class takes the place of one of vLLM's and changes what its kernels are given, not the kernels.
A virtual id counts for nothing, and has no logprob of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from vllm.utils.torch_utils import async_tensor_h2d
from vllm.v1.worker.gpu.sample.penalties import PenaltiesState
from vllm.v1.worker.gpu.sample.prompt_logprob import PromptLogprobsWorker

if TYPE_CHECKING:
    from vllm.v1.outputs import LogprobsTensors
    from vllm.v1.worker.gpu.input_batch import InputBatch


class SpatialPenalties(PenaltiesState):
    """vLLM's penalties (``sample/penalties.py``) beside prompts that hold images and coordinates.

    Its histogram is taken over a copy in which the last id of the prompt, which is there anyway,
    stands for every virtual one. Answers with coordinates never have penalties.
    """

    req_states: Any
    output_bin_counts: Any

    @contextmanager
    def hidden(self) -> Iterator[None]:
        """Without the histogram of answers, which has no column for a virtual id."""
        histogram, self.output_bin_counts = self.output_bin_counts, None
        try:
            yield
        finally:
            self.output_bin_counts = histogram

    def count(
        self,
        rows: np.ndarray,
        idx_mapping: torch.Tensor,
        sampled_tokens: torch.Tensor,
        num_sampled: torch.Tensor,
    ) -> None:
        """Count sampled ids as vLLM's ``post_update`` (``input_batch.py``) does, but virtual ones.

        ``rows`` are the batch's slots as the host knows them, ``idx_mapping`` [n] the same on the
        device, negative for rows to skip; ``sampled_tokens`` [n, 1]; ``num_sampled`` [n], 0 or 1.
        Nothing is done for a batch without penalties.
        """
        if not self.use_penalty[rows].any():
            return
        width = self.output_bin_counts.shape[1]
        slots, ids = idx_mapping.long(), sampled_tokens[:, 0].long()
        counts = (num_sampled > 0) & (slots >= 0) & (ids < width)
        at = slots.clamp(min=0) * width + ids.clamp(max=width - 1)
        flat = self.output_bin_counts.view(-1)
        flat.scatter_add_(0, at, counts.to(flat.dtype))

    def apply_staged_writes(self) -> None:
        entering = self._new_penalties_reqs
        if not entering:
            super().apply_staged_writes()
            return
        shared = self.req_states
        width = int(shared.prefill_len.np[entering].max())
        slots = async_tensor_h2d(entering, self.device, torch.int64)
        ids = shared.all_token_ids.gpu[slots, :width]
        last = ids.gather(1, shared.prompt_len.gpu[slots].long()[:, None] - 1)
        highest = shared.vocab_size - 1
        counted = torch.empty(
            (shared.max_num_reqs, width), dtype=ids.dtype, device=self.device
        ).index_copy_(0, slots, torch.where(ids > highest, last.clamp(max=highest), ids))
        self.req_states = replace(shared, all_token_ids=SimpleNamespace(gpu=counted))
        try:
            super().apply_staged_writes()
        finally:
            self.req_states = shared


class SpatialPromptLogprobs(PromptLogprobsWorker):
    """vLLM's prompt logprobs (``sample/prompt_logprob.py``) over prompts with virtual ids."""

    vocab_size: int

    def compute_prompt_logprobs(
        self,
        logits_fn: Callable[[torch.Tensor], torch.Tensor],
        hidden_states: torch.Tensor,
        input_batch: InputBatch,
        all_token_ids: torch.Tensor,
        num_computed_tokens: torch.Tensor,
        prompt_lens: np.ndarray,
    ) -> dict[str, LogprobsTensors]:
        """As vLLM's; a virtual id keeps its name and gets -inf."""
        slot_of = dict(zip(input_batch.req_ids, input_batch.idx_mapping_np, strict=True))
        computing = input_batch.has_prefill and any(
            self.uses_prompt_logprobs[list(slot_of.values())]
        )
        highest = self.vocab_size - 1
        found = super().compute_prompt_logprobs(
            logits_fn,
            hidden_states,
            input_batch,
            all_token_ids.clamp(max=highest) if computing else all_token_ids,
            num_computed_tokens,
            prompt_lens,
        )
        for request_id, tensors in found.items():
            slot = slot_of[request_id]
            end = int(prompt_lens[slot])
            ids = all_token_ids[slot, end - len(tensors.logprobs) : end]
            virtual = ids > highest
            names = tensors.logprob_token_ids
            names[:, 0] = torch.where(virtual, ids.to(names.dtype), names[:, 0])
            tensors.logprobs[:, 0].masked_fill_(virtual, float("-inf"))
        return found


def guard(sampler: Any, prompt_logprobs: Any, vocab_size: int) -> None:
    """Put the guards in place of what a V2 runner built."""
    sampler.penalties_state.__class__ = SpatialPenalties
    prompt_logprobs.__class__ = SpatialPromptLogprobs
    prompt_logprobs.vocab_size = vocab_size
