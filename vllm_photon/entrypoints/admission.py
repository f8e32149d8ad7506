"""The checks that a request passes before anything is computed or streamed for it.

A chat prompt is rendered for one skill, and its renderer notes that skill on the engine input; the
sampling parameters name one too, since the grammar reads it there. Here the two are brought
together, and what depends on the model or the prompt is checked. What depends on the sampling
parameters alone is checked by the logits processor's own hook.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from vllm import SamplingParams
from vllm.exceptions import VLLMValidationError

from vllm_photon.spatial.prompts import skills_of
from vllm_photon.spatial.skills import NEEDS_IMAGE, PREFIX, SkillError, Task, parse_extra_args

if TYPE_CHECKING:
    from vllm.config import ModelConfig

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


def admitted(model_config: ModelConfig, prompt: Any, params: Any) -> Any:
    """The parameters to run ``prompt`` with: ``params``, or a copy that carries its skill.

    ``prompt`` is an engine input or a raw prompt; parameters other than SamplingParams pass as
    they are. VLLMValidationError when the model can't serve the request or when prompt and
    parameters disagree.
    """
    if not isinstance(params, SamplingParams):
        return params
    given = photon_args(params.extra_args)
    rendered = prompt.get(RENDERED) if isinstance(prompt, Mapping) else None
    with bad_request():
        if rendered is not None:
            _check_rendered(given, rendered)
        asked = {**(rendered or {}), **given}
        skill = parse_extra_args(asked)
        if skill is None:
            return params
        skills = skills_of(model_config.hf_config)
        if skills is None:
            raise SkillError("this model has no spatial skills", min(asked))
        skills.check(skill)
        if isinstance(prompt, Mapping) and "type" in prompt:
            check_image(skill.task, prompt)
    if asked == given:
        return params
    params = params.clone()
    params.extra_args = {**(params.extra_args or {}), **asked}
    return params


def check_image(task: Task, engine_input: Mapping[str, Any]) -> None:
    """SkillError when the skill needs an image and the engine input has none."""
    if task in NEEDS_IMAGE and engine_input["type"] != "multimodal":
        raise SkillError(f"the skill {task} needs an image", "image_url")


def _check_rendered(given: Mapping[str, Any], rendered: Mapping[str, Any]) -> None:
    """SkillError when the sampling parameters ask for another prompt than was rendered."""
    for name, value in given.items():
        if name not in _NOT_RENDERED and rendered.get(name) != value:
            raise SkillError(
                f"{name} is {value!r}, but the prompt was rendered with "
                f"{rendered.get(name)!r}; give it in chat_template_kwargs",
                name,
            )


def combined(sources: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Our arguments from several places, by the names of the places; SkillError if they differ."""
    found: dict[str, Any] = {}
    origin: dict[str, str] = {}
    for place, arguments in sources.items():
        for name, value in photon_args(arguments).items():
            if name in found and found[name] != value:
                raise SkillError(
                    f"{name} is {found[name]!r} in {origin[name]} and {value!r} in {place}", name
                )
            found[name], origin[name] = value, place
    return found
