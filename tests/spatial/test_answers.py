"""Answers read back from JSON and from ids."""

from __future__ import annotations

import pytest

from vllm_photon import spatial
from vllm_photon.spatial import Answer, Box, Point, parse, parse_ids
from vllm_photon.spatial.results import box_from
from vllm_photon.spatial.tokens import Coord, Size, SpatialVocab

VOCAB = SpatialVocab(600)
BOX = {"x_min": 0.1, "y_min": 0.2, "x_max": 0.5, "y_max": 0.6}


def ids(*tokens: Coord | Size | int) -> list[int]:
    return [token if isinstance(token, int) else VOCAB.encode(token) for token in tokens]


def test_json_of_each_skill() -> None:
    assert parse('{"points": [{"x": 0.5, "y": 0.25}]}') == Answer(points=(Point(0.5, 0.25),))
    assert parse({"objects": [BOX, BOX]}) == Answer(boxes=(Box(**BOX),) * 2)
    segment = parse({"path": "M 0 0 L 1 0 L 1 1 Z", "bbox": BOX})
    assert segment.boxes == (Box(**BOX),)
    assert segment.outlines == [[Point(0.1, 0.2), Point(0.5, 0.2), Point(0.5, 0.6)]]
    assert parse({"path": "", "bbox": None}) == Answer()
    assert parse({"caption": "A red car."}) == Answer()
    grounded = {
        "answer": "Two.",
        "reasoning": {
            "text": "one, two",
            "grounding": [{"start_idx": 0, "end_idx": 3, "points": [[0.5, 0.25], [0.75, 0.5]]}],
        },
    }
    assert parse(grounded).points == (Point(0.5, 0.25), Point(0.75, 0.5))


def test_fields_beside_the_answer_are_left_alone() -> None:
    assert parse({"points": [], "request_id": "r", "usage": {"total_tokens": 3}}) == Answer()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "A red car.",
        "[]",
        "3",
        '{"points": [{"x": 1}]}',
        '{"points": 3}',
        '{"objects": 3}',
        '{"bbox": 3}',
        '{"reasoning": "because"}',
        '{"reasoning": {"grounding": [{}]}}',
    ],
)
def test_no_answer(text: str) -> None:
    with pytest.raises(ValueError, match=r"answer|line 1"):
        parse(text)


def test_points_and_boxes_from_ids() -> None:
    size = Size(700, 800)
    answer = parse_ids(
        ids(Coord(512), Coord(256), Coord(100), Coord(200), size, 17, Coord(1), Coord(2), 0), VOCAB
    )
    assert answer.points == (Point(0.5, 0.25), Point(1 / 1024, 2 / 1024))
    assert answer.boxes == (box_from(VOCAB, Coord(100), Coord(200), size),)


@pytest.mark.parametrize(
    "tokens",
    [[], [0], [Coord(5)], [Size(1, 1)], [Coord(5), Size(1, 1)], [11, 5, 6]],
)
def test_halves_are_left_out(tokens: list[Coord | Size | int]) -> None:
    assert parse_ids(ids(*tokens), VOCAB) == Answer()


def test_a_size_belongs_to_one_box() -> None:
    answer = parse_ids(ids(Coord(5), Coord(6), Size(1, 1), Size(2, 2)), VOCAB)
    assert answer.boxes == (box_from(VOCAB, Coord(5), Coord(6), Size(1, 1)),)


def test_pixels() -> None:
    assert Point(0.5, 0.25).pixels(640, 480) == (320, 120)
    assert Box(0.0, 0.25, 0.5, 1.0).pixels(640, 480) == (0, 120, 320, 480)


def test_what_the_package_offers() -> None:
    assert set(spatial.__all__) == {"Answer", "Box", "Point", "draw", "parse", "parse_ids"}
