"""What a two-deep step should cost, and the published figures that it is held against. Pure.

A blocking step is the device's time plus the host's, one after the other. With two steps in flight
the host works under the device: a step costs the longer of the two. Times are milliseconds.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class PublishedRow:
    """Moondream 2 on one GPU in steady state, as its engine's authors published it."""

    gpu: str
    streams: int
    forward_ms: float
    sampling_ms: float
    blocking_ms: float
    pipelined_ms: float
    speedup: float

    @property
    def name(self) -> str:
        return f"{self.gpu} x{self.streams}"


PUBLISHED = (
    PublishedRow("RTX 3090", 1, 4.87, 0.20, 5.44, 5.10, 1.065),
    PublishedRow("RTX 3090", 8, 6.66, 0.27, 7.52, 6.97, 1.078),
    PublishedRow("RTX 3090", 32, 10.24, 0.26, 11.74, 10.52, 1.116),
    PublishedRow("B200", 1, 2.45, 0.14, 3.11, 2.63, 1.176),
    PublishedRow("B200", 8, 3.12, 0.14, 4.04, 3.30, 1.219),
    PublishedRow("B200", 32, 3.80, 0.14, 5.55, 3.98, 1.354),
)


@dataclass(frozen=True)
class HostCost:
    """A host's share of a step at one number of streams, found at device times of its own.

    blocking_ms: what a blocking step takes beyond the device's time.
    pipelined_ms: the shortest pipelined step, when the device takes no time at all.
    """

    blocking_ms: float
    pipelined_ms: float

    def blocking_step(self, device_ms: float) -> float:
        return device_ms + self.blocking_ms

    def pipelined_step(self, device_ms: float) -> float:
        return max(device_ms, self.pipelined_ms)

    def speedup(self, device_ms: float, zombie_tax: float = 0.0) -> float:
        ratio = self.blocking_step(device_ms) / self.pipelined_step(device_ms)
        return ratio * (1 - zombie_tax)


def zombie_tax(length: int, streams: int) -> float:
    """The share of steps run for requests that had ended, at `length` tokens each.

    A request that ends by surprise is in one more step. Alone, it holds the device for that step;
    in a batch the others need the step anyway.
    """
    return 1 / (length + 1) if streams == 1 else 0.0
