"""Random workloads: every mode beside every other, from a seed."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from tests.identity.building import EOS_ID, SCHEMA, TEXT_IDS, Params
from tests.identity.engines import SETUPS
from tests.identity.spatial_scenarios import spatial_asks
from tests.identity.workload import Ask, Workload

STARVED = frozenset({"starved", "priority", "spatial-starved"})
"""Setups whose requests grow beyond the cache, so that some are preempted."""

TASKS = ["point", "detect", "query", "caption", "text"]


def random_workload(name: str, seed: int, count: int) -> Workload:
    """``count`` requests for the setup ``name``; the same seed gives the same ones."""
    draw = random.Random(f"{name} {seed}")
    if SETUPS[name].model == "moondream2":
        requests = _spatial(draw, seed, count)
        if name in STARVED:
            for request in requests:
                _lengthen(draw, request)
    else:
        requests = [_ask(draw, name, index) for index in range(count)]
    when = _arrivals(draw) if name not in STARVED else lambda: 0
    for request in requests:
        request.arrive = when()
        if "n" not in request.params and draw.random() < 0.15:
            request.abort = draw.randint(1, 20)
        request.priority = draw.randint(0, 3)
    return Workload(f"random {name}, seed {seed}", requests)


def _arrivals(draw: random.Random) -> Callable[[], int]:
    """All at once, thinly spread, or in bursts."""
    kind, span = draw.randrange(3), draw.randint(10, 200)
    if kind == 0:
        return lambda: 0
    if kind == 1:
        return lambda: draw.randrange(span)
    return lambda: draw.randrange(4) * span // 4


def _ask(draw: random.Random, name: str, index: int) -> Ask:
    setup = SETUPS[name]
    lengths = [(1, 12), (5, 60), (60, 250)] if name != "plain" else [(1, 12), (5, 60), (5, 30)]
    tokens = [(1, 1), (2, 12), (2, 12), (10, 45)] if name not in STARVED else [(1, 1), (60, 120)]
    prompt = [draw.choice(TEXT_IDS) for _ in range(draw.randint(*draw.choice(lengths)))]
    params: Params = {
        "max_tokens": draw.randint(*draw.choice(tokens)),
        "temperature": 0.0,
        "ignore_eos": draw.random() < 0.5,
    }
    chance = _chance(draw)
    if chance(0.3):
        params |= {"temperature": draw.choice([0.3, 0.8, 1.2]), "seed": draw.randrange(10**6)}
        params |= draw.choice([{}, {"top_p": 0.9}, {"top_k": 20}, {"min_p": 0.05}])
        if chance(0.3):
            params |= {"n": draw.randint(2, 3)}
    if chance(0.12):
        params |= {"logprobs": draw.randint(0, 5)}
    if chance(0.05) and not setup.loras:  # stock's engine dies of both together on a CPU
        params |= {"prompt_logprobs": draw.randint(0, 3)}
    if chance(0.15):
        params |= draw.choice(
            [
                {"presence_penalty": 0.6},
                {"frequency_penalty": 0.7},
                {"repetition_penalty": 1.3},
                {"presence_penalty": -0.4, "repetition_penalty": 0.9},
            ]
        )
    if chance(0.12):
        form = draw.choice([{"json": SCHEMA}, {"regex": "(ab|cd|[0-9]){3,20}z"}])
        params |= {"structured_outputs": form, "ignore_eos": False}
    else:
        params |= _free_text(draw, chance)
        if setup.arguments.get("logits_processors") or setup.processor_entry_point:
            params |= _history(draw, chance)
    return Ask(f"s{index}", prompt, params, lora=draw.randint(0, setup.loras))


def _free_text(draw: random.Random, chance: Callable[[float], bool]) -> Params:
    """What a grammar would quarrel with."""
    params: Params = {}
    if chance(0.15):
        params["stop_token_ids"] = list(range(draw.randrange(20), 8192, draw.randint(15, 80)))
    if chance(0.1):
        params["stop"] = draw.sample(["ba", " de", "o", "zz", "fu ", "xi"], 2)
        params["include_stop_str_in_output"] = chance(0.5)
    if chance(0.1):
        params["logit_bias"] = {str(EOS_ID): draw.choice([8.0, 10.0, 12.0])}
        params["ignore_eos"] = False
    if chance(0.08):
        params["min_tokens"] = 1
    if chance(0.06):
        params["bad_words"] = draw.sample(["ba", "de fu", "lo", "ka"], 2)
    if chance(0.05):
        params["allowed_token_ids"] = list(range(400, 1200))
    return params


def _history(draw: random.Random, chance: Callable[[float], bool]) -> Params:
    if not chance(0.6):
        return {}
    extra: dict[str, Any] = {"history": 1}
    if chance(0.3):
        extra["eos_at"] = draw.randint(2, 10)
    return {
        "extra_args": extra,
        "ignore_eos": False,
        "logit_bias": None,
        "allowed_token_ids": None,
        "bad_words": None,
    }


def _spatial(draw: random.Random, seed: int, count: int) -> list[Ask]:
    requests = spatial_asks(count, seed, draw.sample(TASKS, len(TASKS)))
    for request in requests:
        chance = _chance(draw)
        if chance(0.3):
            request.params |= {"temperature": 0.8, "seed": draw.randrange(10**6)}
        if chance(0.2):
            request.params |= {"logprobs": draw.randint(0, 3)}
        if request.image is None and chance(0.3):
            request.params |= {"repetition_penalty": 1.2}
        if request.image is None and chance(0.3):
            request.params |= {"structured_outputs": {"regex": "[a-z]{3,9}"}}
    return requests


def _lengthen(draw: random.Random, request: Ask) -> None:
    request.params["max_tokens"] = draw.randint(60, 120)
    if "photon_max_objects" in request.params.get("extra_args", {}):
        request.params["extra_args"]["photon_max_objects"] = draw.randint(20, 40)


def _chance(draw: random.Random) -> Callable[[float], bool]:
    return lambda probability: draw.random() < probability
