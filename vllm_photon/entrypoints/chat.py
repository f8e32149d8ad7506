"""What a chat request asks of Moondream, made visible to the renderer."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from vllm_photon.entrypoints.admission import bad_request, combined
from vllm_photon.spatial.skills import NEEDS_OBJECT, SkillError, parse_extra_args

_MANY_TOKENS = 2**31 - 1

if TYPE_CHECKING:
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.renderers.params import ChatParams


def with_skill(request: ChatCompletionRequest, params: ChatParams) -> ChatParams:
    """The chat parameters with the skill that the request's ``vllm_xargs`` name.

    A search for objects without a temperature is greedy, as in Moondream's own code; OpenAI's
    default of 1 would draw the end of the list at random. VLLMValidationError names a wrong
    argument.
    """
    with bad_request():
        arguments = combined(request.vllm_xargs, params.chat_template_kwargs)
        skill = parse_extra_args(arguments)
        if skill is None:
            return params
        if skill.is_spatial and request.use_beam_search:
            raise SkillError(f"the skill {skill.task} has no beam search", "use_beam_search")
    if skill.task in NEEDS_OBJECT and request.temperature is None:
        request.temperature = 0.0
    # Refused here, before the image is processed, and not by the handler afterwards.
    request.to_sampling_params(
        request.max_completion_tokens or request.max_tokens or _MANY_TOKENS, {}
    )
    return replace(params, chat_template_kwargs={**params.chat_template_kwargs, **arguments})
