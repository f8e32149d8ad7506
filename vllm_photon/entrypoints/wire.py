"""The wire form of Moondream's HTTP interface: what each endpoint takes.

The shapes are those of the ``moondream`` Python client (2.6), which talks to its cloud and to a
local server alike. Every request becomes a chat request, so that models, adapters, image limits,
logging and metrics are vLLM's own. What comes back is in :mod:`vllm_photon.entrypoints.replies`.
"""

from __future__ import annotations

import json
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.exceptions import VLLMValidationError

from vllm_photon.entrypoints.admission import bad_request
from vllm_photon.spatial.skills import (
    ARGUMENTS,
    MAX_OBJECTS,
    Length,
    Task,
    clean_object,
    parse_refs,
)

# What Moondream's engine uses when a request leaves them out.
TEXT_TEMPERATURE = 0.2
TEXT_TOP_P = 0.9
MAX_TOKENS = 768

# Parameters of the chat request, by the fields that they are made of.
_FIELDS = {
    "photon_length": "length",
    "photon_max_objects": "settings.max_objects",
    "photon_reasoning": "reasoning",
    "photon_spatial_refs": "spatial_refs",
    "max_completion_tokens": "settings.max_tokens",
}


class Settings(BaseModel):
    """How to sample. ``max_objects`` is for point and detect."""

    temperature: float | None = Field(default=None, ge=0)
    top_p: float | None = Field(default=None, gt=0, le=1)
    max_tokens: int | None = Field(default=None, ge=1, strict=True)
    max_objects: int | None = Field(default=None, ge=1, le=MAX_OBJECTS, strict=True)


class SkillRequest(BaseModel):
    """What all endpoints take; each names its skill and adds its own fields."""

    model_config = ConfigDict(extra="ignore")
    task: ClassVar[Task]
    # The field that becomes the message's text, and whether answers may come in pieces.
    subject: ClassVar[str] = ""
    streams: ClassVar[bool] = False

    model: str | None = Field(
        default=None, description="The served model or adapter; the only one if left out"
    )
    settings: Settings = Field(default_factory=Settings)
    image_url: str | None = Field(
        min_length=1, description="An http(s) address or data:image/jpeg;base64,…"
    )

    @model_validator(mode="before")
    @classmethod
    def _arguments_in_their_place(cls, given: Any) -> Any:
        """What nobody knows is ignored, as the client's cloud does; what has a meaning elsewhere
        and would be lost here is refused."""
        for name in sorted(given) if isinstance(given, dict) else ():
            if given[name] is None or name in cls.model_fields:
                continue
            if name in Settings.model_fields:
                raise VLLMValidationError(f"{name} belongs into settings", parameter=name)
            if name in ARGUMENTS or name in ("object", "question"):
                raise VLLMValidationError(f"{name} is not for {cls.task}", parameter=name)
        return given

    @property
    def wants_stream(self) -> bool:
        """Whether the answer is to come in pieces."""
        return self.streams and bool(getattr(self, "stream", False))

    def field_of(self, parameter: str | None) -> str | None:
        """The field here that a parameter of the chat request was made of."""
        if parameter == "messages":
            return self.subject or parameter
        return _FIELDS.get(parameter or "", parameter)

    def arguments(self) -> dict[str, Any]:
        """The skill's arguments, as ``vllm_xargs``."""
        return {"photon_task": str(self.task)}

    def chat_request(self) -> ChatCompletionRequest:
        """The same request to the chat endpoint."""
        content: list[dict[str, Any]] = []
        if self.image_url is not None:
            content.append({"type": "image_url", "image_url": {"url": self.image_url}})
        content.append({"type": "text", "text": getattr(self, self.subject, "")})
        greedy = self.task not in (Task.QUERY, Task.CAPTION)
        settings = self.settings
        return ChatCompletionRequest(
            model=self.model,
            messages=[{"role": "user", "content": content}],
            stream=self.wants_stream,
            stream_options={"include_usage": True} if self.wants_stream else None,
            temperature=_or(settings.temperature, 0.0 if greedy else TEXT_TEMPERATURE),
            top_p=_or(settings.top_p, 1.0 if greedy else TEXT_TOP_P),
            max_completion_tokens=_or(
                settings.max_tokens, None if self.task is Task.DETECT else MAX_TOKENS
            ),
            vllm_xargs=self.arguments(),
            return_token_ids=True,
        )


class _ObjectRequest(SkillRequest):
    subject = "object"

    image_url: str = Field(min_length=1)
    object: str = Field(description="What to look for")

    @field_validator("object")
    @classmethod
    def _not_blank(cls, value: str) -> str:
        with bad_request():
            return clean_object(value, "object")


class _References(BaseModel):
    spatial_refs: list[list[float]] | None = Field(
        default=None,
        description="Points [x, y] and boxes [x_min, y_min, x_max, y_max], each in [0, 1]",
    )

    @field_validator("spatial_refs")
    @classmethod
    def _in_image(cls, value: list[list[float]] | None) -> list[list[float]] | None:
        with bad_request():
            return value and [list(ref) for ref in parse_refs(value, "spatial_refs")]

    def reference_arguments(self) -> dict[str, Any]:
        """As ``vllm_xargs``, which hold no nested lists."""
        return {"photon_spatial_refs": json.dumps(self.spatial_refs)} if self.spatial_refs else {}


class PointRequest(_ObjectRequest, _References):
    """Where is each of them?"""

    task = Task.POINT

    def arguments(self) -> dict[str, Any]:
        return {**super().arguments(), **_max_objects(self), **self.reference_arguments()}


class DetectRequest(_ObjectRequest):
    """Which box holds each of them?"""

    task = Task.DETECT

    def arguments(self) -> dict[str, Any]:
        return {**super().arguments(), **_max_objects(self)}


class CaptionRequest(SkillRequest):
    """What does the image show?"""

    task = Task.CAPTION
    streams = True

    image_url: str = Field(min_length=1)
    length: Length = Length.NORMAL
    stream: bool = False

    def arguments(self) -> dict[str, Any]:
        return {**super().arguments(), "photon_length": str(self.length)}


class QueryRequest(SkillRequest, _References):
    """An answer to a question, about an image or not."""

    task = Task.QUERY
    subject = "question"
    streams = True

    image_url: str | None = Field(default=None, min_length=1)
    question: str
    reasoning: bool = Field(default=False, description="Think first, and show where")
    stream: bool = False

    @field_validator("question")
    @classmethod
    def _not_blank(cls, value: str) -> str:
        if not value.strip():
            raise VLLMValidationError("question is blank", parameter="question")
        return value

    def arguments(self) -> dict[str, Any]:
        reasoning = {"photon_reasoning": 1} if self.reasoning else {}
        return {**super().arguments(), **reasoning, **self.reference_arguments()}


class SegmentRequest(_ObjectRequest, _References):
    """What is its outline? Moondream 3 only."""

    task = Task.SEGMENT
    streams = True

    stream: bool = False

    def arguments(self) -> dict[str, Any]:
        return {**super().arguments(), **self.reference_arguments()}


def _max_objects(request: SkillRequest) -> dict[str, Any]:
    wanted = request.settings.max_objects
    return {} if wanted is None else {"photon_max_objects": wanted}


def _or(value: Any, default: Any) -> Any:
    return default if value is None else value
