"""What a chat request asks for, in each of the forms that clients have."""

from __future__ import annotations

from typing import Any

import pytest
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.exceptions import VLLMValidationError

from vllm_photon.entrypoints.chat import with_skill
from vllm_photon.entrypoints.conversation import conversation_of

IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


def request(text: str | list[Any] = "cat", **fields: Any) -> ChatCompletionRequest:
    return ChatCompletionRequest(messages=[{"role": "user", "content": text}], **fields)


def asked(chat: ChatCompletionRequest) -> dict[str, Any]:
    """The arguments that the renderer sees; the same when it is asked again."""
    seen = [
        with_skill(chat, chat.build_chat_params(None, "auto")).chat_template_kwargs
        for _ in range(2)
    ]
    assert seen[0] == seen[1]
    return {k: v for k, v in seen[0].items() if k.startswith("photon_")}


def test_nothing_of_ours() -> None:
    chat = request()
    assert asked(chat) == {}
    assert chat.temperature is None


def test_a_search_is_greedy_unless_told() -> None:
    chat = request(vllm_xargs={"photon_task": "point"})
    assert asked(chat) == {"photon_task": "point"}
    assert chat.temperature == 0
    warm = request(vllm_xargs={"photon_task": "point"}, temperature=0.5)
    asked(warm)
    assert warm.temperature == 0.5
    question = request(vllm_xargs={"photon_task": "query"})
    asked(question)
    assert question.temperature is None


def test_a_command_becomes_arguments_and_text() -> None:
    chat = request([IMAGE, {"type": "text", "text": '/detect {"object": "cat", "max_objects": 2}'}])
    assert asked(chat) == {"photon_task": "detect", "photon_max_objects": 2}
    assert chat.vllm_xargs == {"photon_task": "detect", "photon_max_objects": 2}
    assert chat.temperature == 0
    assert chat.messages[-1]["content"] == [IMAGE, {"type": "text", "text": "cat"}]


def test_a_command_as_a_bare_part() -> None:
    chat = request(['/point {"object": "cat"}', IMAGE])
    assert asked(chat) == {"photon_task": "point"}
    assert chat.messages[-1]["content"] == [IMAGE, {"type": "text", "text": "cat"}]


def test_a_command_with_references() -> None:
    chat = request('/query {"question": "Why?", "spatial_refs": [[0.5, 0.5]], "reasoning": true}')
    assert asked(chat)["photon_spatial_refs"] == "[[0.5, 0.5]]"
    assert chat.vllm_xargs["photon_reasoning"] is True
    assert conversation_of(chat.messages).last == "Why?"


def test_a_command_beside_arguments() -> None:
    chat = request('/point {"object": "cat"}', vllm_xargs={"other": 1})
    assert asked(chat) == {"photon_task": "point"}
    assert chat.vllm_xargs == {"other": 1, "photon_task": "point"}


def test_where_the_skill_is_named_the_text_is_no_command() -> None:
    text = '/point {"object": "cat"}'
    for where in ("vllm_xargs", "chat_template_kwargs"):
        chat = request(text, **{where: {"photon_task": "detect"}})
        assert asked(chat) == {"photon_task": "detect"}
        assert conversation_of(chat.messages).last == text


@pytest.mark.parametrize(
    ("fields", "reasons"),
    [
        ({"reasoning": True}, True),
        ({"reasoning": False}, False),
        ({"reasoning_effort": "high"}, True),
        ({"reasoning_effort": "none"}, False),
        ({"chat_template_kwargs": {"enable_thinking": True}}, True),
        ({"reasoning": True, "vllm_xargs": {"photon_task": "query"}}, True),
        ({"reasoning": False, "vllm_xargs": {"photon_reasoning": 1, "photon_task": "query"}}, True),
    ],
)
def test_reasoning_by_any_name(fields: dict[str, Any], reasons: bool) -> None:
    arguments = asked(request(**fields))
    assert bool(arguments.get("photon_reasoning")) is reasons
    assert not reasons or arguments["photon_task"] == "query"


@pytest.mark.parametrize(
    ("field", "chat"),
    [
        ("messages", request("/detect cat")),
        ("photon_max_objects", request('/point {"object": "x", "max_objects": 0}')),
        (
            "photon_max_objects",
            request('/point {"max_objects": 2}', vllm_xargs={"photon_max_objects": 3}),
        ),
        ("reasoning", request(reasoning="yes")),
        ("truncate_prompt_tokens", request(truncate_prompt_tokens=5)),
        ("photon_reasoning", request(reasoning=True, vllm_xargs={"photon_task": "point"})),
        ("photon_length", request('/caption {"length": "endless"}')),
        (
            "photon_task",
            request(
                vllm_xargs={"photon_task": "point"}, chat_template_kwargs={"photon_task": "detect"}
            ),
        ),
    ],
)
def test_mistakes_name_the_field(field: str, chat: ChatCompletionRequest) -> None:
    with pytest.raises(VLLMValidationError) as caught:
        asked(chat)
    assert caught.value.parameter == field
