"""From ids to objects and their JSON, in pieces and as a whole."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_photon.spatial.results import ObjectAssembler, SegmentAssembler
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


BOX_IDS = [VOCAB.encode(t) for t in (Coord(512), Coord(256), Size(800, 700))]
BOX = {
    "x_min": 0.5 - size_value(800) / 2,
    "y_min": 0.25 - size_value(700) / 2,
    "x_max": 0.5 + size_value(800) / 2,
    "y_max": 0.25 + size_value(700) / 2,
}
# Ordinary ids of a path, by their text.
WORDS = dict(enumerate(["M", "0", "480", "L", "960", "0", "-", "96", "Z"], start=100)) | {
    21: " ",
    20: "x",
}
PATH_IDS = [100, 101, 102, 103, 104, 105, 108]


def segment(ids: list[int]) -> tuple[dict, list[str]]:
    assembler = SegmentAssembler(VOCAB, lambda i: WORDS[i])
    pieces = [assembler.head(), *(assembler.push(i) for i in ids), assembler.tail()]
    answer = json.loads("".join(pieces))
    assert answer["path"] == assembler.path
    assert answer.get("bbox") == (assembler.bbox and assembler.bbox._asdict())
    return answer, [piece for piece in pieces if piece]


def test_box_and_outline() -> None:
    answer, pieces = segment([*BOX_IDS, *PATH_IDS, 0])
    assert answer == {"bbox": BOX, "path": "M 0 0.5 L 1 0 Z"}
    assert pieces[2:] == [', "path": "M 0 0.5', " L 1 0", ' Z"}']


@pytest.mark.parametrize("bbox_at", range(8))
def test_a_box_that_comes_late_comes_last(bbox_at: int) -> None:
    answer, _ = segment([*PATH_IDS[:bbox_at], *BOX_IDS, *PATH_IDS[bbox_at:]])
    assert answer == {"bbox": BOX, "path": "M 0 0.5 L 1 0 Z"}
    begun = bbox_at > 3
    assert list(answer) == (["path", "bbox"] if begun else ["bbox", "path"])


@pytest.mark.parametrize("length", range(11))
def test_a_segment_cut_anywhere_is_json(length: int) -> None:
    answer, _ = segment([*BOX_IDS, *PATH_IDS][:length])
    assert ("bbox" in answer) == (length > 2)


def test_only_the_first_box_counts_and_other_tokens_say_nothing() -> None:
    answer, _ = segment([20, 7, 5, *BOX_IDS, 21, *BOX_IDS[::-1], *PATH_IDS])
    assert answer == {"bbox": BOX, "path": "M 0 0.5 L 1 0 Z"}
    assert segment([0])[0] == {"path": ""}
