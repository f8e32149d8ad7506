"""Reasoning read back from ids, against the reference code's own texts and places."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from vllm_photon.models.hf_config import Moondream2Config
from vllm_photon.spatial.prompts import ModelSkills, skills_of
from vllm_photon.spatial.reasoning import read_reasoning
from vllm_photon.spatial.tokens import Coord, SpatialVocab

MD2 = Path(__file__).parents[1] / "data" / "oracle" / "md2"
ORACLE = json.loads((MD2 / "oracle.json").read_text())[:2]


@pytest.fixture(scope="module")
def skills() -> ModelSkills:
    found = skills_of(Moondream2Config(json.loads((MD2 / "config.json").read_text())["config"]))
    assert found is not None
    return found


@pytest.mark.parametrize("entry", ORACLE, ids=lambda entry: f"image{entry['image']}")
def test_as_the_reference_reads_it(skills: ModelSkills, entry: dict) -> None:
    tokenizer = Tokenizer.from_file(str(MD2 / "tokenizer.json"))
    case = entry["query reasoning"]
    vocab = skills.vocab
    ids = [
        fed if isinstance(fed, int) else vocab.encode(Coord(vocab.coord_bin(fed["coord"])))
        for fed in case["fed"]
    ]
    produced = ids[ids.index(skills.thinking_id) + 1 :]
    assert read_reasoning(produced, skills, tokenizer.decode) == case["out"]["reasoning"]


def test_parts_are_divided_by_the_grounding_tokens() -> None:
    skills = ModelSkills(SpatialVocab(600), {}, third=True)
    x, y, z = (skills.vocab.encode(Coord(bin_)) for bin_ in (512, 256, 128))
    ids = [97, 7, 98, x, y, z, 99, 9, 100, x, 7, y, 101, 7, x, y, 3, 102, x, y]
    decode = lambda words: "".join(chr(word) for word in words if word > 9)  # noqa: E731
    assert read_reasoning(ids, skills, decode) == {
        "text": "abcde",
        "grounding": [
            {"start_idx": 1, "end_idx": 3, "points": [[0.5, 0.25]]},
            {"start_idx": 5, "end_idx": 5, "points": [[0.5, 0.25]]},
        ],
    }


def test_no_reasoning() -> None:
    skills = ModelSkills(SpatialVocab(600), {}, third=True)
    assert read_reasoning([3, 97], skills, str) == {"text": "", "grounding": []}
