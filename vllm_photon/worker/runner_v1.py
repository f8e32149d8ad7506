"""Model runner V1 (``v1/worker/gpu_model_runner.py``, on CPU ``cpu_model_runner.py``), adapted.

Adds to whichever runner the platform's worker made: the finalize stage after sampling, and a
rewind of seeded generators that works on CPU.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from vllm import envs
from vllm.v1.outputs import SamplerOutput
from vllm.v1.sample.logits_processor import BUILTIN_LOGITS_PROCESSORS

from vllm_photon.logits_processors.v1 import SpatialLogitsProcessor
from vllm_photon.models.interfaces import SupportsSpatial
from vllm_photon.worker.finalize import SpatialSampler, decode_rows


class RunnerV1Mixin:
    """What is added in front of vLLM's runner class."""

    _sampled_hidden_states: torch.Tensor | None
    _spatial_model: SupportsSpatial | None

    def attach(self) -> None:
        """Finish what the runner's own constructor began; called once, with the model loaded."""
        self.sampler: Any
        model = self.get_model()  # type: ignore[attr-defined]
        self._spatial_model = model if isinstance(model, SupportsSpatial) else None
        if self._spatial_model is not None:
            self.sampler.__class__ = SpatialSampler
        self._may_close = self._spatial_model is not None and self._alone_in_sampling()

    def _alone_in_sampling(self) -> bool:
        """Whether the scores of three tokens are all that a batch of closed requests is about.

        They aren't where someone else reads or changes logits: a user's processors, the count of
        NaNs, a pipeline that sends logits to every rank. Moondream refuses draft models anyway.
        """
        return (
            self.get_model().can_score  # type: ignore[attr-defined]
            and not self.broadcast_pp_output  # type: ignore[attr-defined]
            and not envs.VLLM_COMPUTE_NANS_IN_LOGITS
            and all(
                type(processor) in (*BUILTIN_LOGITS_PROCESSORS, SpatialLogitsProcessor)
                for processor in self.input_batch.logitsprocs.all  # type: ignore[attr-defined]
            )
        )

    def _model_forward(self, *args: Any, **kwargs: Any) -> Any:
        """As vLLM's, and say whether logits will be wanted; they are asked for right after."""
        output = super()._model_forward(*args, **kwargs)  # type: ignore[misc]
        if self._may_close:
            assert self._spatial_model is not None
            num_reqs = self.input_batch.num_reqs  # type: ignore[attr-defined]
            self._spatial_model.skip_logits = self._processor().is_closed(num_reqs)
        return output

    def sample_tokens(self, grammar_output: Any) -> Any:
        if self._spatial_model is not None:
            self._spatial_model.skip_logits = False  # Logprobs of a prompt are asked for later.
        state = self.execute_model_state  # type: ignore[attr-defined]
        self._sampled_hidden_states = None if state is None else state.sample_hidden_states
        return super().sample_tokens(grammar_output)  # type: ignore[misc]

    def _sample(self, logits: torch.Tensor | None, spec_decode_metadata: Any) -> SamplerOutput:
        hidden, model = self._sampled_hidden_states, self._spatial_model
        if logits is None and hidden is not None and model is not None:
            # vLLM's sampler does this first, before anyone reads a list of output ids.
            self.input_batch.update_async_output_token_ids()  # type: ignore[attr-defined]
            processor = self._processor()
            chosen = processor.choose(lambda: model.score(hidden, processor.closed_ids))
            return SamplerOutput(model.decode_spatial(hidden, chosen), None)
        states = self._discarded_generator_states()
        output = super()._sample(logits, spec_decode_metadata)  # type: ignore[misc]
        for generator, state in states:
            generator.set_state(state)
        if hidden is not None and model is not None:
            decode_rows(model, hidden, output, self._processor().decode_rows)
        return output

    def _bookkeeping_sync(self, *args: Any, **kwargs: Any) -> Any:
        """As vLLM's, without its rewind of generators, which only CUDA generators can do."""
        generators = self.input_batch.generators  # type: ignore[attr-defined]
        held = {row: generators.pop(row) for row in self._discarded_rows() if row in generators}
        try:
            return super()._bookkeeping_sync(*args, **kwargs)  # type: ignore[misc]
        finally:
            generators.update(held)

    def _discarded_rows(self) -> list[int]:
        """Rows of unfinished prefills, whose sampled token is thrown away."""
        num_reqs = self.input_batch.num_reqs  # type: ignore[attr-defined]
        return np.nonzero(self.discard_request_mask.np[:num_reqs])[0].tolist()  # type: ignore[attr-defined]

    def _discarded_generator_states(self) -> list[tuple[torch.Generator, torch.Tensor]]:
        generators = self.input_batch.generators  # type: ignore[attr-defined]
        if not generators:
            return []
        found = (generators.get(row) for row in self._discarded_rows())
        return [(generator, generator.get_state()) for generator in found if generator is not None]

    def _processor(self) -> SpatialLogitsProcessor:
        processors = self.input_batch.logitsprocs.non_argmax_invariant  # type: ignore[attr-defined]
        return next(p for p in processors if isinstance(p, SpatialLogitsProcessor))


@cache
def adapted(runner_cls: type) -> type:
    """The platform's runner class with ours in front of it."""
    return type(f"Photon{runner_cls.__name__}", (RunnerV1Mixin, runner_cls), {})
