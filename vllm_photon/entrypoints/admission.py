"""The checks that a request passes before anything is computed or streamed for it.

A chat prompt is rendered for one skill, and its renderer notes that skill on the engine input; the
sampling parameters name one too, since the grammar reads it there. Here the two are brought
together, and what depends on the model or the prompt is checked. What depends on the sampling
parameters alone is checked by the logits processor's own hook.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from vllm import SamplingParams
from vllm.exceptions import VLLMValidationError

from vllm_photon.spatial.prompts import ModelSkills
from vllm_photon.spatial.skills import NEEDS_IMAGE, PREFIX, SkillError, parse_extra_args

# The key of an engine input under which the renderer leaves the arguments it rendered for.
RENDERED = "photon_rendered"

# Arguments that shape the answer only, not the prompt.
_NOT_RENDERED = frozenset({"photon_max_objects", "photon_max_reasoning_tokens"})


@contextmanager
def bad_request() -> Iterator[None]:
    """Turns a SkillError into vLLM's HTTP 400 that names the field."""
    try:
        yield
    except SkillError as error:
        raise VLLMValidationError(str(error), parameter=error.field) from None


def photon_args(arguments: Mapping[str, Any] | None) -> dict[str, Any]:
    """The arguments that are ours."""
    return {k: v for k, v in (arguments or {}).items() if k.startswith(PREFIX)}


def admit(params: SamplingParams, prompt: Any, skills: ModelSkills | None) -> SamplingParams:
    """The parameters to run with: ``params``, or a copy that carries the prompt's skill.

    ``prompt`` is an engine input or a raw prompt. VLLMValidationError when the request can't be
    served by this model or when prompt and parameters disagree.
    """
    asked = photon_args(params.extra_args)
    rendered: dict[str, Any] | None = None
    if isinstance(prompt, Mapping):
        rendered = prompt.get(RENDERED)
    with bad_request():
        if skills is None:
            if asked:
                raise SkillError("this model has no spatial skills", min(asked))
            return params
        if rendered is not None:
            for name, value in asked.items():
                if name not in _NOT_RENDERED and rendered.get(name, value) != value:
                    raise SkillError(
                        f"{name} is {value!r}, but the chat was rendered with {rendered[name]!r}; "
                        f"give it in chat_template_kwargs",
                        name,
                    )
                if name not in _NOT_RENDERED and name not in rendered:
                    raise SkillError(f"give {name} in chat_template_kwargs as well", name)
            asked = {**rendered, **asked}
        skill = parse_extra_args(asked)
        if skill is None:
            return params
        skills.check(skill)
        is_engine_input = isinstance(prompt, Mapping) and "type" in prompt
        if skill.task in NEEDS_IMAGE and is_engine_input and prompt["type"] != "multimodal":
            raise SkillError(f"{skill.task} needs an image", "image_url")
    if asked == photon_args(params.extra_args):
        return params
    params = params.clone()
    params.extra_args = {**(params.extra_args or {}), **asked}
    return params
