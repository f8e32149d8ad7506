"""The virtual device's timeline, and what is read out of its log."""

import time

import pytest

from benchmarks.emulated.device import DeviceStep, DeviceTimes, VirtualDevice, sleep_until
from benchmarks.emulated.engine import loop_length
from benchmarks.emulated.steps import steady_decode


def test_work_queues_up_behind_earlier_work_and_enqueueing_does_not_wait():
    device = VirtualDevice(DeviceTimes(forward_ms=200, sampling_ms=50))
    start = time.perf_counter()
    device.enqueue_forward(4)
    device.enqueue_sampling()
    device.enqueue_forward(4)
    device.enqueue_sampling()
    assert time.perf_counter() - start < 0.1
    first, second = device.take_log()
    assert first.forward_end == pytest.approx(first.forward_start + 0.2)
    assert first.sampling_end == pytest.approx(first.forward_end + 0.05)
    assert second.forward_start == first.sampling_end
    assert device.free_at == second.sampling_end
    assert device.take_log() == []


def test_work_that_comes_late_starts_late():
    device = VirtualDevice(DeviceTimes(forward_ms=1, sampling_ms=0))
    device.enqueue_forward(1)
    sleep_until(device.free_at + 0.02)
    device.enqueue_forward(1)
    first, second = device.take_log()
    assert second.forward_start - first.sampling_end >= 0.02


def test_sleep_ends_at_its_moment_and_not_before():
    moment = time.perf_counter() + 0.05
    sleep_until(moment)
    assert moment <= time.perf_counter() < moment + 0.2
    sleep_until(moment)  # in the past: returns at once


def test_negative_times_are_refused():
    with pytest.raises(ValueError, match="negative"):
        DeviceTimes(-1, 0)


def _step(start: float, rows: int, forward: float = 0.003, pause: float = 0.0) -> DeviceStep:
    sampling = start + forward + pause
    return DeviceStep(rows, start, start + forward, sampling, sampling + 0.001)


def test_bubble_is_what_the_device_did_not_work():
    prefill = [_step(0.0, 128, forward=0.05)]
    log = prefill + [_step(1 + 0.005 * i, 8) for i in range(20)]
    found = steady_decode(log, streams=8)
    assert found.steps == 18
    assert found.step_ms == pytest.approx(5.0)
    assert found.device_ms == pytest.approx(4.0)
    assert found.bubble_ms == pytest.approx(1.0)


def test_a_pause_before_sampling_belongs_to_the_bubble():
    log = [_step(0.005 * i, 1, pause=0.0005) for i in range(20)]
    assert steady_decode(log, streams=1).bubble_ms == pytest.approx(1.0)


def test_the_longest_stretch_counts():
    log = [_step(0.01 * i, 8) for i in range(12)]
    log += [_step(1.0, 7)]
    log += [_step(2 + 0.005 * i, 8) for i in range(30)]
    found = steady_decode(log, streams=8)
    assert (found.steps, found.step_ms) == (28, pytest.approx(5.0))


def test_too_few_steady_steps_are_refused():
    with pytest.raises(ValueError, match="9 steady steps"):
        steady_decode([_step(0.005 * i, 8) for i in range(10)], streams=8)


def test_a_closed_loop_spreads_the_ends_of_its_first_requests():
    lengths = [loop_length(i, 4, 100) for i in range(6)]
    assert lengths == [25, 50, 75, 100, 100, 100]
