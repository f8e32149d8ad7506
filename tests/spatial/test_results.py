"""From ids to objects and their JSON, in pieces and as a whole."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_photon.spatial.results import ObjectAssembler
from vllm_photon.spatial.skills import Task
from vllm_photon.spatial.tokens import Coord, Size, SpatialVocab, size_value

VOCAB = SpatialVocab(600)


def assembled(task: Task, ids: list[int]) -> tuple[str, list[str]]:
    assembler = ObjectAssembler(task, VOCAB)
    pieces = [assembler.head(), *(assembler.push(i) for i in ids), assembler.tail()]
    return "".join(pieces), pieces


def test_points() -> None:
    ids = [VOCAB.encode(Coord(b)) for b in (512, 256, 0, 1023)]
    text, pieces = assembled(Task.POINT, [*ids, 0])
    assert json.loads(text) == {"points": [{"x": 0.5, "y": 0.25}, {"x": 0.0, "y": 1023 / 1024}]}
    assert [bool(piece) for piece in pieces] == [True, False, True, False, True, False, True]


def test_nothing_found_is_an_empty_list() -> None:
    assert json.loads(assembled(Task.POINT, [0])[0]) == {"points": []}
    assert json.loads(assembled(Task.DETECT, [0])[0]) == {"objects": []}


def test_boxes_are_clamped() -> None:
    ids = [VOCAB.encode(t) for t in (Coord(1000), Coord(10), Size(1000, 900))]
    (box,) = json.loads(assembled(Task.DETECT, ids)[0])["objects"]
    assert box == {
        "x_min": 1000 / 1024 - size_value(1000) / 2,
        "y_min": 0.0,
        "x_max": 1.0,
        "y_max": pytest.approx(10 / 1024 + size_value(900) / 2),
    }


@given(
    bins=st.lists(st.tuples(*[st.integers(0, 1023)] * 4), max_size=8),
    cut=st.integers(0, 30),
    divisor=st.sampled_from([1023, 1024]),
)
def test_cut_anywhere_the_json_holds_every_whole_object(
    bins: list[tuple[int, ...]], cut: int, divisor: int
) -> None:
    vocab = SpatialVocab(600, coord_divisor=divisor)
    ids = [
        vocab.encode(token) for x, y, w, h in bins for token in (Coord(x), Coord(y), Size(w, h))
    ][:cut]
    assembler = ObjectAssembler(Task.DETECT, vocab)
    text = "".join([assembler.head(), *map(assembler.push, ids), assembler.tail()])
    objects = json.loads(text)["objects"]
    assert objects == [shape._asdict() for shape in assembler.objects]
    assert len(objects) == len(ids) // 3
    for box in objects:
        assert all(0 <= value <= 1 for value in box.values())
        assert box["x_min"] <= box["x_max"]
        assert box["y_min"] <= box["y_max"]
