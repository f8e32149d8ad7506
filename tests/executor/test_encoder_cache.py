"""An encoder output is not evictable while a step in flight may read it; at its commit it is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from vllm_photon.executor.encoder_cache import HeldEncoderCache
from vllm_photon.executor.pipeline import Step, StepPipeline

IMAGE, EMBEDS = "image", 10


class Flight:
    """A cache of two images' size, and the pipeline that holds its entries."""

    def __init__(self) -> None:
        self.pipeline: StepPipeline[str] = StepPipeline()
        self.cache = HeldEncoderCache(
            2 * EMBEDS, lambda: self.pipeline.steps[-1] if self.pipeline else None
        )

    def launch(self, name: str) -> None:
        self.pipeline.finalize(self.pipeline.launch(name))

    def commit(self, name: str) -> None:
        step: Step[str] = self.pipeline.steps[0]
        self.pipeline.deliver(step)
        self.cache.release(self.pipeline.commit(name))

    def request(self, name: str, *images: str) -> Any:
        features = [SimpleNamespace(identifier=image) for image in images]
        return SimpleNamespace(
            request_id=name, mm_features=features, get_num_encoder_embeds=lambda index: EMBEDS
        )

    def fits(self, request: Any) -> bool:
        return self.cache.can_allocate(request, 0, 1000, 0)


def test_freed_while_idle_is_evictable_at_once() -> None:
    flight = Flight()
    request = flight.request("a", IMAGE)
    flight.cache.allocate(request, 0)
    assert flight.cache.num_freeable_slots == EMBEDS
    flight.cache.free(request)
    assert flight.cache.num_freeable_slots == 2 * EMBEDS


def test_held_until_the_newest_step_in_flight_is_committed() -> None:
    flight = Flight()
    request = flight.request("a", IMAGE, "other")
    flight.cache.allocate(request, 0)
    flight.cache.allocate(request, 1)
    flight.launch("one")
    flight.launch("two")
    flight.cache.free(request)
    new = flight.request("b", "third")
    assert not flight.fits(new)
    flight.commit("one")
    assert not flight.fits(new)
    flight.commit("two")
    assert flight.fits(new)
    assert flight.cache.get_freed_mm_hashes() == [IMAGE]


def test_another_request_keeps_what_a_step_lets_go() -> None:
    flight = Flight()
    first, second = flight.request("a", IMAGE), flight.request("b", IMAGE)
    flight.cache.allocate(first, 0)
    flight.launch("one")
    flight.cache.free(first)
    assert flight.cache.check_and_update_cache(second, 0)
    flight.commit("one")
    assert flight.cache.num_freeable_slots == EMBEDS
    flight.cache.free(second)
    assert flight.cache.num_freeable_slots == 2 * EMBEDS


def test_i7_a_reused_id_keeps_its_own_reference() -> None:
    flight = Flight()
    zombie, new = flight.request("same", IMAGE), flight.request("same", IMAGE)
    flight.cache.allocate(zombie, 0)
    flight.launch("one")
    flight.cache.free(zombie)
    assert flight.cache.check_and_update_cache(new, 0)
    flight.commit("one")
    assert flight.cache.get_cached_input_ids(new) == {0}
    assert flight.cache.num_freeable_slots == EMBEDS


def test_a_reset_forgets_what_steps_hold() -> None:
    flight = Flight()
    request = flight.request("a", IMAGE)
    flight.cache.allocate(request, 0)
    flight.launch("one")
    flight.cache.free(request)
    flight.cache.reset()
    flight.commit("one")
    assert flight.cache.num_freeable_slots == flight.cache.num_free_slots == 2 * EMBEDS
