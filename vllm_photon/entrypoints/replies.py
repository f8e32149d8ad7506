"""vLLM's chat answers in the form of Moondream's HTTP interface, whole or in pieces."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol

from pydantic import BaseModel, Field

from vllm_photon.entrypoints.wire import SkillRequest
from vllm_photon.spatial.prompts import ModelSkills
from vllm_photon.spatial.reasoning import read_reasoning
from vllm_photon.spatial.results import SegmentAssembler
from vllm_photon.spatial.skills import Task

# Gives the text of ordinary ids without special tokens.
Decode = Callable[[list[int]], str]


class _Reply(BaseModel):
    request_id: str
    finish_reason: str | None = Field(description="stop, or length when the answer was cut")
    usage: dict[str, Any]


class Point(BaseModel):
    """A point, as shares of the image sides."""

    x: float
    y: float


class Box(BaseModel):
    """A box, as shares of the image sides."""

    x_min: float
    y_min: float
    x_max: float
    y_max: float


class PointReply(_Reply):
    """The points found, maybe none."""

    points: list[Point]


class DetectReply(_Reply):
    """The boxes found, maybe none."""

    objects: list[Box]


class CaptionReply(_Reply):
    """A description. Streamed: ``{"chunk": …}`` until ``{"completed": true}``."""

    caption: str


class Grounding(BaseModel):
    """Characters of the reasoning, and the points [x, y] that they speak of."""

    start_idx: int
    end_idx: int
    points: list[list[float]]


class Reasoning(BaseModel):
    """What was thought before the answer."""

    text: str
    grounding: list[Grounding]


class QueryReply(_Reply):
    """An answer. Streamed as a caption; the reasoning first, as ``{"reasoning_chunk": …}``."""

    answer: str
    reasoning: Reasoning | None = None


class SegmentReply(_Reply):
    """An outline as an SVG path in shares of its box.

    Streamed by ``type``: ``bbox``, ``path_delta`` with a ``chunk``, ``final`` with both.
    """

    path: str
    bbox: Box | None = None


def whole_fields(
    request: SkillRequest, choice: Any, skills: ModelSkills, decode: Decode
) -> dict[str, Any]:
    """A reply's own fields, from the choice of a chat answer."""
    text = choice.message.content or ""
    if request.task is Task.CAPTION:
        return {"caption": text}
    if request.task is not Task.QUERY:
        return json.loads(text)
    return {"answer": text, **_reasoning(request, choice.token_ids, skills, decode)}


def _reasoning(
    request: SkillRequest, token_ids: list[int], skills: ModelSkills, decode: Decode
) -> dict[str, Any]:
    if not getattr(request, "reasoning", False):
        return {}
    return {"reasoning": read_reasoning(token_ids, skills, decode)}


class _Teller(Protocol):
    """Makes the events of one stream."""

    def push(self, choice: dict[str, Any]) -> list[dict[str, Any]]:
        """The events of one chunk of the chat answer."""
        ...

    def end(self) -> list[dict[str, Any]]:
        """The events that are left; the last of them ends the stream."""
        ...


class _TextTeller:
    def __init__(self, request: SkillRequest, skills: ModelSkills, decode: Decode) -> None:
        self._context = request, skills, decode
        self._ids: list[int] = []

    def push(self, choice: dict[str, Any]) -> list[dict[str, Any]]:
        self._ids += choice.get("token_ids") or []
        delta = choice["delta"]
        named = {"reasoning_chunk": delta.get("reasoning"), "chunk": delta.get("content")}
        return [{name: text, "completed": False} for name, text in named.items() if text]

    def end(self) -> list[dict[str, Any]]:
        request, skills, decode = self._context
        return [_reasoning(request, self._ids, skills, decode)]


class _SegmentTeller:
    def __init__(self, skills: ModelSkills, decode: Decode) -> None:
        self._segment = SegmentAssembler(skills.vocab, lambda token_id: decode([token_id]))
        self._told = 0
        self._bbox_told = False

    def push(self, choice: dict[str, Any]) -> list[dict[str, Any]]:
        for token_id in choice.get("token_ids") or []:
            self._segment.push(token_id)
        return self._news()

    def _news(self) -> list[dict[str, Any]]:
        events: list[dict[str, Any]] = []
        if self._segment.bbox is not None and not self._bbox_told:
            self._bbox_told = True
            events.append({"type": "bbox", "bbox": self._segment.bbox._asdict()})
        if chunk := self._segment.path[self._told :]:
            self._told += len(chunk)
            events.append({"type": "path_delta", "chunk": chunk, "completed": False})
        return events

    def end(self) -> list[dict[str, Any]]:
        self._segment.tail()
        bbox = self._segment.bbox
        final = {"path": self._segment.path, "bbox": None if bbox is None else bbox._asdict()}
        return [*self._news(), {"type": "final", **final}]


async def streamed(
    request: SkillRequest, chunks: AsyncIterator[str], skills: ModelSkills, decode: Decode
) -> AsyncIterator[str]:
    """vLLM's chat stream as Moondream's events; the last one says ``"completed": true``."""
    teller: _Teller = (
        _SegmentTeller(skills, decode)
        if request.task is Task.SEGMENT
        else _TextTeller(request, skills, decode)
    )
    last: dict[str, Any] = {"completed": True, "finish_reason": None}
    async for chunk in chunks:
        data = chunk.removeprefix("data: ").strip()
        if data == "[DONE]":
            break
        body = json.loads(data)
        if "error" in body:
            yield _event(body)
            return
        last["request_id"] = body["id"]
        if body.get("usage"):
            last["usage"] = body["usage"]
        for choice in body["choices"]:
            last["finish_reason"] = choice.get("finish_reason") or last["finish_reason"]
            for event in teller.push(choice):
                yield _event(event)
    *left, final = teller.end()
    for event in left:
        yield _event(event)
    yield _event({**final, **last})


def _event(body: dict[str, Any]) -> str:
    return f"data: {json.dumps(body)}\n\n"
