"""Moondream's own HTTP endpoints beside vLLM's: ``/v1/point``, ``/v1/detect`` and the others.

Each request runs through vLLM's chat handler (:mod:`vllm_photon.entrypoints.wire`); here the route
is declared and the answer put into Moondream's form.
"""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from pydantic import BaseModel
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionResponse
from vllm.entrypoints.serve.engine.protocol import ErrorResponse
from vllm.entrypoints.serve.utils.api_utils import (
    load_aware_call,
    validate_json_request,
    with_cancellation,
)

from vllm_photon.config import is_photon
from vllm_photon.entrypoints import wire
from vllm_photon.entrypoints.metrics import serve_metrics
from vllm_photon.spatial.prompts import skills_of

MIDDLEWARE = f"{__name__}.MoondreamAuth"


@dataclass(frozen=True)
class Endpoint:
    """One skill over HTTP; ``answer`` makes the reply's own fields of the message's content."""

    request: type[wire.SkillRequest]
    reply: type[BaseModel]
    answer: Callable[[str], dict[str, Any]]


ENDPOINTS = (
    Endpoint(wire.PointRequest, wire.PointReply, json.loads),
    Endpoint(wire.DetectRequest, wire.DetectReply, json.loads),
    Endpoint(wire.CaptionRequest, wire.CaptionReply, lambda text: {"caption": text}),
    Endpoint(wire.QueryRequest, wire.QueryReply, lambda text: {"answer": text}),
)


async def _serve(endpoint: Endpoint, request: wire.SkillRequest, raw: Request) -> Response:
    handler = raw.app.state.openai_serving_chat
    result = await handler.create_chat_completion(request.chat_request(), raw)
    if isinstance(result, ErrorResponse):
        return JSONResponse(result.model_dump(), status_code=result.error.code)
    if not isinstance(result, ChatCompletionResponse):
        return StreamingResponse(_chunks(result), media_type="text/event-stream")
    choice = result.choices[0]
    return JSONResponse(
        {
            **endpoint.answer(choice.message.content or ""),
            "request_id": result.id,
            "finish_reason": choice.finish_reason,
            "usage": result.usage.model_dump(exclude_none=True),
        }
    )


async def _chunks(events: AsyncIterator[str]) -> AsyncIterator[str]:
    """vLLM's chat stream as Moondream's: ``{"chunk": …}`` until ``{"completed": true}``."""
    finish_reason = None
    async for event in events:
        data = event.removeprefix("data: ").strip()
        if data == "[DONE]":
            break
        body = json.loads(data)
        if "error" in body:
            yield _event(body)
            return
        for choice in body["choices"]:
            finish_reason = choice.get("finish_reason") or finish_reason
            if text := choice["delta"].get("content"):
                yield _event({"chunk": text, "completed": False})
    yield _event({"completed": True, "finish_reason": finish_reason})


def _event(body: dict[str, Any]) -> str:
    return f"data: {json.dumps(body)}\n\n"


def _route(router: APIRouter, endpoint: Endpoint) -> None:
    async def handle(request: Any, raw_request: Request) -> Response:
        return await _serve(endpoint, request, raw_request)

    # FastAPI reads the body's type from the annotation.
    handle.__annotations__.update(request=endpoint.request, raw_request=Request)
    handle.__doc__ = endpoint.request.__doc__
    errors = (HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND, HTTPStatus.INTERNAL_SERVER_ERROR)
    router.post(
        f"/v1/{endpoint.request.task}",
        name=str(endpoint.request.task),
        tags=["Moondream"],
        dependencies=[Depends(validate_json_request)],
        responses={
            200: {"model": endpoint.reply},
            **{status.value: {"model": ErrorResponse} for status in errors},
        },
    )(with_cancellation(load_aware_call(handle)))


class MoondreamAuth:
    """ASGI middleware: Moondream's ``X-Moondream-Auth: KEY`` is vLLM's ``Bearer KEY``."""

    def __init__(self, app: Callable[..., Any]) -> None:
        self.app = app

    def __call__(self, scope: Any, receive: Any, send: Any) -> Any:
        if scope["type"] == "http":
            headers = dict(scope["headers"])
            key = headers.get(b"x-moondream-auth")
            if key is not None and b"authorization" not in headers:
                scope = {
                    **scope,
                    "headers": [*scope["headers"], (b"authorization", b"Bearer " + key)],
                }
        return self.app(scope, receive, send)


class PhotonEndpoints:
    """The endpoint plugin (``vllm.endpoint_plugins``)."""

    name = "photon"
    required_tasks = ("generate",)

    def __init__(self) -> None:
        self._app: FastAPI | None = None
        self._routes: list[Any] = []

    def attach_router(self, app: FastAPI) -> None:
        """Add the routes, and queue the middleware that must stand outside vLLM's own check."""
        self._app = app
        known = list(app.router.routes)
        router = APIRouter()
        for endpoint in ENDPOINTS:
            _route(router, endpoint)
        app.include_router(router)
        self._routes = [route for route in app.router.routes if route not in known]
        if MIDDLEWARE not in app.state.args.middleware:
            app.state.args.middleware.append(MIDDLEWARE)

    async def init_state(self, engine_client: Any, state: Any, args: Namespace) -> None:
        """Serve the step metrics; take the routes away again when the model is no Moondream."""
        if is_photon(engine_client.vllm_config):
            serve_metrics(engine_client.vllm_config)
        if self._app is None or skills_of(engine_client.model_config.hf_config) is not None:
            return
        routes = self._app.router.routes
        routes[:] = [route for route in routes if route not in self._routes]
        self._app.openapi_schema = None
