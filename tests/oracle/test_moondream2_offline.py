"""Moondream 2 served as users have it, in this process: every fed token and value."""

from __future__ import annotations

import json
from typing import Any

import pytest
from PIL import Image

from tests.oracle.teacher import DATA, engine, fed_ids
from vllm_photon.spatial.tokens import SpatialVocab

MD2 = DATA / "md2"
MASKED = json.loads((MD2 / "oracle_masked.json").read_text())
VOCAB = SpatialVocab(vocab_size=600)
CASES = [
    (entry["image"], key)
    for entry in MASKED
    for key in entry
    if key.startswith(("point", "detect"))
]


@pytest.fixture(scope="module")
def llm() -> Any:
    return engine(MD2)


def request(image: int, case: str) -> tuple[dict[str, Any], Any, list[int]]:
    """Prompt, sampling parameters and expected ids."""
    from vllm import SamplingParams

    task = case.split(" ")[0]
    ids = fed_ids(VOCAB, MASKED[image][case]["fed"])
    end = max(i for i, token in enumerate(ids) if token == 3) + 1
    prompt = {
        "prompt_token_ids": [0, VOCAB.image_id, *ids[:end]],
        "multi_modal_data": {"image": Image.open(MD2 / f"image{image}.png")},
    }
    params = SamplingParams(
        temperature=0,
        max_tokens=100,
        extra_args={"photon_task": task, "photon_max_objects": 4},
    )
    return prompt, params, [*ids[end:], 0]


def test_all_at_once(llm: Any) -> None:
    requests = [request(*case) for case in CASES]
    outputs = llm.generate([r[0] for r in requests], [r[1] for r in requests], use_tqdm=False)
    for case, (_, _, expected), output in zip(CASES, requests, outputs, strict=True):
        assert list(output.outputs[0].token_ids) == expected, case
        assert output.outputs[0].finish_reason == "stop"


@pytest.mark.parametrize("case", CASES[::5])
def test_alone(llm: Any, case: tuple[int, str]) -> None:
    prompt, params, expected = request(*case)
    (output,) = llm.generate(prompt, params, use_tqdm=False)
    assert list(output.outputs[0].token_ids) == expected
