"""Model runner V2 (``v1/worker/gpu/model_runner.py``, the default on GPUs), adapted.

Adds the finalize stage after sampling, and the guards that vLLM's sampling needs beside requests
that hold virtual ids. Nothing here waits for the device: the rows to decode are a device mask.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from vllm_photon.models.interfaces import SupportsSpatial
from vllm_photon.worker.finalize import decode_masked

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import GrammarOutput
    from vllm.v1.worker.gpu.input_batch import InputBatch
    from vllm.v1.worker.gpu.sample.output import SamplerOutput

    from vllm_photon.logits_processors.v2 import SpatialLogitsProcessor
    from vllm_photon.worker.guards_v2 import SpatialPenalties


class RunnerV2Mixin:
    """What is added in front of vLLM's runner class."""

    model: Any
    req_states: Any
    sampler: Any
    _spatial: SpatialLogitsProcessor | None
    _sampled_rows: np.ndarray

    def attach(self) -> None:
        """Finish what the runner's own constructor began; called once, with the model loaded."""
        self._spatial = None
        # Only the last rank of a pipeline samples; the others are sent what it sampled.
        if isinstance(self.model, SupportsSpatial) and self.sampler is not None:
            from vllm_photon.logits_processors.v2 import SpatialLogitsProcessor
            from vllm_photon.worker.guards_v2 import guard

            (self._spatial,) = (
                processor
                for processor in self.sampler.logits_processors
                if isinstance(processor, SpatialLogitsProcessor)
            )
            guard(
                self.sampler,
                self.prompt_logprobs_worker,  # type: ignore[attr-defined]
                self.model.spatial_vocab.vocab_size,
            )

    def sample(
        self,
        hidden_states: torch.Tensor,
        input_batch: InputBatch,
        grammar_output: GrammarOutput | None,
    ) -> tuple[SamplerOutput, torch.Tensor, torch.Tensor]:
        spatial = self._spatial
        if spatial is not None:
            spatial.decode_mask = None  # The processors don't run in a step that needs none.
        output, num_sampled, num_rejected = super().sample(  # type: ignore[misc]
            hidden_states, input_batch, grammar_output
        )
        self._sampled_rows = input_batch.idx_mapping_np
        if spatial is not None and spatial.decode_mask is not None:
            decode_masked(
                self.model,
                hidden_states[input_batch.logits_indices],
                output,
                spatial.decode_mask,
                sizes=spatial.decode_sizes,
            )
        return output, num_sampled, num_rejected

    def postprocess_sampled(
        self,
        idx_mapping: torch.Tensor,
        sampled_tokens: torch.Tensor,
        num_sampled: torch.Tensor,
        num_rejected: torch.Tensor,
        query_start_loc: torch.Tensor | None = None,
    ) -> None:
        """As vLLM's, but for its kernel's count of sampled ids in rows as wide as the vocabulary.

        That histogram is hidden from the kernel; penalties, which alone need it, count themselves.
        ``sampled_tokens`` is [n, 1], ``num_sampled`` [n] is 0 for rows of unfinished prefills.
        """
        if self._spatial is None:
            super().postprocess_sampled(  # type: ignore[misc]
                idx_mapping, sampled_tokens, num_sampled, num_rejected, query_start_loc
            )
            return
        penalties: SpatialPenalties = self.sampler.penalties_state
        with penalties.hidden():
            super().postprocess_sampled(  # type: ignore[misc]
                idx_mapping, sampled_tokens, num_sampled, num_rejected, query_start_loc
            )
        penalties.count(self._sampled_rows, idx_mapping, sampled_tokens, num_sampled)


@cache
def adapted(runner_cls: type) -> type:
    """The platform's runner class with ours in front of it."""
    return type(f"Photon{runner_cls.__name__}", (RunnerV2Mixin, runner_cls), {})
