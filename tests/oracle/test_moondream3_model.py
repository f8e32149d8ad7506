"""Moondream 3 alone against its two oracles: published rules and the engine's."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from PIL import Image
from torch.nn import functional as F

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


@torch.inference_mode()
def test_scales_of_queries_and_values(teacher: Teacher, rules: str) -> None:
    """The two GELUs differ, and each rule set has its own."""
    attention = teacher.model.text.blocks[0].attn
    width = attention.tau.wq.shape[1]
    qkv = torch.randn(5, width, generator=torch.Generator().manual_seed(0))
    positions = torch.tensor([0, 1, 729, 730, 2000])
    weights = {name: value.clone() for name, value in attention.tau.named_parameters()}
    expected = {}
    for gelu in ("none", "tanh"):
        features = F.gelu(qkv, approximate=gelu)
        by_position = 0.5 + torch.sigmoid(
            weights["alpha"] * torch.log(positions[:, None].float() + 1)
        )
        expected[gelu] = [
            torch.tanh(features @ weights[name].T) + by_position for name in ("wq", "wv")
        ]
    own, other = ("none", "tanh") if rules == "published" else ("tanh", "none")
    got = attention.tau(positions, qkv)
    for part in range(2):
        assert torch.allclose(got[part], expected[own][part], atol=1e-6)
        assert not torch.allclose(got[part], expected[other][part], atol=1e-5)


@torch.inference_mode()
def test_experts(teacher: Teacher) -> None:
    """Against every expert computed for every token."""
    mlp = teacher.model.text.blocks[1].mlp
    x = torch.randn(7, mlp.fc1.weight.shape[2], generator=torch.Generator().manual_seed(0))
    gate, up = torch.einsum("nd,eid->nei", x, mlp.fc1.weight).chunk(2, dim=-1)
    each = torch.einsum("nei,edi->ned", F.gelu(gate) * (up + 1), mlp.fc2.weight)
    logits, _ = mlp.router(x)
    lowest_chosen = logits.topk(mlp.top).values[:, -1:]
    weights = logits.masked_fill(logits < lowest_chosen, float("-inf")).softmax(dim=-1)
    expected = (each * weights[..., None]).sum(dim=1)
    assert torch.allclose(mlp(x), expected, atol=1e-5)
