"""Prompts: the token ids around an object, a question or nothing, and what a model offers.

Moondream has no chat template. Each skill is a few fixed ids before and after the user's text, kept
in the checkpoint's config (``tokenizer.templates``) and otherwise the published defaults below.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vllm_photon.config import ENGINE_RULES
from vllm_photon.spatial.grammar import State
from vllm_photon.spatial.skills import NEEDS_IMAGE, SkillError, SkillParams, Task
from vllm_photon.spatial.tokens import Coord, Size, SpatialVocab, size_bin

# Gives the ids of a text, without special tokens.
Encode = Callable[[str], list[int]]
# A question and its answer.
Turn = tuple[str, str]

_CAPTIONS = {"short": [1, 32708, 2, 12492, 3], "normal": [1, 32708, 2, 6382, 3]}
_CAPTIONS["long"] = [1, 32708, 2, 4059, 3]
_TEMPLATES: dict[str, Any] = {
    "caption": _CAPTIONS,
    "query": {"prefix": [1, 15381, 2], "suffix": [3]},
    "point": {"prefix": [1, 2581, 2], "suffix": [3]},
    "detect": {"prefix": [1, 7235, 476, 2], "suffix": [3]},
}
_SEGMENT = {"prefix": [1, 17374, 2], "suffix": [3]}


@dataclass(frozen=True)
class ModelSkills:
    """One checkpoint's ids and templates.

    ``third`` tells Moondream 3, whose question ends with one id where Moondream 2 needs two.
    ``thinking_id`` is None when the checkpoint can't reason; ``ground_ids`` stand around the
    grounded parts of its reasoning. ``repeats_answer`` says that the answer token comes twice
    after reasoning.
    """

    vocab: SpatialVocab
    templates: Mapping[str, Any]
    third: bool
    bos_id: int = 0
    eos_id: int = 0
    answer_id: int = 3
    thinking_id: int | None = 4
    ground_ids: frozenset[int] = frozenset({7, 9})
    repeats_answer: bool = False

    @property
    def tasks(self) -> frozenset[Task]:
        """The skills that this checkpoint has a template for."""
        return frozenset(task for task in Task if self.templates.get(task))

    def check(self, params: SkillParams, field: str = "photon_task") -> None:
        """SkillError when the checkpoint lacks what is asked for."""
        if params.task not in self.tasks:
            offered = ", ".join(sorted(self.tasks))
            raise SkillError(f"this model has no skill {params.task}; it has {offered}", field)
        if params.reasoning and self.thinking_id is None:
            raise SkillError("this model can't reason; leave it out", "photon_reasoning")

    def start(self, params: SkillParams) -> State:
        """The grammar state in which the answer begins."""
        if params.start is State.REASON and self.repeats_answer:
            return State.REASON_TWICE
        return params.start

    def prompt_ids(
        self, params: SkillParams, text: str, has_image: bool, encode: Encode
    ) -> list[int]:
        """The whole prompt: BOS, one id for the image, then the skill's template.

        For every skill but query, whose prompt is :meth:`chat_ids`. ``text`` is the object,
        unused for captions. SkillError when an image is missing.
        """
        head = self._head(params, has_image)
        template = self.templates[params.task]
        if params.task is Task.CAPTION:
            return head + list(template[params.length])
        # The published code puts a space before the object of point and detect only.
        spaced = params.task in (Task.POINT, Task.DETECT)
        return [
            *head,
            *template["prefix"],
            *self._reference_ids(params),
            *encode(" " + text if spaced else text),
            *template["suffix"],
        ]

    def chat_ids(
        self, params: SkillParams, turns: Sequence[Turn], has_image: bool, encode: Encode
    ) -> list[int]:
        """The prompt of a conversation: questions and their answers, one block after the other.

        Moondream was not trained on conversations; its engine lays them out in this way too.
        ``turns`` ends with a question. References belong to the last one.
        """
        prefix = self.templates[Task.QUERY]["prefix"]
        ids = self._head(params, has_image)
        for question, answer in turns[:-1]:
            ids += [*prefix, *encode(question), *self._answer_opener(), *encode(answer)]
        question, _ = turns[-1]
        ids += [*prefix, *self._reference_ids(params), *encode(question)]
        return ids + self._answer_opener(params)

    def _head(self, params: SkillParams, has_image: bool) -> list[int]:
        if has_image:
            return [self.bos_id, self.vocab.image_id]
        if params.task in NEEDS_IMAGE or params.spatial_refs:
            what = f"the skill {params.task}" if params.task in NEEDS_IMAGE else "spatial_refs"
            raise SkillError(f"{what} needs an image", "image_url")
        return [self.bos_id]

    def _answer_opener(self, params: SkillParams | None = None) -> list[int]:
        """What stands between a question and its answer, or its reasoning."""
        suffix = list(self.templates[Task.QUERY]["suffix"])
        if params is not None and params.reasoning:
            assert self.thinking_id is not None
            return [self.thinking_id] if self.third else [*suffix, self.thinking_id]
        return suffix if self.third else [*suffix, self.answer_id]

    def _reference_ids(self, params: SkillParams) -> list[int]:
        """A point as its two coordinates, a box as its centre and its size."""
        ids: list[int] = []
        for ref in params.spatial_refs:
            x_min, y_min, x_max, y_max = ref if len(ref) == 4 else (*ref, *ref)
            for value in ((x_min + x_max) / 2, (y_min + y_max) / 2):
                ids.append(self.vocab.encode(Coord(self.vocab.coord_bin(value))))
            if len(ref) == 4:
                size = Size(size_bin(x_max - x_min), size_bin(y_max - y_min))
                ids.append(self.vocab.encode(size))
        return ids


def skills_of(hf_config: Any) -> ModelSkills | None:
    """What the checkpoint behind a Hugging Face config offers; None when it is no Moondream.

    ``hf_config`` is a :class:`vllm_photon.models.hf_config.Moondream2Config` or any other.
    """
    if not hasattr(hf_config, "spatial_vocab"):
        return None
    third = hf_config.text_config.moe is not None
    tokens = hf_config.tokens
    published = {**_TEMPLATES, "segment": _SEGMENT} if third else _TEMPLATES
    return ModelSkills(
        vocab=hf_config.spatial_vocab(),
        templates=tokens.templates or published,
        third=third,
        bos_id=tokens.bos_id,
        eos_id=tokens.eos_id,
        answer_id=tokens.answer_id,
        thinking_id=tokens.thinking_id,
        ground_ids=frozenset({tokens.start_ground_points_id, tokens.end_ground_id}),
        repeats_answer=not third and hf_config.rules == ENGINE_RULES,
    )
