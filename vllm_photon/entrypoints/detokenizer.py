"""Text of spatial answers: the JSON of points, boxes and outlines, piece by piece.

vLLM's detokenizers turn ids into text one at a time; a virtual id has no text of its own, so the
object that it completes becomes the text. An answer that is cut short is closed all the same, so
``content`` is always valid JSON once it is complete.
"""

from __future__ import annotations

from typing import Any

from vllm.v1.engine import EngineCoreRequest
from vllm.v1.engine.detokenizer import FastIncrementalDetokenizer, IncrementalDetokenizer

from vllm_photon.spatial.prompts import ModelSkills
from vllm_photon.spatial.results import KEYS, Assembler, ObjectAssembler, SegmentAssembler
from vllm_photon.spatial.skills import Task, parse_extra_args

# Stands between reasoning and answer; Moondream's own token for it has no text.
REASONING_END = "</think>"


class AssemblerDetokenizer(IncrementalDetokenizer):
    """Detokenizer of a request whose answer is JSON: point, detect and segment."""

    def __init__(self, assembler: Assembler) -> None:
        super().__init__()
        self._assembler = assembler
        self._text = assembler.head()
        self._sent = 0
        self._closed = False

    def update(self, new_token_ids: list[int], stop_terminated: bool) -> str | None:
        """Take new ids; never stops by itself, since these requests have no stop strings."""
        self.token_ids.extend(new_token_ids)
        for token_id in new_token_ids:
            self._text += self._assembler.push(token_id)
        return None

    def get_next_output_text(self, finished: bool, delta: bool) -> str:
        """All text so far, or with ``delta`` only what is new."""
        if finished and not self._closed:
            self._text += self._assembler.tail()
            self._closed = True
        if not delta:
            return self._text
        new = self._text[self._sent :]
        self._sent = len(self._text)
        return new


class TextDetokenizer(FastIncrementalDetokenizer):
    """Detokenizer of any other Moondream request: values among the words have no text.

    ``reasons`` says that the answer begins with reasoning; its end is then shown.
    """

    def __init__(
        self, skills: ModelSkills, tokenizer: object, request: EngineCoreRequest, *, reasons: bool
    ) -> None:
        super().__init__(tokenizer, request)
        self._vocab_size = skills.vocab.vocab_size
        self._answer_id = skills.answer_id
        self._reasons = reasons

    def decode_next(self, next_token_id: int) -> str:
        """The text that the id adds."""
        if next_token_id >= self._vocab_size:
            return ""
        if self._reasons and next_token_id == self._answer_id:
            self._reasons = False
            return REASONING_END
        return super().decode_next(next_token_id)


def detokenizer_for(
    skills: ModelSkills, tokenizer: Any, request: EngineCoreRequest
) -> IncrementalDetokenizer:
    """The detokenizer of a request to Moondream."""
    skill = parse_extra_args(request.sampling_params.extra_args)
    if skill is not None and skill.task in KEYS:
        return AssemblerDetokenizer(ObjectAssembler(skill.task, skills.vocab))
    if skill is not None and skill.task is Task.SEGMENT:

        def text_of(token_id: int) -> str:
            return tokenizer.decode([token_id], skip_special_tokens=True)

        return AssemblerDetokenizer(SegmentAssembler(skills.vocab, text_of))
    reasons = skill is not None and skill.reasoning
    return TextDetokenizer(skills, tokenizer, request, reasons=reasons)
