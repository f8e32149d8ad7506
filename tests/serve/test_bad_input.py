"""Every mistake of a client: HTTP 400 in vLLM's shape that names the field, never a stream."""

from __future__ import annotations

import base64
import io
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from PIL import Image

from tests.serve.oracle import MAX_OBJECTS, cases
from tests.serve.server import DATA, data_url

GOOD = next(c for c in cases() if str(c) == "point-def-1")
PNG = (DATA / "md2" / "image1.png").read_bytes()
IMAGE = data_url(PNG)
SUBJECT = {
    "query": {"question": "def"},
    **{task: {"object": "def"} for task in ("point", "detect", "segment")},
}


def check(response: httpx.Response, field: str) -> None:
    assert response.status_code == 400, response.text[:500]
    assert response.headers["content-type"].startswith("application/json")
    error = response.json()["error"]
    assert error["code"] == 400
    assert field in (error["param"] or "")
    assert error["message"]


def chat_body(
    task: Any = "point",
    text: str = "def",
    images: tuple[str, ...] = (IMAGE,),
    xargs: dict[str, Any] | None = None,
    **fields: Any,
) -> dict[str, Any]:
    content: list[dict[str, Any]] = [
        {"type": "image_url", "image_url": {"url": url}} for url in images
    ]
    content.append({"type": "text", "text": text})
    return {
        "model": "moondream",
        "messages": [{"role": "user", "content": content}],
        "vllm_xargs": {"photon_task": task, **(xargs or {})},
        **fields,
    }


def messages(text: str) -> dict[str, Any]:
    content = [{"type": "image_url", "image_url": {"url": IMAGE}}, {"type": "text", "text": text}]
    return {"messages": [{"role": "user", "content": content}]}


def base64_url(text: str) -> str:
    return f"data:image/png;base64,{text}"


