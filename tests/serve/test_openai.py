"""The openai client: points and boxes through chat, whole, streamed and many at once."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

from tests.serve.oracle import MAX_OBJECTS, Case, cases

CASES = cases()
BUSY = next(c for c in CASES if str(c) == "detect-def-1")


def ask(
    chat: openai.OpenAI,
    image_url: str | None,
    text: str,
    task: str | None = None,
    max_objects: int | None = MAX_OBJECTS,
    extra_body: dict[str, Any] | None = None,
    **settings: Any,
) -> Any:
    content: list[dict[str, Any]] = [{"type": "text", "text": text}]
    if image_url is not None:
        content.append({"type": "image_url", "image_url": {"url": image_url}})
    arguments: dict[str, Any] = {} if task is None else {"photon_task": task}
    if task is not None and max_objects is not None:
        arguments["photon_max_objects"] = max_objects
    return chat.chat.completions.create(
        model="moondream",
        messages=[{"role": "user", "content": content}],
        extra_body={"vllm_xargs": arguments, **(extra_body or {})},
        **settings,
    )


def ask_case(chat: openai.OpenAI, image_urls: list[str], case: Case, **settings: Any) -> Any:
    return ask(chat, image_urls[case.image], case.object, case.task, **settings)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_alone(chat: openai.OpenAI, image_urls: list[str], case: Case) -> None:
    reply = ask_case(chat, image_urls, case)
    choice = reply.choices[0]
    case.check(json.loads(choice.message.content))
    assert choice.finish_reason == "stop"
    per_object = {"point": 2, "detect": 3}[case.task]
    (objects,) = case.expected.values()
    assert reply.usage.completion_tokens == per_object * len(objects) + 1


def test_eight_at_once(chat: openai.OpenAI, image_urls: list[str]) -> None:
    def check(case: Case) -> None:
        case.check(json.loads(ask_case(chat, image_urls, case).choices[0].message.content))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(check, CASES))


def test_streamed_object_by_object(chat: openai.OpenAI, image_urls: list[str]) -> None:
    stream = ask_case(chat, image_urls, BUSY, stream=True, stream_options={"include_usage": True})
    chunks = list(stream)
    texts = [c.choices[0].delta.content for c in chunks if c.choices]
    texts = [text for text in texts if text]
    BUSY.check(json.loads("".join(texts)))
    # vLLM puts together what a slow reader has not fetched yet, but objects stay whole.
    for end in range(1, len(texts)):
        objects = json.loads("".join(texts[:end]) + "]}")["objects"]
        assert all(len(found) == 4 for found in objects)
    assert chunks[-1].usage.completion_tokens == 3 * MAX_OBJECTS + 1
    finish = [c.choices[0].finish_reason for c in chunks if c.choices]
    assert finish[-1] == "stop"


@pytest.mark.parametrize("stream", [False, True])
def test_cut_by_length_is_still_json(
    chat: openai.OpenAI, image_urls: list[str], stream: bool
) -> None:
    reply = ask_case(chat, image_urls, BUSY, max_tokens=5, stream=stream)
    if stream:
        choices = [chunk.choices[0] for chunk in reply]
        text = "".join(choice.delta.content or "" for choice in choices)
        reason = choices[-1].finish_reason
    else:
        text, reason = reply.choices[0].message.content, reply.choices[0].finish_reason
    assert len(json.loads(text)["objects"]) == 1
    assert reason == "length"


def test_ids_and_logprobs(chat: openai.OpenAI, image_urls: list[str]) -> None:
    reply = ask_case(
        chat,
        image_urls,
        BUSY,
        logprobs=True,
        top_logprobs=2,
        extra_body={"return_token_ids": True, "vllm_xargs": {"photon_task": "detect"}},
    )
    ids = reply.choices[0].token_ids
    entries = reply.choices[0].logprobs.content
    assert len(entries) == len(ids)
    assert [i >= 600 for i in ids] == [True] * (len(ids) - 1) + [False]
    assert [entry.token.split("_")[0] for entry in entries[:3]] == ["<|coord", "<|coord", "<|size"]
    assert all(-9999 < entry.logprob <= 0 for entry in entries)
    # A coordinate must come second, so its probability is 1 whatever the model thinks.
    assert len(reply.prompt_token_ids) == reply.usage.prompt_tokens


def test_several_choices(chat: openai.OpenAI, image_urls: list[str]) -> None:
    reply = ask_case(chat, image_urls, BUSY, n=2, temperature=0.5, seed=1)
    assert len(reply.choices) == 2
    for choice in reply.choices:
        assert "objects" in json.loads(choice.message.content)


def test_skill_in_template_kwargs(chat: openai.OpenAI, image_urls: list[str]) -> None:
    """The other way to name the skill, the same as with ``LLM.chat``."""
    arguments = {"photon_task": "detect", "photon_max_objects": MAX_OBJECTS}
    reply = ask(
        chat,
        image_urls[1],
        "def",
        extra_body={"chat_template_kwargs": arguments},
        temperature=0,
    )
    BUSY.check(json.loads(reply.choices[0].message.content))


def test_text_beside_objects(chat: openai.OpenAI, image_urls: list[str]) -> None:
    """A question without a skill, with and without an image, while others search."""

    def question(image_url: str | None) -> tuple[str, int]:
        reply = ask(
            chat,
            image_url,
            "def f",
            max_tokens=8,
            temperature=0,
            extra_body={"return_token_ids": True},
        )
        return tuple(reply.choices[0].token_ids), reply.usage.prompt_tokens

    alone = [question(None), question(image_urls[1])]
    assert alone[1][1] == alone[0][1] + 729
    # A plain answer holds no values: the coordinate token is a token like any other.
    assert all(i < 600 for ids, _ in alone for i in ids)
    with ThreadPoolExecutor(4) as pool:
        searches = [pool.submit(ask_case, chat, image_urls, BUSY) for _ in range(2)]
        together = list(pool.map(question, [None, image_urls[1]]))
        for search in searches:
            BUSY.check(json.loads(search.result().choices[0].message.content))
    assert together == alone


def test_completions(chat: openai.OpenAI) -> None:
    reply = chat.completions.create(
        model="moondream", prompt="return a", max_tokens=6, temperature=0, logprobs=1
    )
    again = chat.completions.create(
        model="moondream", prompt="return a", max_tokens=6, temperature=0, stream=True
    )
    assert "".join(chunk.choices[0].text for chunk in again) == reply.choices[0].text
    assert reply.choices[0].logprobs is not None


@pytest.mark.parametrize("stream", [False, True])
def test_responses(chat: openai.OpenAI, image_urls: list[str], stream: bool) -> None:
    content: list[Any] = [
        {"type": "input_text", "text": BUSY.object},
        {"type": "input_image", "image_url": image_urls[BUSY.image], "detail": "auto"},
    ]
    reply: Any = chat.responses.create(
        model="moondream",
        input=[{"role": "user", "content": content}],
        extra_body={"vllm_xargs": {"photon_task": BUSY.task, "photon_max_objects": MAX_OBJECTS}},
        stream=stream,
    )
    if stream:
        reply = next(event.response for event in reply if event.type == "response.completed")
    BUSY.check(json.loads(reply.output_text))


def test_conversation(chat: openai.OpenAI) -> None:
    reply = chat.chat.completions.create(
        model="moondream",
        messages=[
            {"role": "system", "content": "def"},
            {"role": "user", "content": "import os"},
            {"role": "assistant", "content": "return a"},
            {"role": "user", "content": "None"},
        ],
        max_tokens=4,
        temperature=0,
    )
    assert reply.choices[0].finish_reason in ("stop", "length")


def test_models_and_docs(chat: openai.OpenAI) -> None:
    assert [model.id for model in chat.models.list()] == ["moondream"]
