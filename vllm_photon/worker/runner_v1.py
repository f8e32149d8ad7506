"""Model runner V1 (``v1/worker/gpu_model_runner.py``, on CPU ``cpu_model_runner.py``), adapted.

Adds to whichever runner the platform's worker made: the finalize stage after sampling, and a
rewind of seeded generators that works on CPU.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from vllm_photon.models.interfaces import SupportsSpatial
from vllm_photon.worker.finalize import SpatialSampler, decode_rows

if TYPE_CHECKING:
    from vllm.v1.outputs import SamplerOutput


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

    def sample_tokens(self, grammar_output: Any) -> Any:
        state = self.execute_model_state  # type: ignore[attr-defined]
        self._sampled_hidden_states = None if state is None else state.sample_hidden_states
        return super().sample_tokens(grammar_output)  # type: ignore[misc]

    def _sample(self, logits: torch.Tensor | None, spec_decode_metadata: Any) -> SamplerOutput:
        states = self._discarded_generator_states()
        output = super()._sample(logits, spec_decode_metadata)  # type: ignore[misc]
        for generator, state in states:
            generator.set_state(state)
        hidden = self._sampled_hidden_states
        if hidden is not None and self._spatial_model is not None:
            decode_rows(self._spatial_model, hidden, output, self._spatial_rows())
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

    def _spatial_rows(self) -> list[int]:
        from vllm_photon.logits_processors.v1 import SpatialLogitsProcessor

        for processor in self.input_batch.logitsprocs.all:  # type: ignore[attr-defined]
            if isinstance(processor, SpatialLogitsProcessor):
                return processor.decode_rows
        return []


@cache
def adapted(runner_cls: type) -> type:
    """The platform's runner class with ours in front of it."""
    return type(f"Photon{runner_cls.__name__}", (RunnerV1Mixin, runner_cls), {})
