"""What a chat request asks of Moondream, made visible to the renderer.

A skill and its arguments may come in ``vllm_xargs``, in ``chat_template_kwargs`` or in the text
itself; reasoning also as OpenAI's ``reasoning_effort``, as ``enable_thinking`` among the template's
arguments, and as the field ``reasoning`` of Moondream's client.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

from vllm_photon.entrypoints.admission import bad_request, combined
from vllm_photon.entrypoints.conversation import conversation_of, is_text
from vllm_photon.spatial.commands import parse_command
from vllm_photon.spatial.skills import NEEDS_OBJECT, SkillError, SkillParams, Task, parse_extra_args

_MANY_TOKENS = 2**31 - 1

if TYPE_CHECKING:
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
    from vllm.renderers.params import ChatParams

    AnyRequest: TypeAlias = ChatCompletionRequest | ResponsesRequest


def with_skill(request: ChatCompletionRequest, params: ChatParams) -> ChatParams:
    """The chat parameters with the skill that the request asks for.

    A search for objects without a temperature is greedy, as in Moondream's own code; OpenAI's
    default of 1 would draw the end of the list at random. VLLMValidationError names a wrong
    argument.
    """
    with bad_request():
        if request.truncate_prompt_tokens is not None:
            raise SkillError(
                "truncate_prompt_tokens would cut off the ids around the question; leave it out",
                "truncate_prompt_tokens",
            )
        arguments = _arguments(request, params.chat_template_kwargs)
        skill = parse_extra_args(arguments)
        if skill is None:
            return params
        if skill.is_spatial and request.use_beam_search:
            raise SkillError(f"the skill {skill.task} has no beam search", "use_beam_search")
    rendered = _rendering(request, params, arguments, skill)
    # Refused here, before the image is processed, and not by the handler afterwards.
    request.to_sampling_params(
        request.max_completion_tokens or request.max_tokens or _MANY_TOKENS, {}
    )
    return rendered


def with_skill_of_response(request: ResponsesRequest, params: ChatParams) -> ChatParams:
    """The same for the Responses API, whose text is read as a command by the renderer only."""
    kwargs = params.chat_template_kwargs
    with bad_request():
        arguments = _with_reasoning(_beside_text(request, kwargs), kwargs.get("enable_thinking"))
        skill = parse_extra_args(arguments)
    return params if skill is None else _rendering(request, params, arguments, skill)


def _rendering(
    request: AnyRequest, params: ChatParams, arguments: dict[str, Any], skill: SkillParams
) -> ChatParams:
    """The parameters that the renderer is given; sets the request's temperature if it has none."""
    if skill.task in NEEDS_OBJECT and request.temperature is None:
        request.temperature = 0.0
    return replace(params, chat_template_kwargs={**params.chat_template_kwargs, **arguments})


def _beside_text(request: AnyRequest, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    return combined({"vllm_xargs": request.vllm_xargs or {}, "chat_template_kwargs": kwargs})


def _arguments(request: ChatCompletionRequest, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """All of the request's arguments of ours."""
    arguments = _beside_text(request, kwargs)
    if "photon_task" not in arguments and _unfold(request):
        return _arguments(request, kwargs)
    thinking = (request.model_extra or {}).get("reasoning", kwargs.get("enable_thinking"))
    return _with_reasoning(arguments, thinking)


def _with_reasoning(arguments: dict[str, Any], thinking: Any) -> dict[str, Any]:
    if thinking is None or "photon_reasoning" in arguments:
        return arguments
    if not isinstance(thinking, bool):
        raise SkillError(f"reasoning must be true or false, got {thinking!r}", "reasoning")
    if thinking:
        return {"photon_task": str(Task.QUERY), **arguments, "photon_reasoning": True}
    return arguments


def _unfold(request: ChatCompletionRequest) -> bool:
    """If the question is a command, write its arguments into ``vllm_xargs`` instead.

    Where a skill is named beside the text, the text is never read as a command: whoever fixes the
    skill may pass on any text.
    """
    messages: list[Any] = request.messages
    command = parse_command(conversation_of(messages).last, "messages")
    if command is None:
        return False
    combined({"vllm_xargs": request.vllm_xargs or {}, "messages": command.arguments})
    flat = {k: json.dumps(v) if isinstance(v, list) else v for k, v in command.arguments.items()}
    request.vllm_xargs = {**(request.vllm_xargs or {}), **flat}
    content = messages[-1]["content"]
    others = [] if isinstance(content, str) else [part for part in content if not is_text(part)]
    messages[-1] = {
        **messages[-1],
        "content": [*others, {"type": "text", "text": command.text}],
    }
    return True
