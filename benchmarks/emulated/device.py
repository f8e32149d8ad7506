"""The virtual accelerator: one in-order stream on a timeline, no compute.

Work is enqueued at once and occupies the device for a given time, after everything enqueued before
it. Only a caller that waits for a point of the timeline is held up, and it sleeps meanwhile, as a
host does in a blocking event.
"""

import os
import time
from collections import deque
from dataclasses import dataclass

_WAKE_UP = 150e-6  # seconds; a sleeper's wake-up may come this late


def sleep_until(moment: float) -> None:
    """Return at `moment` on the clock of time.perf_counter.

    Sleeps, except for the last stretch, where it yields: a late wake-up would lengthen every
    blocking step by something that no device does.
    """
    nap = moment - time.perf_counter() - _WAKE_UP
    if nap > 0:
        time.sleep(nap)
    while time.perf_counter() < moment:
        os.sched_yield()


@dataclass(frozen=True)
class DeviceTimes:
    """Duration of one step's parts in milliseconds, whatever the batch."""

    forward_ms: float
    sampling_ms: float

    def __post_init__(self) -> None:
        if self.forward_ms < 0 or self.sampling_ms < 0:
            raise ValueError(f"device times must not be negative: {self}")

    @property
    def step_ms(self) -> float:
        return self.forward_ms + self.sampling_ms


@dataclass
class DeviceStep:
    """One forward with its sampling: token rows, and seconds on the clock of perf_counter."""

    rows: int
    forward_start: float
    forward_end: float
    sampling_start: float
    sampling_end: float


class VirtualDevice:
    """The timeline and the log of the steps that ran on it."""

    def __init__(self, times: DeviceTimes, log_size: int = 100_000) -> None:
        self.times = times
        self._free_at = 0.0
        self._log: deque[DeviceStep] = deque(maxlen=log_size)

    @property
    def free_at(self) -> float:
        """When everything enqueued so far will have finished."""
        return self._free_at

    def enqueue_forward(self, rows: int) -> None:
        start = max(time.perf_counter(), self._free_at)
        self._free_at = start + self.times.forward_ms / 1e3
        self._log.append(DeviceStep(rows, start, *[self._free_at] * 3))

    def enqueue_sampling(self) -> None:
        start = max(time.perf_counter(), self._free_at)
        self._free_at = start + self.times.sampling_ms / 1e3
        if self._log:
            self._log[-1].sampling_start = start
            self._log[-1].sampling_end = self._free_at

    def take_log(self) -> list[DeviceStep]:
        """The steps since the last call, oldest first."""
        steps = list(self._log)
        self._log.clear()
        return steps
