"""The accuracy benchmark's arithmetic, on cases worked out by hand."""

import math

import pytest

from benchmarks.score import Score, iou

LEFT = (0.1, 0.1, 0.3, 0.3)
RIGHT = (0.6, 0.6, 0.8, 0.8)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (LEFT, LEFT, 1.0),
        (LEFT, RIGHT, 0.0),
        ((0.0, 0.0, 0.2, 0.2), (0.1, 0.0, 0.3, 0.2), 1 / 3),
        ((0.0, 0.0, 0.4, 0.4), (0.1, 0.1, 0.3, 0.3), 0.25),
    ],
)
def test_iou(a, b, expected):
    assert iou(a, b) == pytest.approx(expected)
    assert iou(b, a) == pytest.approx(expected)


def test_a_point_counts_once_and_only_inside_its_object():
    score = Score()
    score.add_points([(0.2, 0.2), (0.21, 0.2), (0.5, 0.5)], [LEFT, RIGHT])
    assert (score.points.hit, score.points.spurious, score.points.missed) == (1, 2, 1)
    assert score.summary()["point_error"] == 0.0


def test_the_nearest_point_is_matched_first():
    score = Score()
    score.add_points([(0.29, 0.2), (0.2, 0.23)], [LEFT])
    assert score.summary()["point_error"] == pytest.approx(0.03)


def test_boxes_match_at_half_overlap():
    score = Score()
    shifted = (0.15, 0.1, 0.35, 0.3)  # IoU 0.6
    far = (0.2, 0.1, 0.4, 0.3)  # IoU 1/3
    score.add_boxes([shifted], [LEFT])
    score.add_boxes([far], [LEFT])
    assert (score.boxes.hit, score.boxes.spurious, score.boxes.missed) == (1, 1, 1)
    assert score.boxes.f1 == 0.5


def test_an_absent_object_wants_an_empty_list():
    score = Score()
    score.add_points([], [])
    score.add_boxes([LEFT], [])
    score.add_boxes([LEFT], [LEFT])
    assert (score.absent, score.absent_empty) == (2, 1)
    assert score.summary()["absent_empty"] == 0.5


def test_nothing_asked_has_no_score():
    assert all(math.isnan(value) for value in Score().summary().values())
