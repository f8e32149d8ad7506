"""Building blocks of workloads: random requests, their arrivals and departures."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from tests.identity.workload import Ask

EOS_ID = 1
TEXT_IDS = range(300, 8000)
"""Ids of whole words in the test model's vocabulary."""

SCHEMA = {
    "type": "object",
    "properties": {
        "a": {"type": "integer", "minimum": 0, "maximum": 999},
        "b": {"type": "string", "maxLength": 6},
        "c": {"enum": ["x", "yy", "zzz"]},
    },
    "required": ["a", "b", "c"],
    "additionalProperties": False,
}

Params = dict[str, Any]


def asks(
    count: int,
    number: int,
    /,
    *,
    prompt: tuple[int, int] = (5, 60),
    tokens: tuple[int, int] = (10, 60),
    **params: Any,
) -> list[Ask]:
    """Random prompts (drawn from ``number``), greedy, to ``max_tokens``.

    A value of ``params`` may be a function of the request's index; where it gives None the
    parameter is left out.
    """
    draw = random.Random(number)
    made = []
    for index in range(count):
        ids = [draw.choice(TEXT_IDS) for _ in range(draw.randint(*prompt))]
        given: Params = {
            "temperature": 0.0,
            "max_tokens": draw.randint(*tokens),
            "ignore_eos": True,
        }
        for key, value in params.items():
            value = value(index) if callable(value) else value
            if value is not None:
                given[key] = value
        made.append(Ask(f"r{index}", ids, given))
    return made


def arriving(requests: list[Ask], when: Callable[[int], int]) -> list[Ask]:
    for index, request in enumerate(requests):
        request.arrive = when(index)
    return requests


def leaving(requests: list[Ask], when: Callable[[int], int | None]) -> list[Ask]:
    for index, request in enumerate(requests):
        request.abort = when(index)
    return requests


def each(values: list[Any]) -> Callable[[int], Any]:
    return lambda index: values[index % len(values)]
