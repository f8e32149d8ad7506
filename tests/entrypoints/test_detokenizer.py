"""Text of answers: JSON in pieces for objects, ordinary text otherwise."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from vllm import SamplingParams
from vllm.tokenizers.hf import CachedHfTokenizer
from vllm.v1.engine.detokenizer import FastIncrementalDetokenizer, IncrementalDetokenizer

from vllm_photon import compat
from vllm_photon.entrypoints.tokenizer import with_virtual_ids
from vllm_photon.spatial.prompts import ModelSkills
from vllm_photon.spatial.tokens import Coord, Size, SpatialVocab

CHECKPOINT = Path(__file__).parents[1] / "data" / "oracle" / "md2"
VOCAB = SpatialVocab(600)
SKILLS = ModelSkills(VOCAB, {}, third=False)
ANSWER = SKILLS.answer_id
COORD, SIZE = VOCAB.encode(Coord(512)), VOCAB.encode(Size(3, 70))


@pytest.fixture(scope="module")
def stock() -> Any:
    return CachedHfTokenizer.from_pretrained(CHECKPOINT)


def detokenizer(tokenizer: Any, **settings: Any) -> IncrementalDetokenizer:
    compat.detokenizer_hook()
    request = SimpleNamespace(
        sampling_params=SamplingParams(**settings),
        request_id="r",
        prompt_token_ids=[0, VOCAB.image_id, 1, COORD, 2],
        prompt_embeds=None,
    )
    return IncrementalDetokenizer.from_new_request(tokenizer, request)


@pytest.fixture(scope="module")
def ours(stock: Any) -> Any:
    return with_virtual_ids(stock, SKILLS)


def test_objects_come_one_by_one(ours: Any) -> None:
    text = detokenizer(ours, extra_args={"photon_task": "point"})
    pieces = []
    for ids in ([COORD], [COORD], [COORD, COORD], []):
        text.update(ids, stop_terminated=False)
        pieces.append(text.get_next_output_text(finished=False, delta=True))
    text.update([0], stop_terminated=True)
    pieces.append(text.get_next_output_text(finished=True, delta=True))
    point = '{"x": 0.5, "y": 0.5}'
    assert pieces == ['{"points": [', point, f", {point}", "", "]}"]
    assert text.get_next_output_text(finished=True, delta=False) == "".join(pieces)
    assert text.output_token_ids == [COORD] * 4 + [0]
    assert text.num_output_tokens() == 5


@pytest.mark.parametrize("length", range(7))
def test_cut_anywhere_it_is_closed(ours: Any, length: int) -> None:
    text = detokenizer(ours, extra_args={"photon_task": "detect"})
    text.update([COORD, COORD, SIZE, COORD, COORD, SIZE][:length], stop_terminated=False)
    answer = json.loads(text.get_next_output_text(finished=True, delta=False))
    assert len(answer["objects"]) == length // 3


def test_text_without_the_values(ours: Any) -> None:
    text = detokenizer(ours, extra_args={"photon_task": "query", "photon_reasoning": True})
    ids = ours.encode("import os")
    text.update([ids[0], COORD, *ids[1:]], stop_terminated=False)
    assert text.get_next_output_text(finished=True, delta=False) == "import os"


@pytest.mark.parametrize("again", [[], [ANSWER]])
def test_the_end_of_reasoning_is_shown_once(ours: Any, again: list[int]) -> None:
    """Also where the answer token is repeated, as after Moondream 2's reasoning."""
    text = detokenizer(ours, extra_args={"photon_task": "query", "photon_reasoning": True})
    ids = ours.encode("return a")
    text.update([*ids, COORD, ANSWER, *again, *ids], stop_terminated=False)
    assert text.get_next_output_text(finished=False, delta=True) == "return a</think>return a"


def test_without_reasoning_the_answer_token_has_no_text(ours: Any) -> None:
    text = detokenizer(ours, extra_args={"photon_task": "query"})
    text.update([ANSWER, *ours.encode("def")], stop_terminated=False)
    assert text.get_next_output_text(finished=True, delta=True) == "def"


def test_segments(ours: Any) -> None:
    """Box, then the path command by command; ids by their own text, not joined."""
    text = detokenizer(ours, extra_args={"photon_task": "segment"})
    path = [ours.convert_tokens_to_ids(token) for token in "M0-9LZ"]
    pieces = []
    for ids in ([COORD, COORD, SIZE], path[:4], path[4:5], path[1:2] * 2, path[5:], [0]):
        text.update(ids, stop_terminated=False)
        pieces.append(text.get_next_output_text(finished=ids == [0], delta=True))
    assert pieces[0].startswith('{"bbox": {"x_min": ')
    assert pieces[1:] == ["", ', "path": "M 0 -0.009', "", " L 0 0", ' Z"}']
    assert json.loads("".join(pieces))["path"] == "M 0 -0.009 L 0 0 Z"


def test_other_models_keep_theirs(stock: Any) -> None:
    assert type(detokenizer(stock)) is FastIncrementalDetokenizer
    assert type(detokenizer(None)) is IncrementalDetokenizer
