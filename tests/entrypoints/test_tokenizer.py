"""The tokenizer with virtual ids: everything ordinary unchanged, everything virtual readable."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
from vllm.tokenizers.hf import CachedHfTokenizer, maybe_make_thread_pool

from vllm_photon.entrypoints.tokenizer import with_virtual_ids
from vllm_photon.spatial.prompts import ModelSkills
from vllm_photon.spatial.tokens import Coord, Size, SpatialVocab

CHECKPOINT = Path(__file__).parents[1] / "data" / "oracle" / "md2"
VOCAB = SpatialVocab(600)
SKILLS = ModelSkills(VOCAB, {}, third=False)
COORD, SIZE = VOCAB.encode(Coord(512)), VOCAB.encode(Size(3, 70))


@pytest.fixture(scope="module")
def stock() -> Any:
    return CachedHfTokenizer.from_pretrained(CHECKPOINT)


@pytest.fixture(scope="module")
def ours(stock: Any) -> Any:
    return with_virtual_ids(stock, SKILLS)


def test_text_is_unchanged(stock: Any, ours: Any) -> None:
    text = "return a value for x in range"
    ids = stock.encode(text)
    assert ours.encode(text) == ids
    assert ours.decode(ids) == stock.decode(ids)
    assert ours.convert_ids_to_tokens(ids) == stock.convert_ids_to_tokens(ids)
    assert ours.decode([]) == stock.decode([])
    assert ours.decode(ids[0]) == stock.decode(ids[0])


def test_virtual_ids_can_be_read(stock: Any, ours: Any) -> None:
    ids = stock.encode("def")
    mixed = [*ids, COORD, SIZE, VOCAB.image_id, *ids]
    shown = ["<|coord_512|>", "<|size_3_70|>", "<|image|>"]
    assert ours.convert_ids_to_tokens(mixed) == [
        *stock.convert_ids_to_tokens(ids),
        *shown,
        *stock.convert_ids_to_tokens(ids),
    ]
    assert ours.decode(mixed) == f"def{''.join(shown)}def"
    assert ours.convert_ids_to_tokens(COORD) == shown[0]
    assert ours.decode(COORD) == shown[0]
    assert ours.decode([0, COORD, 0], skip_special_tokens=True) == shown[0]


def test_they_are_valid_and_nothing_beyond(ours: Any) -> None:
    assert ours.max_token_id == VOCAB.image_id == VOCAB.end - 1


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda t: pickle.loads(pickle.dumps(t))])
def test_copies_keep_it(ours: Any, duplicate: Any) -> None:
    again = duplicate(ours)
    assert again.spatial_skills == SKILLS
    assert again.decode([COORD]) == "<|coord_512|>"


def test_in_vllms_thread_pool(ours: Any) -> None:
    pooled = maybe_make_thread_pool(copy.copy(ours), 2)
    assert pooled.decode([COORD]) == "<|coord_512|>"
    assert pooled.max_token_id == VOCAB.image_id
    assert pooled.spatial_skills == SKILLS
