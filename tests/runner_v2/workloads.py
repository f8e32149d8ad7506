"""What the engines under comparison are asked, as plain data.

A request is its prompt ids, its image if any, the arguments of SamplingParams, the engine step at
which it arrives, and after how many tokens its client leaves. The ids are those of the tiny
Moondream 2 of ``tests/data/oracle``.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from vllm_photon.spatial.tokens import Coord, Size, SpatialVocab, size_bin

CHECKPOINT = Path(__file__).parents[1] / "data" / "oracle" / "md2"
VOCAB = SpatialVocab(600)
ANSWER = 3
DRAWN = range(40, 600)  # ordinary tokens without a meaning of their own
BUDGET = 1024
BLOCK = 32
# Little more than the longest request: a crowd doesn't fit, and someone is preempted.
NUM_BLOCKS = 40


@dataclass(frozen=True)
class Request:
    """One request; ``params`` are arguments of SamplingParams, JSON types only."""

    prompt: list[int]
    image: int | None = None
    params: dict[str, Any] = field(default_factory=dict)
    arrive: int = 0
    leave_after: int | None = None


def oracle() -> dict[str, tuple[Request, list[int]]]:
    """Every point and detect of the oracle, and the tokens that the reference answers with."""
    cases = {}
    for entry in json.loads((CHECKPOINT / "oracle_masked.json").read_text()):
        for name, case in entry.items():
            task = name.split()[0]
            if task in ("point", "detect"):
                start = max(i for i, item in enumerate(case["fed"]) if item == ANSWER) + 1
                fed = [_id(item) for item in case["fed"]]
                params = {**_skill(task, photon_max_objects=4), "max_tokens": 20}
                request = Request([0, VOCAB.image_id, *fed[:start]], entry["image"], params)
                cases[f"{entry['image']} {name}"] = (request, [*fed[start:], 0])
    return cases


def _id(item: Any) -> int:
    if isinstance(item, int):
        return item
    if "coord" in item:
        return VOCAB.encode(Coord(VOCAB.coord_bin(item["coord"])))
    return VOCAB.encode(Size(*(size_bin(side) for side in item["size"])))


def _skill(task: str, **extra: Any) -> dict[str, Any]:
    return {"temperature": 0.0, "extra_args": {"photon_task": task, **extra}}


class Drawer:
    """Requests of every kind with prompts drawn from a seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def words(self, low: int = 1, high: int = 4) -> list[int]:
        return self._random.choices(DRAWN, k=self._random.randint(low, high))

    def text(self, low: int = 3, high: int = 40, **params: Any) -> Request:
        """Plain generation, without a skill."""
        given = {"temperature": 0.0, "max_tokens": self._random.randint(5, 20), **params}
        return Request([0, *self.words(low, high)], None, given)

    def detect(self, image: int = 1, objects: int = 3, **params: Any) -> Request:
        skill = _skill("detect", photon_max_objects=objects)
        prompt = [0, VOCAB.image_id, 1, 305, 306, 2, *self.words(), ANSWER]
        return Request(prompt, image, {**skill, "max_tokens": 400, **params})

    def point(self, image: int = 1, objects: int = 3, **params: Any) -> Request:
        """Points near a given one, so that the prompt holds coordinates."""
        skill = _skill("point", photon_max_objects=objects)
        reference = [VOCAB.encode(Coord(self._random.randrange(1024))) for _ in "xy"]
        prompt = [0, VOCAB.image_id, 1, 307, 2, *reference, *self.words(), ANSWER]
        return Request(prompt, image, {**skill, "max_tokens": 400, **params})

    def query(self, image: int = 1, reasoning: bool = False, **params: Any) -> Request:
        more = {"photon_reasoning": True, "photon_max_reasoning_tokens": 6} if reasoning else {}
        end = [ANSWER, 4] if reasoning else [ANSWER, ANSWER]
        prompt = [0, VOCAB.image_id, 1, 304, 2, *self.words(3, 12), *end]
        skill = {**_skill("query", **more), "max_tokens": self._random.randint(8, 16)}
        return Request(prompt, image, {**skill, **params})


def arriving(request: Request, at: int) -> Request:
    """The same at an engine step."""
    return replace(request, arrive=at)


def later(requests: list[Request], every: int) -> list[Request]:
    """The same, arriving one by one, ``every`` steps apart."""
    return [arriving(request, index * every) for index, request in enumerate(requests)]


def leaving(request: Request, after: int) -> Request:
    """The same from a client that leaves."""
    return replace(request, leave_after=after)


def workloads() -> dict[str, list[Request]]:
    """The matrix; deterministic in every process."""
    make = Drawer(7)
    sampled: dict[str, Any] = {"temperature": 0.8, "top_p": 0.9, "top_k": 50}
    penalties: dict[str, Any] = {
        "presence_penalty": 0.5,
        "frequency_penalty": 0.3,
        "repetition_penalty": 1.4,
    }
    digits: dict[str, Any] = {
        "structured_outputs": {"regex": "(ab|cd|[0-9]){4,12}z"},
        "max_tokens": 30,
    }
    return {
        "mixed": later(
            [
                make.detect(),
                make.text(max_tokens=1),
                make.point(),
                make.text(),
                make.query(reasoning=True),
                make.query(),
                make.text(60, 120),
                make.detect(image=0),
            ],
            every=2,
        ),
        "seeded": [
            *(make.text(**sampled, seed=seed) for seed in range(3)),
            make.query(**sampled, seed=11),
            make.detect(),
        ],
        "penalties": [
            make.detect(),
            make.text(**penalties),
            make.point(),
            make.query(**penalties),
            make.text(repetition_penalty=1.8),
        ],
        "logprobs": [
            make.text(prompt_logprobs=2),
            Request(
                [0, *(VOCAB.encode(Coord(bin_)) for bin_ in (3, 1000)), 77, 300, 12],
                None,
                {"temperature": 0.0, "max_tokens": 4, "prompt_logprobs": 1, **penalties},
            ),
            make.text(logprobs=2),
            # Later: with prompt logprobs in a step, every position of the step is scored.
            arriving(make.detect(logprobs=3), at=2),
        ],
        "structured": later(
            [make.text(**digits), make.detect(), make.text(**digits), make.query()], every=1
        ),
        "ends": [
            make.text(max_tokens=20, stop_token_ids=list(range(40, 600, 3))),
            make.text(max_tokens=20, stop_token_ids=list(range(40, 600, 7)), min_tokens=4),
            leaving(make.detect(objects=40), after=5),
            leaving(make.text(max_tokens=40, ignore_eos=True), after=7),
            make.detect(max_tokens=8),
            make.point(objects=1),
        ],
        "crowd": [
            *(make.text(40, 60, max_tokens=40, ignore_eos=True) for _ in range(5)),
            make.detect(objects=12),
            make.detect(objects=9),
            make.point(objects=14),
        ],
    }
