"""The engine core waits for a step without using the processor."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
from vllm.distributed.device_communicators.shm_broadcast import MessageQueue

from vllm_photon.executor.executors import _wait_asleep

WAIT_S = 0.3


@pytest.fixture
def queues() -> Iterator[tuple[MessageQueue, MessageQueue]]:
    """A writer and its reader, as between a worker and the engine core."""
    writer = MessageQueue(n_reader=1, n_local_reader=1)
    reader = MessageQueue.create_from_handle(writer.export_handle(), 0)
    ready = threading.Thread(target=writer.wait_until_ready)
    ready.start()
    reader.wait_until_ready()
    ready.join()
    writer.enqueue("warm")
    assert reader.dequeue(timeout=5) == "warm"
    yield writer, reader
    reader.shutdown()
    writer.shutdown()


def processor_time_of_a_wait(writer: MessageQueue, reader: MessageQueue) -> float:
    sender = threading.Timer(WAIT_S, writer.enqueue, ["late"])
    sender.start()
    began = time.thread_time()
    assert reader.dequeue(timeout=5) == "late"
    return time.thread_time() - began


def test_stock_spins(queues: tuple[MessageQueue, MessageQueue]) -> None:
    """If this fails vLLM waits without spinning, and ``_wait_asleep`` can go."""
    assert processor_time_of_a_wait(*queues) > 0.02


def test_asleep(queues: tuple[MessageQueue, MessageQueue]) -> None:
    _wait_asleep([queues[1]])
    assert processor_time_of_a_wait(*queues) < 0.1 * WAIT_S


def test_a_lost_notice_costs_milliseconds(
    queues: tuple[MessageQueue, MessageQueue], monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM alone would find the message after five seconds."""
    _wait_asleep([queues[1]])
    monkeypatch.setattr(queues[0]._spin_condition, "notify", lambda: None)
    began = time.monotonic()
    processor_time_of_a_wait(*queues)
    assert time.monotonic() - began < 3 * WAIT_S
