"""The two-deep step as a state machine: launch, finalize, commit. Imports neither torch nor vLLM.

A step is *launched* when its forward is handed to the workers, *finalized* when its masks and
sampling are, *delivered* when the host has its tokens, and *committed* when the scheduler has
accounted for them. Two steps may be in flight, each in one of two slots::

    launch(t+1) ── [commit(t) first, if t+1 needs its tokens] ── finalize(t+1) ── commit(t) ...

What is checked, on every call (numbers as in the design document):

- I2  steps are delivered and committed in launch order;
- I3  0 <= in-flight references of a request <= depth, changed by launch and commit alone;
- I4  a step that needs the tokens of an earlier one is finalized only after that one's commit;
- I6  a slot is taken again only after the step that held it was committed.

A call that would break one of them raises :class:`PipelineError` and changes nothing.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass, field
from enum import Enum
from typing import Generic, TypeVar

DEPTH = 2

Payload = TypeVar("Payload")
Request = TypeVar("Request", bound=Hashable)


class PipelineError(RuntimeError):
    """An invariant of the pipelined step was about to be broken."""


class Phase(Enum):
    """How far a step has come."""

    LAUNCHED = "launched"
    FINALIZED = "finalized"
    DELIVERED = "delivered"
    COMMITTED = "committed"


@dataclass(slots=True, eq=False)
class Step(Generic[Payload]):
    """One step in flight. Times are seconds of the pipeline's clock; 0.0 means not yet."""

    index: int
    slot: int
    payload: Payload
    needs_commit: bool
    phase: Phase = Phase.LAUNCHED
    launched_at: float = 0.0
    finalized_at: float = 0.0
    delivered_at: float = 0.0
    committed_at: float = 0.0

    def __str__(self) -> str:
        return f"step {self.index} (slot {self.slot}, {self.phase.value})"


class StepPipeline(Generic[Payload]):
    """The steps in flight of one engine, oldest first.

    ``payload`` is whatever identifies the step for the caller (vLLM's ``SchedulerOutput``); it is
    compared by identity at commit.
    """

    def __init__(self, depth: int = DEPTH, clock: Callable[[], float] = time.perf_counter) -> None:
        self.depth = depth
        self._clock = clock
        self._steps: deque[Step[Payload]] = deque()
        self._free_slots = list(reversed(range(depth)))
        self._launched = 0

    def __len__(self) -> int:
        return len(self._steps)

    @property
    def steps(self) -> tuple[Step[Payload], ...]:
        """The steps in flight, oldest first."""
        return tuple(self._steps)

    def launch(self, payload: Payload, *, needs_commit: bool = False) -> Step[Payload]:
        """Take a free slot for a new step.

        ``needs_commit`` says that its masks depend on tokens of the step before it. Raises when
        every slot is taken or the newest step was not finalized: sampling follows launch order.
        """
        if not self._free_slots:
            raise PipelineError(
                f"launch of step {self._launched}: every slot is taken, by "
                + ", ".join(map(str, self._steps))
            )
        if self._steps and self._steps[-1].phase is Phase.LAUNCHED:
            raise PipelineError(
                f"launch of step {self._launched}: {self._steps[-1]} is not finalized"
            )
        step = Step(
            index=self._launched,
            slot=self._free_slots.pop(),
            payload=payload,
            needs_commit=needs_commit and bool(self._steps),
            launched_at=self._clock(),
        )
        self._launched += 1
        self._steps.append(step)
        return step

    def finalize(self, step: Step[Payload]) -> None:
        """Allow masks and sampling of ``step``."""
        self._expect(step, Phase.LAUNCHED, "finalize")
        if step.needs_commit and self._steps[0] is not step:
            raise PipelineError(f"finalize of {step}: {self._steps[0]} is not committed")
        step.phase = Phase.FINALIZED
        step.finalized_at = self._clock()

    def deliver(self, step: Step[Payload]) -> None:
        """Record that the tokens of ``step`` are on the host."""
        self._expect(step, Phase.FINALIZED, "delivery")
        earlier = next(s for s in self._steps if s.phase is not Phase.DELIVERED)
        if earlier is not step:
            raise PipelineError(f"delivery of {step}: {earlier} comes first")
        step.phase = Phase.DELIVERED
        step.delivered_at = self._clock()

    def commit(self, payload: Payload) -> Step[Payload]:
        """Retire the oldest step, which must be the one of ``payload``, and free its slot."""
        if not self._steps:
            raise PipelineError("commit: no step is in flight")
        step = self._steps[0]
        if step.payload is not payload:
            raise PipelineError(f"commit: the oldest step is {step}, not the one committed")
        self._expect(step, Phase.DELIVERED, "commit")
        self._steps.popleft()
        self._free_slots.append(step.slot)
        step.phase = Phase.COMMITTED
        step.committed_at = self._clock()
        return step

    def _expect(self, step: Step[Payload], phase: Phase, action: str) -> None:
        if step.phase is not phase:
            raise PipelineError(f"{action} of {step}: it is not {phase.value}")


@dataclass(slots=True)
class InflightRefs(Generic[Request]):
    """How many steps in flight hold each request; requests at zero are not kept."""

    depth: int = DEPTH
    _refs: dict[Request, int] = field(default_factory=dict)

    def __getitem__(self, request: Request) -> int:
        return self._refs.get(request, 0)

    def __len__(self) -> int:
        return len(self._refs)

    def launch(self, requests: Collection[Request]) -> None:
        """Add one reference to each of the distinct requests of a launched step."""
        for request in requests:
            if self[request] >= self.depth:
                raise PipelineError(f"launch: {request!r} is in {self.depth} steps already")
        for request in requests:
            self._refs[request] = self[request] + 1

    def commit(self, requests: Collection[Request]) -> list[Request]:
        """Drop one reference from each; returns those that are now in no step."""
        for request in requests:
            if not self[request]:
                raise PipelineError(f"commit: {request!r} is in no step in flight")
        released = []
        for request in requests:
            refs = self[request] - 1
            if refs:
                self._refs[request] = refs
            else:
                del self._refs[request]
                released.append(request)
        return released
