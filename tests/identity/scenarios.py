"""The fixed set of workloads, by engine."""

from __future__ import annotations

import random
from typing import Any

from tests.identity.building import (
    EOS_ID,
    SCHEMA,
    TEXT_IDS,
    Params,
    arriving,
    asks,
    each,
    leaving,
)
from tests.identity.generator import random_workload
from tests.identity.spatial_scenarios import mixed_skills
from tests.identity.workload import Ask, Workload


def _alike_draws(count: int) -> list[Ask]:
    """One request again and again: up to two tokens out of four, of which one ends the answer."""
    choice = list(TEXT_IDS[100:104])
    requests = asks(
        count,
        24,
        tokens=(2, 2),
        temperature=2.0,
        allowed_token_ids=choice,
        stop_token_ids=choice[:1],
    )
    for request in requests:
        request.prompt = requests[0].prompt
    return requests


def _plain() -> list[Workload]:
    likely_eos = each([{str(EOS_ID): bias} for bias in (11.0, 8.0, 5.0)])
    schema = {"json": SCHEMA}
    regex = {"regex": "(ab|cd|[0-9]){5,30}z"}
    sampled: Params = {"temperature": 0.8, "top_p": 0.95, "top_k": 50}
    penalties: Params = {
        "presence_penalty": each([0.5, None, 0.0]),
        "frequency_penalty": each([0.7, None, 0.0]),
        "repetition_penalty": each([1.3, None, 1.0]),
    }
    return [
        # First, while the shared generator is as it was at the start: no row is a zombie here.
        Workload("unseeded, in step", asks(8, 20, tokens=(30, 30), temperature=0.8)),
        Workload("unseeded, stopping", _alike_draws(600), ["zombies", "stop:id"], sampled=True),
        *(Workload(f"greedy {n}", asks(n, n)) for n in (1, 8, 32)),
        Workload(
            "eos", asks(32, 1, ignore_eos=False, logit_bias=likely_eos), ["stop:eos", "length"]
        ),
        Workload(
            "stop ids",
            asks(32, 2, stop_token_ids=lambda i: list(range(i % 5, 8192, 40))),
            ["stop:id", "zombies"],
        ),
        Workload(
            "stop strings",
            asks(
                24,
                3,
                stop=each([["ba"], [" de", "fu"], ["zz"], ["o"]]),
                include_stop_str_in_output=lambda i: bool(i % 2),
            ),
            ["stop:string", "length"],
        ),
        Workload("one token", asks(16, 4, tokens=(1, 1)), ["length"]),
        Workload("mixed lengths", asks(24, 5, tokens=(1, 120), prompt=(1, 120))),
        Workload(
            "context to the brim",
            [*asks(2, 6, prompt=(511, 511), tokens=(40, 40)), *_renamed(asks(6, 7))],
        ),
        Workload("late arrivals", arriving(asks(32, 8), lambda i: i * 3 % 41)),
        Workload(
            "clients leave",
            leaving(
                arriving(asks(32, 9, tokens=(30, 60)), lambda i: i // 4),
                lambda i: 1 + i % 13 if i % 3 == 0 else None,
            ),
            ["aborted", "zombies"],
        ),
        Workload("seeded", asks(16, 10, **sampled, seed=lambda i: 1000 + i)),
        Workload(
            "seeded, late, stopping",
            arriving(
                asks(
                    16,
                    11,
                    **sampled,
                    seed=lambda i: 500 + i,
                    stop_token_ids=lambda i: list(range(i, 8192, 31)),
                ),
                lambda i: i * 2,
            ),
            ["stop:id"],
        ),
        Workload("penalties beside none", asks(24, 12, **penalties)),
        Workload("penalties, late", arriving(asks(24, 13, **penalties), lambda i: i)),
        Workload(
            "min tokens",
            asks(
                12,
                14,
                ignore_eos=False,
                min_tokens=lambda i: 3 + i % 8,
                stop_token_ids=list(range(0, 8192, 3)),
            ),
            ["stop:id"],
        ),
        Workload(
            "bad words, bias, allowed ids",
            asks(
                12,
                15,
                bad_words=each([["ba", "de fu"], None]),
                logit_bias=each([None, {"4000": 5.0}, None]),
                allowed_token_ids=each([None, None, list(range(400, 700))]),
            ),
        ),
        Workload(
            "logprobs",
            asks(16, 16, logprobs=each([5, None, 0]), prompt_logprobs=each([None, 3])),
        ),
        Workload("several answers", asks(6, 17, n=3, **sampled, seed=lambda i: 40 + i)),
        Workload(
            "json beside text",
            asks(
                24,
                18,
                tokens=(40, 60),
                ignore_eos=False,
                structured_outputs=each([schema, None, None, regex]),
            ),
            ["stop:eos"],
        ),
        Workload(
            "json, late, leaving",
            leaving(
                arriving(
                    asks(
                        24,
                        19,
                        tokens=(40, 50),
                        ignore_eos=False,
                        structured_outputs=each([schema, None]),
                    ),
                    lambda i: i * 2,
                ),
                lambda i: 7 if i % 5 == 4 else None,
            ),
            ["aborted"],
        ),
    ]


def _renamed(requests: list[Ask]) -> list[Ask]:
    for request in requests:
        request.id = f"more-{request.id}"
    return requests


def _shared_prefixes(requests: list[Ask], seed: int) -> list[Ask]:
    draw = random.Random(seed)
    prefixes = [[draw.choice(TEXT_IDS) for _ in range(96)] for _ in range(4)]
    for index, request in enumerate(requests):
        request.prompt = prefixes[index % 4] + request.prompt
    return requests


def _chunked() -> list[Workload]:
    long: dict[str, Any] = {"prompt": (20, 300), "tokens": (20, 50)}
    return [
        Workload("long prompts", asks(12, 30, **long)),
        Workload(
            "long prompts, seeded",
            arriving(asks(12, 31, **long, temperature=0.8, seed=lambda i: 70 + i), lambda i: 2 * i),
        ),
        Workload("prompt logprobs", asks(6, 32, **long, logprobs=2, prompt_logprobs=2)),
        Workload("penalties", asks(12, 33, **long, repetition_penalty=1.2, frequency_penalty=0.4)),
        Workload(
            "json",
            asks(
                12,
                34,
                **long,
                ignore_eos=False,
                structured_outputs=each([{"json": SCHEMA}, None, None]),
            ),
        ),
        Workload(
            "clients leave in their prefill",
            leaving(arriving(asks(16, 35, **long), lambda i: i), each([None, 1, None, 5])),
            ["aborted"],
        ),
    ]


def _cached() -> list[Workload]:
    first = _shared_prefixes(asks(16, 40, prompt=(20, 150)), 41)
    return [
        Workload("shared prefixes", first),
        Workload("again, from the cache", first),
        Workload(
            "late",
            arriving(_shared_prefixes(asks(16, 42, prompt=(20, 150)), 41), lambda i: i * 3),
        ),
        Workload(
            "leaving",
            leaving(
                arriving(_shared_prefixes(asks(16, 43, prompt=(20, 150)), 41), lambda i: i),
                lambda i: 3 + i if i % 3 == 0 else None,
            ),
            ["aborted"],
        ),
        Workload(
            "one prompt, several answers",
            asks(6, 44, prompt=(70, 150), n=3, temperature=0.9, seed=lambda i: i),
        ),
    ]


def _starved() -> list[Workload]:
    load: dict[str, Any] = {"prompt": (20, 150), "tokens": (60, 120)}
    return [
        Workload("more than fits", asks(24, 50, **load), ["preemptions"]),
        Workload(
            "shared prefixes",
            arriving(_shared_prefixes(asks(16, 51, **load), 52), lambda i: i),
            ["preemptions"],
        ),
        Workload(
            "stops and leaving",
            leaving(
                arriving(
                    asks(24, 53, **load, stop_token_ids=lambda i: list(range(i, 8192, 97))),
                    lambda i: i,
                ),
                lambda i: 5 + i if i % 4 == 0 else None,
            ),
            ["preemptions", "aborted", "zombies", "stop:id"],
        ),
        Workload(
            "seeded, penalties",
            asks(
                20,
                54,
                **load,
                temperature=each([0.0, 0.9]),
                seed=each([None, 5]),
                presence_penalty=each([0.4, None, None]),
            ),
            ["preemptions"],
        ),
        Workload(
            "json",
            asks(
                20,
                55,
                **load,
                ignore_eos=False,
                structured_outputs=each([{"json": SCHEMA}, None, None, None]),
            ),
            ["preemptions"],
        ),
    ]


def _priority() -> list[Workload]:
    requests = arriving(asks(24, 60, prompt=(20, 150), tokens=(60, 120)), lambda i: i * 2)
    for index, request in enumerate(requests):
        request.priority = -index % 5
    return [Workload("urgent last", requests, ["preemptions"])]


def _processors() -> list[Workload]:
    def history(index: int) -> dict[str, Any]:
        return {"history": 1}

    return [
        *(Workload(f"history {n}", asks(n, 70 + n, extra_args=history)) for n in (1, 8, 32)),
        Workload("history beside none", asks(16, 71, extra_args=each([{"history": 1}, None]))),
        Workload(
            "forced end",
            asks(
                24,
                72,
                ignore_eos=False,
                tokens=(60, 60),
                extra_args=lambda i: {"history": 1, "eos_at": 5 + i % 7},
            ),
            ["stop:eos", "zombies"],
        ),
        Workload(
            "late, leaving, seeded",
            leaving(
                arriving(
                    asks(
                        24,
                        73,
                        temperature=each([0.0, 0.8]),
                        seed=lambda i: i,
                        extra_args=each([{"history": 1}, {"history": 1}, None]),
                    ),
                    lambda i: i * 2,
                ),
                lambda i: 4 + i % 9 if i % 5 == 0 else None,
            ),
            ["aborted"],
        ),
    ]


def _lora() -> list[Workload]:
    def adapted(requests: list[Ask]) -> list[Ask]:
        for index, request in enumerate(requests):
            request.lora = index % 4
        return requests

    return [
        Workload("three adapters in two slots", adapted(asks(16, 80))),
        Workload(
            "late, leaving",
            leaving(
                arriving(adapted(asks(24, 81)), lambda i: i * 2),
                lambda i: 5 if i % 5 == 0 else None,
            ),
            ["aborted"],
        ),
    ]


_BY_HAND: dict[str, list[Workload]] = {
    "plain": _plain(),
    "chunked": _chunked(),
    "cached": _cached(),
    "starved": _starved(),
    "priority": _priority(),
    "processors": _processors(),
    "entry-point": _processors(),
    "lora": _lora(),
    "spatial": mixed_skills(),
    "spatial-starved": [],
}


def _random(name: str) -> Workload:
    # Of the first seeds, one that preempts on every release.
    workload = random_workload(name, seed=3 if name == "spatial-starved" else 0, count=40)
    if name in ("starved", "spatial-starved"):
        workload.shows = ["preemptions"]
    return workload


SCENARIOS: dict[str, list[Workload]] = {
    name: [*workloads, _random(name)] for name, workloads in _BY_HAND.items()
}
"""Every setup also runs one random workload; the soak runs more of them."""
