"""Prompts: the token ids around an object, a question or nothing, and what a model offers.

Moondream has no chat template. Each skill is a few fixed ids before and after the user's text, kept
in the checkpoint's config (``tokenizer.templates``) and otherwise the published defaults below.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from vllm_photon.spatial.skills import NEEDS_IMAGE, SkillError, SkillParams, Task
from vllm_photon.spatial.tokens import Coord, Size, SpatialVocab, size_bin

MODEL_TYPES = ("moondream1", "moondream2", "moondream3")

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
    ``thinking_id`` is None when the checkpoint can't reason.
    """

    vocab: SpatialVocab
    templates: Mapping[str, Any]
    third: bool
    bos_id: int = 0
    eos_id: int = 0
    answer_id: int = 3
    thinking_id: int | None = 4

    @property
    def tasks(self) -> frozenset[Task]:
        """The skills that this checkpoint has a template for."""
        return frozenset(task for task in Task if task in self.templates)

    def check(self, params: SkillParams, field: str = "photon_task") -> None:
        """SkillError when the checkpoint lacks what is asked for."""
        if params.task not in self.tasks:
            offered = ", ".join(sorted(self.tasks))
            raise SkillError(f"this model has no skill {params.task}; it has {offered}", field)
        if params.reasoning and self.thinking_id is None:
            raise SkillError("this model can't reason; leave it out", "photon_reasoning")

    def prompt_ids(
        self,
        params: SkillParams,
        text: str,
        has_image: bool,
        encode: Callable[[str], list[int]],
    ) -> list[int]:
        """The whole prompt: BOS, one id for the image, then the skill's template.

        ``text`` is the object or the question, unused for captions; ``encode`` gives its ids
        without special tokens. SkillError when an image is missing.
        """
        if params.task in NEEDS_IMAGE and not has_image:
            raise SkillError(f"{params.task} needs an image", "image_url")
        head = [self.bos_id, self.vocab.image_id] if has_image else [self.bos_id]
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
            *self._ending(params, list(template["suffix"])),
        ]

    def _ending(self, params: SkillParams, suffix: list[int]) -> list[int]:
        if params.task is not Task.QUERY:
            return suffix
        if params.reasoning:
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
    """What the checkpoint behind a Hugging Face config offers; None when it is no Moondream."""
    model_type = getattr(hf_config, "model_type", None)
    if model_type not in MODEL_TYPES:
        return None
    third = model_type == "moondream3"
    published: Mapping[str, Any] = getattr(hf_config, "config", None) or {}
    tokenizer: Mapping[str, Any] = published.get("tokenizer") or {}
    defaults = {**_TEMPLATES, "segment": _SEGMENT} if third else _TEMPLATES
    templates = {k: v for k, v in (tokenizer.get("templates") or defaults).items() if v}
    return ModelSkills(
        vocab=SpatialVocab(
            vocab_size=(published.get("text") or {}).get("vocab_size", 51200),
            coord_id=tokenizer.get("coord_id", 5),
            size_id=tokenizer.get("size_id", 6),
        ),
        templates=templates,
        third=third,
        bos_id=tokenizer.get("bos_id", 0),
        eos_id=tokenizer.get("eos_id", 0),
        answer_id=tokenizer.get("answer_id", 3),
        thinking_id=tokenizer.get("thinking_id") if tokenizer else 4,
    )
