"""Moondream 2 alone against the published reference: every fed token and value."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from PIL import Image

from tests.oracle.teacher import DATA, Teacher

MD2 = DATA / "md2"
MASKED = json.loads((MD2 / "oracle_masked.json").read_text())
PLAIN = json.loads((MD2 / "oracle.json").read_text())
MAX_OBJECTS = 4
SPATIAL = [
    (entry["image"], key)
    for entry in MASKED
    for key in entry
    if key.startswith(("point", "detect"))
]


@pytest.fixture
def teacher(moondream2: Teacher) -> Teacher:
    return moondream2


def picture(index: int) -> Image.Image:
    return Image.open(MD2 / f"image{index}.png")


def template_end(fed: list[Any]) -> int:
    """Index of the last token of the prompt: the answer token that ends every template."""
    return max(i for i, item in enumerate(fed) if item == 3)


@pytest.mark.parametrize(("image", "case"), SPATIAL)
def test_point_and_detect(teacher: Teacher, image: int, case: str) -> None:
    fed = MASKED[image][case]["fed"]
    ids, first = teacher.ids(fed), template_end(fed)
    hidden = teacher.follow(ids, picture(image))
    kinds = [5, 5, 6] if case.startswith("detect") else [5, 5]
    logits = teacher.logits(hidden)
    answer = ids[first + 1 :]
    for step, expected in enumerate(answer):
        kind = kinds[step % len(kinds)]
        at = first + step
        if step % len(kinds) == 0:
            assert logits[at, 5] >= logits[at, 0]
        assert teacher.value(hidden[at], kind) == expected
    assert len(answer) % len(kinds) == 0
    if len(answer) < MAX_OBJECTS * len(kinds):
        assert logits[-1, 0] >= logits[-1, 5]


@pytest.mark.parametrize("image", [0, 1])
@pytest.mark.parametrize("length", ["short", "normal", "long"])
def test_caption(teacher: Teacher, image: int, length: str) -> None:
    fed = PLAIN[image]["caption"][length]["fed"]
    check_answer(teacher, fed, template_end(fed), picture(image))


@pytest.mark.parametrize("image", [0, 1])
def test_query(teacher: Teacher, image: int) -> None:
    fed = PLAIN[image]["query"]["fed"]
    check_answer(teacher, fed, template_end(fed), picture(image))


def test_query_without_image(teacher: Teacher) -> None:
    fed = PLAIN[2]["query text-only"]["fed"]
    check_answer(teacher, fed, template_end(fed), None)


@pytest.mark.parametrize("image", [0, 1])
def test_reasoning(teacher: Teacher, image: int) -> None:
    fed = PLAIN[image]["query reasoning"]["fed"]
    ids, first = teacher.ids(fed), fed.index(4)
    end = next((i for i, item in enumerate(fed) if i > first and item == 3), len(fed))
    hidden = teacher.follow(ids, picture(image))
    logits = teacher.logits(hidden)
    for at in range(first, end - 1):
        if at > first:
            logits[at, [0, 6]] = -torch.inf
        token = int(logits[at].argmax())
        assert (teacher.value(hidden[at], 5) if token == 5 else token) == ids[at + 1]


def check_answer(teacher: Teacher, fed: list[Any], first: int, image: Image.Image | None) -> None:
    ids = teacher.ids(fed)
    logits = teacher.logits(teacher.follow(ids, image))
    logits[first + 1 :, 3] = -torch.inf
    predicted = logits[first:].argmax(dim=-1).tolist()
    assert predicted[:-1] == ids[first + 1 :]
    if len(ids) - first - 1 < 16:
        assert predicted[-1] == 0


@pytest.mark.parametrize("image", [0, 1])
def test_keys_of_the_prefix(teacher: Teacher, image: int) -> None:
    """Sums of the cached keys of the image prefix, first and last layer."""
    sums = []
    blocks = teacher.model.text.blocks
    hooks = [
        block.attn.attn.register_forward_pre_hook(
            lambda module, args: sums.append(float(args[1][: teacher.prefix_len].double().sum()))
        )
        for block in (blocks[0], blocks[-1])
    ]
    try:
        teacher.follow([1, 300, 2, 301, 3], picture(image))
    finally:
        for hook in hooks:
            hook.remove()
    expected = [PLAIN[image][name] for name in ("k_cache_l0_sum", "k_cache_last_sum")]
    assert sums == pytest.approx(expected, rel=1e-4)
