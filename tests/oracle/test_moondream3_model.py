"""Moondream 3 alone against its two oracles: published rules and the engine's."""

from __future__ import annotations

import json
from typing import Any

import pytest
from PIL import Image

from tests.oracle.teacher import DATA, Teacher, start

MD3 = DATA / "md3"
ORACLE = {
    "published": json.loads((MD3 / "oracle_hf.json").read_text()),
    "engine": json.loads((MD3 / "oracle_kestrel.json").read_text()),
}
MAX_OBJECTS = 4
SPATIAL = [
    (entry["image"], key)
    for entry in ORACLE["published"]
    for key in entry
    if key.startswith(("point", "detect"))
]


@pytest.fixture(scope="module", params=["published", "engine"])
def rules(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def teacher(rules: str) -> Teacher:
    return Teacher(start(MD3, additional_config={"photon": {"rules": rules}}))


def picture(index: int) -> Image.Image:
    return Image.open(MD3 / f"image{index}.png")


@pytest.mark.parametrize(("image", "case"), SPATIAL)
def test_point_and_detect(teacher: Teacher, rules: str, image: int, case: str) -> None:
    fed = ORACLE[rules][image][case]["fed"]
    ids = teacher.ids(fed)
    first = max(i for i, item in enumerate(fed) if item == 3)
    hidden = teacher.follow(ids, picture(image))
    kinds = [5, 5, 6] if case.startswith("detect") else [5, 5]
    logits = teacher.logits(hidden)
    answer = ids[first + 1 :]
    for step, expected in enumerate(answer):
        at = first + step
        if step % len(kinds) == 0:
            assert logits[at, 5] >= logits[at, 0]
        assert teacher.value(hidden[at], kinds[step % len(kinds)]) == expected
    if len(answer) < MAX_OBJECTS * len(kinds):
        assert logits[-1, 0] >= logits[-1, 5]


TEXT = [
    (entry.get("image"), name, entry[name])
    for entry in ORACLE["published"]
    for name in entry
    if name.startswith("query")
] + [
    (entry["image"], f"caption {length}", entry["caption"][length])
    for entry in ORACLE["published"][:2]
    for length in entry["caption"]
]


@pytest.mark.parametrize(("image", "name", "case"), TEXT)
def test_text(teacher: Teacher, image: int | None, name: str, case: dict[str, Any]) -> None:
    """The same under both rules. Answers never hold token 3."""
    prompt = case["fed"] if image is not None else [0, *case["fed"]]
    ids = [*prompt, *case["out"]]
    logits = teacher.logits(teacher.follow(ids[:-1], picture(image) if image is not None else None))
    predicted = logits[len(prompt) - 1 :]
    predicted[1:, 3] = float("-inf")
    assert predicted.argmax(dim=-1).tolist() == case["out"]
