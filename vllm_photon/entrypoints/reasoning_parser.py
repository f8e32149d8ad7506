"""vLLM's reasoning parser ``moondream``: what stands before the answer becomes ``reasoning``.

Whether a request reasons is known from its skill, not from its tokens: the prompt opened the
reasoning, and :class:`vllm_photon.entrypoints.detokenizer.TextDetokenizer` marks its end.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from vllm.entrypoints.generate.base.protocol import DeltaMessage
from vllm.reasoning.abs_reasoning_parsers import ReasoningParser

from vllm_photon.entrypoints.admission import photon_args
from vllm_photon.entrypoints.detokenizer import REASONING_END
from vllm_photon.spatial.prompts import skills_of
from vllm_photon.spatial.skills import parse_extra_args


class MoondreamReasoningParser(ReasoningParser):
    """One request's parser; its skill is in ``chat_template_kwargs``, put there by the chat hook.

    In the engine's process there is no ``model_config``, and requests that reason have no
    structured outputs: there it only ever says that there is no reasoning.
    """

    def __init__(self, tokenizer: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(tokenizer, *args, **kwargs)
        skill = parse_extra_args(photon_args(kwargs.get("chat_template_kwargs")))
        self._reasons = skill is not None and skill.reasoning
        skills = None if self._model_config is None else skills_of(self._model_config.hf_config)
        self._answer_id = None if skills is None else skills.answer_id

    @property
    def reasoning_end_str(self) -> str:
        """What the detokenizer puts between reasoning and answer."""
        return REASONING_END

    def is_reasoning_end(self, input_ids: Sequence[int]) -> bool:
        """Whether no reasoning is open after a prompt."""
        return not self._reasons

    def is_reasoning_end_streaming(
        self, input_ids: Sequence[int], delta_ids: Iterable[int]
    ) -> bool:
        """Whether the reasoning, if there is any, ends in ``delta_ids``."""
        return not self._reasons or self._answer_id in list(delta_ids)

    def extract_content_ids(self, input_ids: list[int]) -> list[int]:
        """The ids of the answer."""
        return input_ids[self.count_reasoning_tokens(input_ids) + self._reasons :]

    def count_reasoning_tokens(self, token_ids: Sequence[int]) -> int:
        """Ids before the answer token."""
        if not self._reasons:
            return 0
        ids = list(token_ids)
        return ids.index(self._answer_id) if self._answer_id in ids else len(ids)

    def extract_reasoning(self, model_output: str, request: Any) -> tuple[str | None, str | None]:
        """Reasoning and answer of a whole text; reasoning cut short has no answer."""
        if not self._reasons:
            return None, model_output
        reasoning, end, answer = model_output.partition(REASONING_END)
        return reasoning, answer if end else None

    def extract_reasoning_streaming(
        self,
        previous_text: str,
        current_text: str,
        delta_text: str,
        previous_token_ids: Sequence[int],
        current_token_ids: Sequence[int],
        delta_token_ids: Sequence[int],
    ) -> DeltaMessage | None:
        """The part of a delta that is reasoning, and the beginning of the answer."""
        reasoning, _, answer = delta_text.partition(REASONING_END)
        if not reasoning and not answer:
            return None
        return DeltaMessage(reasoning=reasoning or None, content=answer or None)
