"""Host buffers of steps in flight, and the rule that none is used again too early (I6).

vLLM gives every step whose tokens are still on their way to the host an output object, which owns
the step's host buffers and the event of their copy, and keeps the device tensors alive until then.
A :class:`DecodeSlot` holds that object from launch to the moment that its tokens are read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm.v1.outputs import AsyncModelRunnerOutput

if TYPE_CHECKING:
    from vllm.v1.outputs import ModelRunnerOutput


class SlotError(RuntimeError):
    """Invariant I6: a slot was launched into before its output was read."""


class DecodeSlot:
    """One step's place; free when ``output`` is None."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.step = -1
        self.output: AsyncModelRunnerOutput | None = None

    def launch(self, step: int, output: AsyncModelRunnerOutput) -> None:
        """Hold a step's output; SlotError when another step's has not been read."""
        if self.output is not None:
            raise SlotError(
                f"invariant I6: step {step} was launched into slot {self.index}, whose output of "
                f"step {self.step} has not been read"
            )
        self.step, self.output = step, output

    def read(self, step: int) -> ModelRunnerOutput:
        """Wait for the step's tokens and free the slot; SlotError when it holds another step."""
        if self.output is None or self.step != step:
            raise SlotError(f"invariant I6: step {step} was read from slot {self.index} twice")
        output, self.output = self.output.get_output(), None
        return output


class SlotOutput(AsyncModelRunnerOutput):
    """Stands for a slot's output; reading it frees the slot."""

    def __init__(self, slot: DecodeSlot) -> None:
        self._slot = slot
        self._step = slot.step

    def get_output(self) -> ModelRunnerOutput:
        return self._slot.read(self._step)


class DecodeSlots:
    """As many slots as there can be steps in flight, taken in turn; ``steps`` were launched."""

    def __init__(self, depth: int) -> None:
        self._slots = [DecodeSlot(index) for index in range(depth)]
        self.steps = 0

    def launch(self, output: AsyncModelRunnerOutput) -> SlotOutput:
        """Put a step's output into the next slot; SlotError when that slot is not free."""
        slot = self._slots[self.steps % len(self._slots)]
        slot.launch(self.steps, output)
        self.steps += 1
        return SlotOutput(slot)
