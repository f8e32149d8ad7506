"""I6: a slot is used again only after its output was read."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from vllm.v1.outputs import AsyncModelRunnerOutput

from vllm_photon.worker import PhotonWorker
from vllm_photon.worker.slots import DecodeSlots, SlotError


class Output(AsyncModelRunnerOutput):
    def __init__(self, tokens: Any) -> None:
        self.tokens = tokens
        self.reads = 0

    def get_output(self) -> Any:
        self.reads += 1
        if isinstance(self.tokens, Exception):
            raise self.tokens
        return self.tokens


def test_two_steps_in_flight_in_any_order_of_reading() -> None:
    slots = DecodeSlots(2)
    for first in range(0, 10, 2):
        a, b = slots.launch(Output(first)), slots.launch(Output(first + 1))
        if first % 4:
            assert (b.get_output(), a.get_output()) == (first + 1, first)
        else:
            assert (a.get_output(), b.get_output()) == (first, first + 1)


def test_i6_a_third_step_needs_the_oldest_output_read() -> None:
    slots = DecodeSlots(2)
    oldest, younger = slots.launch(Output("a")), slots.launch(Output("b"))
    younger.get_output()
    with pytest.raises(SlotError, match=r"I6: step 2 was launched into slot 0.*step 0 has not"):
        slots.launch(Output("c"))
    assert oldest.get_output() == "a"
    assert slots.launch(Output("c")).get_output() == "c"


def test_i6_an_output_is_read_once() -> None:
    slots = DecodeSlots(1)
    inner = Output("a")
    output = slots.launch(inner)
    output.get_output()
    with pytest.raises(SlotError, match="I6: step 0 was read from slot 0 twice"):
        output.get_output()
    assert inner.reads == 1


def test_i6_a_stale_handle_does_not_read_the_next_step() -> None:
    slots = DecodeSlots(1)
    stale = slots.launch(Output("a"))
    stale.get_output()
    slots.launch(Output("b"))
    with pytest.raises(SlotError, match="I6"):
        stale.get_output()


def test_an_output_that_fails_keeps_its_slot() -> None:
    slots = DecodeSlots(1)
    output = slots.launch(Output(RuntimeError("copy failed")))
    with pytest.raises(RuntimeError, match="copy failed"):
        output.get_output()
    with pytest.raises(SlotError, match="I6"):
        slots.launch(Output("b"))


class PlatformWorker:
    """Gives out outputs that nobody reads while it warms up."""

    def sample_tokens(self, grammar_output: Any) -> Any:
        return Output(grammar_output)

    def compile_or_warm_up_model(self) -> str:
        for step in range(5):
            self.sample_tokens(step)
        return "times"


class Worker(PhotonWorker):
    def __init__(self, rank: int, ranks: int) -> None:
        self.slots = None
        self.rank = rank
        self.parallel_config = SimpleNamespace(
            world_size=ranks, tensor_parallel_size=2, prefill_context_parallel_size=1
        )
        self.vllm_config = SimpleNamespace(max_concurrent_batches=2)


@pytest.fixture
def platform(monkeypatch: pytest.MonkeyPatch) -> None:
    base = PhotonWorker.__mro__[1]
    for name in ("sample_tokens", "compile_or_warm_up_model"):
        monkeypatch.setattr(base, name, getattr(PlatformWorker, name), raising=False)


@pytest.mark.usefixtures("platform")
def test_i6_holds_for_the_rank_that_is_read_once_it_is_warm() -> None:
    for rank in range(4):  # two stages of two ranks: the first of the last stage is read
        worker = Worker(rank, ranks=4)
        assert worker.compile_or_warm_up_model() == "times"
        for step in range(2):
            worker.sample_tokens(step)
        if rank == 2:
            with pytest.raises(SlotError, match="I6"):
                worker.sample_tokens(2)
        else:
            worker.sample_tokens(2)


@pytest.mark.usefixtures("platform")
def test_an_output_on_the_host_needs_no_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PhotonWorker.__mro__[1], "sample_tokens", lambda self, masks: "ready")
    worker = Worker(2, ranks=4)
    worker.compile_or_warm_up_model()
    assert [worker.sample_tokens(None) for _ in range(3)] == ["ready"] * 3
