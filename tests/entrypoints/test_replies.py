"""Moondream's events made of vLLM's chat stream."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from vllm_photon.entrypoints import wire
from vllm_photon.entrypoints.replies import streamed
from vllm_photon.spatial.prompts import ModelSkills
from vllm_photon.spatial.results import box_from
from vllm_photon.spatial.tokens import Coord, Size, SpatialVocab

VOCAB = SpatialVocab(600)
SKILLS = ModelSkills(VOCAB, {}, third=True)
X, Y, SIZE = (VOCAB.encode(token) for token in (Coord(512), Coord(256), Size(700, 600)))
IMAGE = "data:image/png;base64,AAAA"
USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}


def decode(token_ids: list[int]) -> str:
    return "".join(chr(i) for i in token_ids if i > 20)


def chunk(ids: list[int] | None = None, finish: str | None = None, **delta: str) -> dict[str, Any]:
    return {"choices": [{"delta": delta, "finish_reason": finish, "token_ids": ids}]}


def events(request: wire.SkillRequest, *chunks: dict[str, Any]) -> list[dict[str, Any]]:
    async def source() -> AsyncIterator[str]:
        yield f"data: {json.dumps({'id': 'r', **chunk(role='assistant', content='')})}\n\n"
        for body in [*chunks, {"choices": [], "usage": USAGE}]:
            yield f"data: {json.dumps({'id': 'r', **body})}\n\n"
        yield "data: [DONE]\n\n"

    async def collect() -> list[str]:
        return [event async for event in streamed(request, source(), SKILLS, decode)]

    found = asyncio.run(collect())
    assert all(event.startswith("data: ") and event.endswith("\n\n") for event in found)
    return [json.loads(event[6:]) for event in found]


def test_text() -> None:
    request = wire.CaptionRequest(image_url=IMAGE, stream=True)
    assert events(request, chunk([97], content="A"), chunk([98], "stop", content=" car")) == [
        {"chunk": "A", "completed": False},
        {"chunk": " car", "completed": False},
        {"completed": True, "finish_reason": "stop", "request_id": "r", "usage": USAGE},
    ]


def test_reasoning_comes_first_and_whole_at_the_end() -> None:
    request = wire.QueryRequest(question="?", reasoning=True, stream=True)
    *pieces, last = events(
        request,
        chunk([97, 98, X], reasoning="ab"),
        chunk([Y, 7, 99], reasoning="c"),
        chunk([3, 100, 0], "length", reasoning="", content="d"),
    )
    assert pieces == [
        {"reasoning_chunk": "ab", "completed": False},
        {"reasoning_chunk": "c", "completed": False},
        {"chunk": "d", "completed": False},
    ]
    assert last["reasoning"] == {
        "text": "abc",
        "grounding": [{"start_idx": 0, "end_idx": 2, "points": [[0.5, 0.25]]}],
    }
    assert last["completed"] is True
    assert last["finish_reason"] == "length"


@pytest.mark.parametrize("together", [1, 2, 3, 20])
def test_segments(together: int) -> None:
    request = wire.SegmentRequest(image_url=IMAGE, object="cat", stream=True)
    ids = [X, Y, SIZE, *map(ord, "M00L99Z"), 0]
    pieces = [chunk(ids[at : at + together]) for at in range(0, len(ids), together)]
    *found, last = events(request, *pieces, chunk([], "stop"))
    bbox = box_from(VOCAB, Coord(512), Coord(256), Size(700, 600))._asdict()
    path = "M 0 0 L 0.009 0.009 Z"
    assert found[0] == {"type": "bbox", "bbox": bbox}
    assert {event["type"] for event in found[1:]} == {"path_delta"}
    assert "".join(event["chunk"] for event in found[1:]) == path
    assert last == {
        "type": "final",
        "path": path,
        "bbox": bbox,
        "completed": True,
        "finish_reason": "stop",
        "request_id": "r",
        "usage": USAGE,
    }


def test_nothing_to_outline() -> None:
    request = wire.SegmentRequest(image_url=IMAGE, object="cat", stream=True)
    (last,) = events(request, chunk([0], "stop"))
    assert (last["type"], last["path"], last["bbox"]) == ("final", "", None)


def test_an_error_ends_the_stream() -> None:
    request = wire.CaptionRequest(image_url=IMAGE, stream=True)
    error = {"error": {"message": "gone", "code": 500}}
    found = events(request, chunk([97], content="A"), error, chunk([98], content="B"))
    assert [set(event) & {"chunk", "error", "completed"} for event in found] == [
        {"chunk", "completed"},
        {"error"},
    ]
