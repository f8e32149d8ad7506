"""Completions against a server from several clients at once."""

from __future__ import annotations

import random
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import httpx

from tests.serve.server import Server

TIMEOUT_S = 240
LONG = 900
"""Tokens of an answer that is still under way when something happens to it."""


def prompt(number: int, length: int = 40) -> list[int]:
    draw = random.Random(number)
    return [draw.randrange(300, 8000) for _ in range(length)]


def complete(server: Server, number: int, **settings: Any) -> httpx.Response:
    body = {
        "model": "moondream",
        "prompt": prompt(number),
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
        **settings,
    }
    return httpx.post(f"{server.url}/v1/completions", json=body, timeout=TIMEOUT_S)


def tokens(response: httpx.Response) -> list[int]:
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]["token_ids"]


def finish(response: httpx.Response) -> str:
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]["finish_reason"]


class Crowd:
    """Clients with long answers under way."""

    def __init__(self, server: Server, count: int = 6, max_tokens: int = LONG) -> None:
        self._pool = ThreadPoolExecutor(count)
        self.pending: list[Future[httpx.Response]] = [
            self._pool.submit(complete, server, number, max_tokens=max_tokens)
            for number in range(count)
        ]

    def responses(self) -> list[httpx.Response | httpx.TransportError]:
        """What each client got: a response, or how its connection broke."""
        got: list[httpx.Response | httpx.TransportError] = []
        for future in self.pending:
            try:
                got.append(future.result(TIMEOUT_S))
            except httpx.TransportError as error:
                got.append(error)
        self._pool.shutdown()
        return got


def running(server: Server) -> int:
    """Requests that the engine is working on."""
    for line in httpx.get(f"{server.url}/metrics", timeout=30).text.splitlines():
        if line.startswith("vllm:num_requests_running"):
            return int(float(line.rsplit(maxsplit=1)[1]))
    raise AssertionError("no such metric")
