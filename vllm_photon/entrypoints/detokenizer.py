"""Text of spatial answers: the JSON of points and boxes, object by object.

vLLM's detokenizers turn ids into text one at a time; a virtual id has no text of its own, so the
object that it completes becomes the text. An answer that is cut short is closed all the same, so
``content`` is always valid JSON once it is complete.
"""

from __future__ import annotations

from vllm.v1.engine import EngineCoreRequest
from vllm.v1.engine.detokenizer import FastIncrementalDetokenizer, IncrementalDetokenizer

from vllm_photon.spatial.results import KEYS, ObjectAssembler
from vllm_photon.spatial.skills import parse_extra_args
from vllm_photon.spatial.tokens import SpatialVocab


class ObjectDetokenizer(IncrementalDetokenizer):
    """Detokenizer of a point or detect request."""

    def __init__(self, assembler: ObjectAssembler) -> None:
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
    """Detokenizer of any other Moondream request: values among the words have no text."""

    def __init__(self, vocab: SpatialVocab, tokenizer: object, request: EngineCoreRequest) -> None:
        super().__init__(tokenizer, request)
        self._vocab_size = vocab.vocab_size

    def decode_next(self, next_token_id: int) -> str:
        """The text that the id adds."""
        if next_token_id >= self._vocab_size:
            return ""
        return super().decode_next(next_token_id)


def detokenizer_for(
    vocab: SpatialVocab, tokenizer: object, request: EngineCoreRequest
) -> IncrementalDetokenizer:
    """The detokenizer of a request to Moondream."""
    skill = parse_extra_args(request.sampling_params.extra_args)
    if skill is not None and skill.task in KEYS:
        return ObjectDetokenizer(ObjectAssembler(skill.task, vocab))
    return TextDetokenizer(vocab, tokenizer, request)
