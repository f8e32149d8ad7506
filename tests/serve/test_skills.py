"""Questions, captions and reasoning over HTTP: ids as the reference code fed them, and every form.

The oracle's answers hold at most 16 tokens of reasoning and 16 of text.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest
from tokenizers import Tokenizer

from tests.serve.oracle import MAX_OBJECTS, cases
from tests.serve.server import DATA
from vllm_photon.spatial import Answer, Point, parse, parse_ids
from vllm_photon.spatial.tokens import Coord, SpatialVocab

VOCAB = SpatialVocab(600)
ORACLE = json.loads((DATA / "md2" / "oracle.json").read_text())
QUESTION = Tokenizer.from_file(str(DATA / "md2" / "tokenizer.json")).decode(
    [97, 82, 298, 367, 419, 448]
)
LIMIT = 16
BUSY = next(case for case in cases() if str(case) == "detect-def-1")
REASONING = {"photon_task": "query", "photon_reasoning": 1, "photon_max_reasoning_tokens": LIMIT}


def fed(entry: dict[str, Any]) -> list[int]:
    """What the reference fed, values as ids."""
    return [
        item if isinstance(item, int) else VOCAB.encode(Coord(VOCAB.coord_bin(item["coord"])))
        for item in entry["fed"]
    ]


def content(image_url: str | None, text: str) -> list[dict[str, Any]]:
    image = [] if image_url is None else [{"type": "image_url", "image_url": {"url": image_url}}]
    return [*image, {"type": "text", "text": text}]


def ask(
    chat: openai.OpenAI, image_url: str | None, text: str, xargs: dict[str, Any], **settings: Any
) -> Any:
    return chat.chat.completions.create(
        model="moondream",
        messages=[{"role": "user", "content": content(image_url, text)}],
        extra_body={"vllm_xargs": xargs, "return_token_ids": True},
        temperature=0,
        **settings,
    )


def check_ids(reply: Any, entry: dict[str, Any], image_len: int) -> None:
    """Prompt and answer are what the reference fed, up to where it stopped."""
    prompt = [i for i in reply.prompt_token_ids if i != VOCAB.image_id]
    ids = list(reply.choices[0].token_ids)
    expected = fed(entry)
    start = prompt if image_len == 0 else prompt[1:]
    got = start + ids
    if got[-1] == 0:
        got.pop()
    assert got == expected
    assert len(reply.prompt_token_ids) == len(prompt) + image_len == reply.usage.prompt_tokens
    assert reply.usage.completion_tokens == len(ids)
    assert reply.choices[0].finish_reason == ("stop" if ids[-1] == 0 else "length")


@pytest.mark.parametrize("image", [0, 1])
@pytest.mark.parametrize("length", ["short", "normal", "long"])
def test_captions(chat: openai.OpenAI, image_urls: list[str], image: int, length: str) -> None:
    xargs = {"photon_task": "caption", "photon_length": length}
    reply = ask(chat, image_urls[image], "", xargs, max_tokens=LIMIT)
    check_ids(reply, ORACLE[image]["caption"][length], image_len=729)
    assert reply.choices[0].message.content == ORACLE[image]["caption"][length]["out"]["caption"]


@pytest.mark.parametrize("image", [0, 1])
def test_questions(chat: openai.OpenAI, image_urls: list[str], image: int) -> None:
    reply = ask(chat, image_urls[image], QUESTION, {"photon_task": "query"}, max_tokens=LIMIT)
    check_ids(reply, ORACLE[image]["query"], image_len=729)


def test_questions_without_an_image(chat: openai.OpenAI) -> None:
    reply = ask(chat, None, QUESTION, {"photon_task": "query"}, max_tokens=LIMIT)
    check_ids(reply, ORACLE[2]["query text-only"], image_len=0)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("image", [0, 1])
def test_reasoning(chat: openai.OpenAI, image_urls: list[str], image: int, stream: bool) -> None:
    entry = ORACLE[image]["query reasoning"]
    settings: dict[str, Any] = {"max_tokens": 2 * LIMIT + 1}
    whole = ask(chat, image_urls[image], QUESTION, REASONING, **settings)
    check_ids(whole, entry, image_len=729)
    message = whole.choices[0].message
    assert message.reasoning == entry["out"]["reasoning"]["text"]
    assert message.content == entry["out"]["answer"]
    assert whole.usage.completion_tokens_details.reasoning_tokens == LIMIT
    points = [
        Point(*point) for part in entry["out"]["reasoning"]["grounding"] for point in part["points"]
    ]
    assert parse_ids(whole.choices[0].token_ids, VOCAB).points == tuple(points)
    if stream:
        chunks = list(
            ask(
                chat,
                image_urls[image],
                QUESTION,
                REASONING,
                stream=True,
                stream_options={"include_usage": True},
                **settings,
            )
        )
        deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
        assert "".join(getattr(d, "reasoning", None) or "" for d in deltas) == message.reasoning
        assert "".join(delta.content or "" for delta in deltas) == message.content
        ids = [i for c in chunks if c.choices for i in getattr(c.choices[0], "token_ids", []) or []]
        assert ids == whole.choices[0].token_ids
        assert chunks[-1].usage == whole.usage


def test_reasoning_has_logprobs(chat: openai.OpenAI, image_urls: list[str]) -> None:
    reply = ask(
        chat, image_urls[0], QUESTION, REASONING, max_tokens=40, logprobs=True, top_logprobs=1
    )
    entries = reply.choices[0].logprobs.content
    assert len(entries) == len(reply.choices[0].token_ids)
    assert any(entry.token.startswith("<|coord_") for entry in entries)
    assert all(-9999 < entry.logprob <= 0 for entry in entries)


def test_reasoning_cut_short_has_no_answer(chat: openai.OpenAI, image_urls: list[str]) -> None:
    reply = ask(chat, image_urls[0], QUESTION, REASONING, max_tokens=5)
    assert reply.choices[0].finish_reason == "length"
    assert reply.choices[0].message.content is None
    assert reply.choices[0].message.reasoning
    assert reply.usage.completion_tokens_details.reasoning_tokens == 5


@pytest.mark.parametrize("stream", [False, True])
def test_a_skill_in_plain_text(chat: openai.OpenAI, image_urls: list[str], stream: bool) -> None:
    text = json.dumps({"object": BUSY.object, "max_objects": MAX_OBJECTS})
    message = {"role": "user", "content": content(image_urls[1], f"/detect {text}")}
    system = {"role": "system", "content": "You are a helpful assistant."}
    reply = chat.chat.completions.create(
        model="moondream", messages=[system, message], stream=stream
    )
    if stream:
        answer = "".join(chunk.choices[0].delta.content or "" for chunk in reply)
    else:
        answer = reply.choices[0].message.content
    BUSY.check(json.loads(answer))


def test_a_caption_in_plain_text(chat: openai.OpenAI, image_urls: list[str]) -> None:
    by_text, by_xargs = (
        ask(chat, image_urls[1], text, xargs, max_tokens=4)
        for text, xargs in [
            ('/caption {"length": "long"}', {}),
            ("", {"photon_task": "caption", "photon_length": "long"}),
        ]
    )
    assert by_text.prompt_token_ids == by_xargs.prompt_token_ids


def test_a_question_in_plain_text_to_completions(chat: openai.OpenAI) -> None:
    prompt = f"/query {json.dumps({'question': QUESTION})}"
    reply = chat.completions.create(
        model="moondream",
        prompt=prompt,
        max_tokens=LIMIT,
        temperature=0,
        extra_body={"return_token_ids": True},
    )
    choice = reply.choices[0]
    assert choice.prompt_token_ids == [0, 1, 304, 2, 97, 82, 298, 367, 419, 448, 3, 3]


@pytest.mark.parametrize("task", ["query", "point"])
def test_references_enter_the_prompt(http: httpx.Client, image_urls: list[str], task: str) -> None:
    """A point of two positions and a box of three, in the places of their values."""
    subject = "question" if task == "query" else "object"
    body = {"image_url": image_urls[1], subject: "def"}
    settings = {"max_tokens": 8, "temperature": 0}
    plain = http.post(f"/{task}", json={**body, "settings": settings}).json()
    refs = [[0.5, 0.25], [0.1, 0.2, 0.5, 1.0]]
    with_refs = http.post(f"/{task}", json={**body, "settings": settings, "spatial_refs": refs})
    assert with_refs.status_code == 200, with_refs.text
    more = with_refs.json()["usage"]["prompt_tokens"] - plain["usage"]["prompt_tokens"]
    assert more == 5


def test_reasoning_over_the_endpoint(http: httpx.Client, image_urls: list[str]) -> None:
    """Whole and streamed alike; the reasoning ends by itself or at the limit."""
    body = {
        "image_url": image_urls[0],
        "question": QUESTION,
        "reasoning": True,
        "settings": {"temperature": 0, "max_tokens": LIMIT},
    }
    whole = http.post("/query", json=body).json()
    assert whole["reasoning"] == ORACLE[0]["query reasoning"]["out"]["reasoning"]
    assert whole["answer"] == ""
    points = ORACLE[0]["query reasoning"]["out"]["reasoning"]["grounding"][0]["points"]
    assert parse(whole) == Answer(points=tuple(Point(*point) for point in points))
    with http.stream("POST", "/query", json={**body, "stream": True}) as response:
        events = [json.loads(line.removeprefix("data: ")) for line in response.iter_lines() if line]
    assert "".join(e.get("reasoning_chunk", "") for e in events) == whole["reasoning"]["text"]
    assert events[-1]["reasoning"] == whole["reasoning"]
    assert events[-1]["usage"] == whole["usage"]
    assert events[-1]["completed"] is True


def test_all_skills_at_once(chat: openai.OpenAI, image_urls: list[str]) -> None:
    """What each answers alone, it answers among the others."""
    cases: list[tuple[str | None, str, dict[str, Any]]] = [
        (image_urls[0], QUESTION, REASONING),
        (image_urls[1], QUESTION, REASONING),
        (image_urls[1], BUSY.object, {"photon_task": "detect", "photon_max_objects": 3}),
        (image_urls[1], BUSY.object, {"photon_task": "point", "photon_max_objects": 5}),
        (image_urls[1], "", {"photon_task": "caption"}),
        (None, "return a", {"photon_task": "query"}),
        (image_urls[0], "def f", {"photon_task": "query", "photon_spatial_refs": "[[0.5, 0.5]]"}),
        (image_urls[1], "def f", {}),
    ]

    def ids(case: tuple[str | None, str, dict[str, Any]]) -> list[int]:
        return ask(chat, *case, max_tokens=40).choices[0].token_ids

    alone = [ids(case) for case in cases]
    with ThreadPoolExecutor(len(cases)) as pool:
        for _ in range(2):
            assert list(pool.map(ids, cases)) == alone


def test_docs(http: httpx.Client) -> None:
    spec = httpx.get(str(http.base_url).replace("/v1/", "/openapi.json"), timeout=120).json()
    for task in ("query", "caption", "point", "detect", "segment"):
        post = spec["paths"][f"/v1/{task}"]["post"]
        assert post["tags"] == ["Moondream"]
        assert post["description"]
        sent = post["requestBody"]["content"]["application/json"]["schema"]["$ref"]
        assert sent.endswith(f"{task.capitalize()}Request")
        got = post["responses"]["200"]["content"]["application/json"]["schema"]["$ref"]
        assert got.endswith(f"{task.capitalize()}Reply")
        assert "400" in post["responses"]
