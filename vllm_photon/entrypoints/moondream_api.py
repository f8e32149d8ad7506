"""Moondream's own HTTP endpoints beside vLLM's: ``/v1/point``, ``/v1/detect`` and the others.

Each request runs through vLLM's chat handler (:mod:`vllm_photon.entrypoints.wire`); here the route
is declared and the answer put into Moondream's form (:mod:`vllm_photon.entrypoints.replies`).
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
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
from vllm.exceptions import VLLMValidationError

from vllm_photon.config import is_photon
from vllm_photon.entrypoints import replies, wire
from vllm_photon.entrypoints.metrics import serve_metrics
from vllm_photon.spatial.prompts import skills_of

MIDDLEWARE = f"{__name__}.MoondreamAuth"


# What each endpoint takes and answers.
ENDPOINTS: dict[type[wire.SkillRequest], type[BaseModel]] = {
    wire.QueryRequest: replies.QueryReply,
    wire.CaptionRequest: replies.CaptionReply,
    wire.PointRequest: replies.PointReply,
    wire.DetectRequest: replies.DetectReply,
    wire.SegmentRequest: replies.SegmentReply,
}


async def _serve(request: wire.SkillRequest, raw: Request) -> Response:
    handler = raw.app.state.openai_serving_chat
    try:
        result = await handler.create_chat_completion(request.chat_request(), raw)
    except VLLMValidationError as error:
        raise VLLMValidationError(
            error.args[0], parameter=request.field_of(error.parameter), value=error.value
        ) from error
    if isinstance(result, ErrorResponse):
        return JSONResponse(result.model_dump(), status_code=result.error.code)
    tokenizer = handler.renderer.get_tokenizer()
    skills = tokenizer.spatial_skills

    def decode(token_ids: list[int]) -> str:
        return tokenizer.decode(token_ids, skip_special_tokens=True)

    if not isinstance(result, ChatCompletionResponse):
        events = replies.streamed(request, result, skills, decode)
        return StreamingResponse(events, media_type="text/event-stream")
    choice = result.choices[0]
    return JSONResponse(
        {
            **replies.whole_fields(request, choice, skills, decode),
            "request_id": result.id,
            "finish_reason": choice.finish_reason,
            "usage": result.usage.model_dump(exclude_none=True),
        }
    )


def _route(
    router: APIRouter, request_type: type[wire.SkillRequest], reply_type: type[BaseModel]
) -> None:
    async def handle(request: Any, raw_request: Request) -> Response:
        return await _serve(request, raw_request)

    # FastAPI reads the body's type from the annotation.
    handle.__annotations__.update(request=request_type, raw_request=Request)
    handle.__doc__ = request_type.__doc__
    errors = (HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND, HTTPStatus.INTERNAL_SERVER_ERROR)
    router.post(
        f"/v1/{request_type.task}",
        name=str(request_type.task),
        tags=["Moondream"],
        dependencies=[Depends(validate_json_request)],
        responses={
            200: {"model": reply_type},
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
        for request_type, reply_type in ENDPOINTS.items():
            _route(router, request_type, reply_type)
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
