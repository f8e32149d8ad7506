"""Workloads of Moondream's skills beside plain text."""

from __future__ import annotations

import json
import random

from tests.identity.building import Params, arriving, leaving
from tests.identity.models import MOONDREAM
from tests.identity.workload import Ask, Workload
from vllm_photon.spatial.tokens import SpatialVocab


def spatial_asks(count: int, number: int, tasks: list[str]) -> list[Ask]:
    """Skills on the two images of the oracle, beside plain text; ``tasks`` in turn."""
    draw = random.Random(number)
    config = json.loads((MOONDREAM / "config.json").read_text())["config"]
    templates = config["tokenizer"]["templates"]
    image_id = SpatialVocab(config["text"]["vocab_size"]).image_id
    made = []
    for index in range(count):
        task = tasks[index % len(tasks)]
        words = [draw.randrange(40, 600) for _ in range(draw.randint(1, 12))]
        params: Params = {"temperature": 0.0, "max_tokens": draw.randint(6, 40)}
        if task == "text":
            made.append(Ask(f"r{index}", [0, *words], params))
            continue
        template = templates[task]
        if task == "caption":
            ids = template["short"]
        else:
            ids = [*template["prefix"], *words, *template["suffix"]]
        params["extra_args"] = {"photon_task": task}
        if task in ("point", "detect"):
            params["extra_args"]["photon_max_objects"] = draw.randint(1, 8)
        image = str(MOONDREAM / f"image{draw.randrange(2)}.png")
        made.append(Ask(f"r{index}", [0, image_id, *ids], params, image=image))
    return made


def mixed_skills() -> list[Workload]:
    mixed = ["point", "detect", "text", "query", "caption"]
    penalised = spatial_asks(20, 93, mixed)
    for request in penalised[2::5]:
        request.params |= {"repetition_penalty": 1.3, "logprobs": 2}
    for request in penalised[::5]:
        request.params |= {"logprobs": 2}
    constrained = spatial_asks(20, 94, mixed)
    for request in constrained[2::5]:
        request.params["structured_outputs"] = {"regex": "[a-z]{3,9}"}
    sampled = spatial_asks(15, 95, mixed)
    for index, request in enumerate(sampled):
        request.params |= {"temperature": 0.8, "seed": index}
    return [
        Workload("one point", spatial_asks(1, 90, ["point"])),
        Workload("points and boxes", spatial_asks(12, 91, ["point", "detect"])),
        Workload("mixed, late", arriving(spatial_asks(20, 92, mixed), lambda i: i * 2)),
        Workload("text with penalties and logprobs beside", penalised),
        Workload("text with a grammar beside", constrained),
        Workload("seeded", sampled),
        Workload(
            "leaving",
            leaving(
                arriving(spatial_asks(20, 96, mixed), lambda i: i),
                lambda i: 1 + i % 4 if i % 3 == 0 else None,
            ),
            ["aborted"],
        ),
    ]
