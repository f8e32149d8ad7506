"""Step time and bubble out of the virtual device's log. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.emulated.device import DeviceStep


@dataclass(frozen=True)
class StepTimes:
    """Steady decode of one run, in milliseconds a step."""

    step_ms: float
    device_ms: float
    steps: int

    @property
    def bubble_ms(self) -> float:
        """How long the device stood idle."""
        return self.step_ms - self.device_ms


def steady_decode(log: Sequence[DeviceStep], streams: int) -> StepTimes:
    """The mean over the longest stretch of steps in which every stream decodes one token.

    The first of these steps is left out: it still overlaps the prefill. ValueError if fewer than
    ten remain.
    """
    best: Sequence[DeviceStep] = ()
    start = 0
    for end in range(len(log) + 1):
        if end == len(log) or log[end].rows != streams:
            if end - start > len(best):
                best = log[start:end]
            start = end + 1
    stretch = best[1:]
    if len(stretch) < 10:
        raise ValueError(f"{len(stretch)} steady steps of {streams} rows in {len(log)} steps")
    count = len(stretch) - 1
    busy = sum(_busy(step) for step in stretch[:-1])
    span = stretch[-1].forward_start - stretch[0].forward_start
    return StepTimes(1e3 * span / count, 1e3 * busy / count, count)


def _busy(step: DeviceStep) -> float:
    """Seconds of device work; sampling may have started after a pause."""
    return (step.forward_end - step.forward_start) + (step.sampling_end - step.sampling_start)
