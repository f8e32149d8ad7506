"""Encoder outputs stay put while a step in flight may read them.

vLLM gives an image's encoder output back when its request is done with it *as scheduled*; a step
in flight may still have to read, or even write, that entry, and only the order of the worker's work
protects it. Here the newest step in flight takes over the reference and drops it at its commit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from vllm.v1.core.encoder_cache_manager import EncoderCacheManager

if TYPE_CHECKING:
    from vllm.v1.request import Request

    from vllm_photon.executor.pipeline import Step


class HeldEncoderCache(EncoderCacheManager):
    """vLLM's manager with references of steps beside those of requests.

    ``newest_step`` gives the newest step in flight, or None.
    """

    def __init__(self, cache_size: int, newest_step: Callable[[], Step[Any] | None]) -> None:
        super().__init__(cache_size)
        self._newest_step = newest_step
        self._held: dict[Step[Any], dict[str, int]] = {}

    def free_encoder_input(self, request: Request, input_id: int) -> None:
        step = self._newest_step()
        mm_hash = request.mm_features[input_id].identifier
        if step is not None and self.cached.get(mm_hash):
            embeds = request.get_num_encoder_embeds(input_id)
            self._held.setdefault(step, {})[mm_hash] = embeds
            self.cached[mm_hash].add(_holder(step))
        super().free_encoder_input(request, input_id)

    def release(self, step: Step[Any]) -> None:
        """Drop the references of a committed step; entries without any become evictable."""
        for mm_hash, embeds in self._held.pop(step, {}).items():
            references = self.cached[mm_hash]
            references.discard(_holder(step))
            if not references:
                self.freeable[mm_hash] = embeds
                self.num_freeable_slots += embeds

    def reset(self) -> None:
        super().reset()
        self._held.clear()


def _holder(step: Step[Any]) -> str:
    """What stands for a step among request ids."""
    return f"photon step {step.index}"