CHAT: dict[str, tuple[str, dict[str, Any]]] = {
    "unknown task": ("photon_task", chat_body("paint")),
    "task is no name": ("photon_task", chat_body(3)),
    "skill of another model": ("photon_task", chat_body("segment")),
    "unknown argument": ("photon_colour", chat_body(xargs={"photon_colour": 1})),
    "blank object": ("messages", chat_body(text="  ")),
    "no image": ("image_url", chat_body(images=())),
    "two images": ("image_url", chat_body(images=(IMAGE, IMAGE))),
    "broken base64": ("image_url", chat_body(images=(base64_url("@@@@"),))),
    "cut base64": ("image_url", chat_body(images=(IMAGE[: len(IMAGE) // 2 // 4 * 4 + 23],))),
    "truncated image": (
        "image_url",
        chat_body(images=(data_url(PNG[: len(PNG) // 2]),)),
    ),
    "no picture at all": (
        "image_url",
        chat_body(images=(base64_url(base64.b64encode(b"hello").decode()),)),
    ),
    "image host unreachable": ("image_url", chat_body(images=("http://127.0.0.1:9/x.png",))),
    "image scheme unknown": ("image_url", chat_body(images=("ftp://127.0.0.1/x.png",))),
    "local file": ("image_url", chat_body(images=("file:///etc/hostname",))),
    "response_format": (
        "structured_outputs",
        chat_body(response_format={"type": "json_object"}),
    ),
    "structured outputs": ("structured_outputs", chat_body(structured_outputs={"regex": "a"})),
    "repetition_penalty": ("repetition_penalty", chat_body(repetition_penalty=1.2)),
    "presence_penalty": ("presence_penalty", chat_body(presence_penalty=0.5)),
    "frequency_penalty": ("frequency_penalty", chat_body(frequency_penalty=0.5)),
    "logit_bias": ("logit_bias", chat_body(logit_bias={"7": 1.0})),
    "allowed_token_ids": ("allowed_token_ids", chat_body(allowed_token_ids=[5])),
    "bad_words": ("bad_words", chat_body(bad_words=["def"])),
    "min_tokens": ("min_tokens", chat_body(min_tokens=3, max_tokens=9)),
    "ignore_eos": ("ignore_eos", chat_body(ignore_eos=True)),
    "stop": ("stop", chat_body(stop=["]"])),
    "beam search": ("use_beam_search", chat_body(use_beam_search=True, n=2)),
    "two ways to name a skill": (
        "photon_task",
        chat_body(chat_template_kwargs={"photon_task": "detect"}, task="point"),
    ),
    "a conversation about an object": (
        "messages",
        {
            **chat_body(),
            "messages": [
                {"role": "user", "content": "a"},
                {"role": "assistant", "content": "b"},
                *chat_body()["messages"],
            ],
        },
    ),
    "no object after a command": (
        "messages",
        {**chat_body(), "vllm_xargs": None, **messages("/detect red car")},
    ),
    "blank object in a command": (
        "messages",
        {**chat_body(), "vllm_xargs": None, **messages('/detect {"object": " "}')},
    ),
    "unknown argument in a command": (
        "messages",
        {**chat_body(), "vllm_xargs": None, **messages('/detect {"object": "x", "size": 3}')},
    ),
    "a command of another model": (
        "photon_task",
        {**chat_body(), "vllm_xargs": None, **messages('/segment {"object": "x"}')},
    ),
    "blank question": ("messages", chat_body("query", " ")),
    "unknown length": ("photon_length", chat_body("caption", xargs={"photon_length": "endless"})),
    "reasoning about an object": (
        "photon_reasoning",
        chat_body("point", xargs={"photon_reasoning": 1}),
    ),
    "references for detect": (
        "photon_spatial_refs",
        chat_body("detect", xargs={"photon_spatial_refs": "[[0.1, 0.2]]"}),
    ),
    "references without an image": (
        "image_url",
        chat_body("query", images=(), xargs={"photon_spatial_refs": "[[0.1, 0.2]]"}),
    ),
    "structured reasoning": (
        "structured_outputs",
        chat_body("query", xargs={"photon_reasoning": 1}, response_format={"type": "json_object"}),
    ),
    **{
        f"references {refs}": (
            "photon_spatial_refs",
            chat_body("point", xargs={"photon_spatial_refs": refs}),
        )
        for refs in ("[[0.1]]", "[[1.1, 0]]", "[[0.9, 0.1, 0.2, 0.3]]", "0.1, 0.2", "[0.1, 0.2]")
    },
    **{
        f"max_objects {value!r}": (
            "photon_max_objects",
            chat_body(xargs={"photon_max_objects": value}),
        )
        for value in (0, -1, "many", 1e9, 1.5)
    },
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", CHAT)
def test_chat(http: httpx.Client, name: str, stream: bool) -> None:
    field, body = CHAT[name]
    check(http.post("/chat/completions", json={**body, "stream": stream}), field)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("field", "xargs"),
    [
        ("image_url", {"photon_task": "point"}),
        ("photon_task", {"photon_task": "paint"}),
        ("photon_task", {"photon_max_objects": 3}),
        ("photon_max_objects", {"photon_task": "point", "photon_max_objects": 0}),
    ],
)
def test_completions(http: httpx.Client, field: str, xargs: dict[str, Any], stream: bool) -> None:
    body = {"model": "moondream", "prompt": "def", "vllm_xargs": xargs, "stream": stream}
    check(http.post("/completions", json=body), field)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("", {"prompt": [[]]}),
        ("", {"prompt": [1, 2_000_000]}),
        ("logprobs", {"logprobs": 21}),
        ("input_tokens", {"prompt": "def " * 5000}),
    ],
)
def test_completions_by_ids(
    http: httpx.Client, field: str, change: dict[str, Any], stream: bool
) -> None:
    body = {"model": "moondream", "prompt": "def", "stream": stream, **change}
    check(http.post("/completions", json=body), field)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("field", "text", "images", "xargs"),
    [
        ("photon_task", "def", (IMAGE,), {"photon_task": "paint"}),
        ("photon_max_objects", "x", (IMAGE,), {"photon_task": "point", "photon_max_objects": 0}),
        ("image_url", "def", (), {"photon_task": "point"}),
        ("image_url", '/point {"object": "def"}', (), {}),
        ("messages", '/point {"object": " "}', (IMAGE,), {}),
    ],
)
def test_responses(
    http: httpx.Client,
    field: str,
    text: str,
    images: tuple[str, ...],
    xargs: dict[str, Any],
    stream: bool,
) -> None:
    content: list[dict[str, Any]] = [
        {"type": "input_image", "image_url": url, "detail": "auto"} for url in images
    ]
    content.append({"type": "input_text", "text": text})
    body = {"model": "moondream", "input": [{"role": "user", "content": content}]}
    check(http.post("/responses", json={**body, "vllm_xargs": xargs, "stream": stream}), field)


@pytest.mark.parametrize("task", ["point", "detect"])
@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("object", {"object": " "}),
        ("object", {"object": None}),
        ("object", {"object": 3}),
        ("image_url", {"image_url": None}),
        ("image_url", {"image_url": ""}),
        ("image_url", {"image_url": base64_url("@@@@")}),
        ("image_url", {"image_url": data_url(PNG[: len(PNG) // 2])}),
        ("image_url", {"image_url": "http://127.0.0.1:9/x.png"}),
        *[
            ("settings.max_objects", {"settings": {"max_objects": value}})
            for value in (0, -1, "many", 10**9, True, 1.5)
        ],
        ("settings.temperature", {"settings": {"temperature": -1}}),
        ("settings.max_tokens", {"settings": {"max_tokens": 0}}),
        ("settings", {"settings": 3}),
        ("max_objects", {"max_objects": 1}),
        ("length", {"length": "short"}),
        ("question", {"question": "How many?"}),
    ],
)
def test_moondream_endpoints(
    http: httpx.Client, task: str, field: str, change: dict[str, Any]
) -> None:
    body = {"image_url": IMAGE, "object": "def", **change}
    check(http.post(f"/{task}", json={k: v for k, v in body.items() if v is not None}), field)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("task", "field", "change"),
    [
        ("caption", "length", {"length": "endless"}),
        ("caption", "length", {"length": 3}),
        ("caption", "image_url", {"image_url": None}),
        ("query", "question", {"question": " \n"}),
        ("query", "question", {"question": None}),
        ("query", "reasoning", {"reasoning": "maybe"}),
        ("query", "image_url", {"image_url": None, "spatial_refs": [[0.1, 0.2]]}),
        ("query", "settings.top_p", {"settings": {"top_p": 1.5}}),
        ("caption", "spatial_refs", {"spatial_refs": [[0.1, 0.2]]}),
        ("detect", "spatial_refs", {"spatial_refs": [[0.1, 0.2]]}),
        ("query", "object", {"object": "cat"}),
        ("segment", "photon_task", {}),
        ("segment", "object", {"object": ""}),
        *[
            (task, "spatial_refs", {"spatial_refs": refs})
            for task in ("query", "point", "segment")
            for refs in (
                [[0.1]],
                [[0.1, 0.2, 0.3]],
                [[1.1, 0]],
                [[-0.1, 0]],
                [[0.9, 0.1, 0.2, 0.3]],
                [["a", "b"]],
                [0.1, 0.2],
                "all",
            )
        ],
    ],
)
def test_other_endpoints(
    http: httpx.Client, task: str, field: str, change: dict[str, Any], stream: bool
) -> None:
    """The field by its own name here; what is allowed is said."""
    body = {"image_url": IMAGE, **SUBJECT.get(task, {}), "stream": stream, **change}
    check(http.post(f"/{task}", json={k: v for k, v in body.items() if v is not None}), field)


def test_what_is_allowed_is_said(http: httpx.Client) -> None:
    said = {
        "caption": ({"length": "endless"}, ["short", "normal", "long"]),
        "segment": ({}, ["caption", "detect", "point", "query"]),
        "query": ({"spatial_refs": [[2, 0]]}, ["[x, y]", "[0, 1]"]),
    }
    for task, (change, words) in said.items():
        body = {"image_url": IMAGE, **SUBJECT.get(task, {}), **change}
        message = http.post(f"/{task}", json=body).json()["error"]["message"]
        assert all(word in message for word in words), message


@pytest.mark.parametrize(
    "mistake",
    [
        {"repetition_penalty": 1.5},
        {"n": 2, "temperature": 0},
        {"text": "def " * 3000},
        {"xargs": {"photon_max_objects": 0}},
    ],
    ids=str,
)
def test_a_refused_image_can_be_asked_again(http: httpx.Client, mistake: dict[str, Any]) -> None:
    """A refusal leaves no trace: the image, new to the server, is processed as if for the first."""
    picture = Image.new("RGB", (40, 30), (len(str(mistake)), 90, 30))
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    images = (data_url(buffer.getvalue()),)
    refused = http.post("/chat/completions", json=chat_body(images=images, **mistake))
    assert refused.status_code == 400, refused.text[:500]
    good = http.post("/chat/completions", json=chat_body(images=images))
    assert good.status_code == 200, good.text[:500]


def test_bad_and_good_requests_for_a_new_image_at_once(http: httpx.Client) -> None:
    """What is refused takes nothing from requests that are being read at the same time."""
    buffer = io.BytesIO()
    Image.new("RGB", (40, 30), (7, 8, 9)).save(buffer, "PNG")
    images = (data_url(buffer.getvalue()),)
    bodies = [chat_body(images=images), chat_body(images=images, presence_penalty=1.0)] * 8
    with ThreadPoolExecutor(16) as pool:
        replies = list(pool.map(lambda body: http.post("/chat/completions", json=body), bodies))
    assert [reply.status_code for reply in replies] == [200, 400] * 8


@pytest.mark.parametrize("path", ["/messages/count_tokens", "/messages"])
def test_an_image_that_never_reached_the_engine_can_be_asked(http: httpx.Client, path: str) -> None:
    buffer = io.BytesIO()
    Image.new("RGB", (40, 30), (len(path), 1, 2)).save(buffer, "PNG")
    source = {
        "type": "base64",
        "media_type": "image/png",
        "data": base64.b64encode(buffer.getvalue()).decode(),
    }
    content = [{"type": "image", "source": source}, {"type": "text", "text": "def"}]
    message = {"role": "user", "content": content}
    body = {"model": "moondream", "max_tokens": 4, "temperature": -1.0, "messages": [message]}
    http.post(path, json=body)
    good = http.post("/chat/completions", json=chat_body(images=(data_url(buffer.getvalue()),)))
    assert good.status_code == 200, good.text[:500]


@pytest.mark.parametrize(
    "mistake",
    [
        {"stop_token_ids": [10**6]},
        {"logprobs": True, "top_logprobs": 21},
        {"repetition_detection": {"max_pattern_size": 4, "min_count": 2}},
        {"xargs": {"photon_spatial_refs": "[" * 100_000}},
    ],
    ids=lambda mistake: str(mistake)[:40],
)
def test_refused_before_the_stream(http: httpx.Client, mistake: dict[str, Any]) -> None:
    response = http.post("/chat/completions", json=chat_body(stream=True, **mistake))
    assert response.status_code == 400, response.text[:500]
    assert response.json()["error"]["code"] == 400


@pytest.mark.parametrize(
    "text", ["/detect " + '{"object":' * 5000, '/detect {"object":' + "[" * 10**5]
)
def test_deep_commands(http: httpx.Client, text: str) -> None:
    body = {"model": "moondream", "messages": [{"role": "user", "content": text}]}
    assert http.post("/chat/completions", json=body).status_code == 400


def test_no_json(http: httpx.Client) -> None:
    response = http.post("/point", content=b"{", headers={"content-type": "application/json"})
    assert response.status_code == 400
    assert response.json()["error"]["message"]


def test_unknown_model(http: httpx.Client) -> None:
    body = {"model": "nobody", "image_url": IMAGE, "object": "def"}
    response = http.post("/point", json=body)
    assert response.status_code == 404
    assert response.json()["error"]["param"] == "model"


def test_other_requests_go_on(http: httpx.Client) -> None:
    """Good requests between bad ones get what they always get."""
    good = {"image_url": IMAGE, "object": "def", "settings": {"max_objects": MAX_OBJECTS}}
    bad = [{**body, "stream": stream} for _, body in CHAT.values() for stream in (False, True)]
    with ThreadPoolExecutor(8) as pool:
        mistakes = [pool.submit(http.post, "/chat/completions", json=body) for body in bad[:24]]
        answers = [pool.submit(http.post, "/point", json=good) for _ in range(4)]
        for answer in answers:
            GOOD.check(answer.result().json())
        assert {mistake.result().status_code for mistake in mistakes} == {400}
