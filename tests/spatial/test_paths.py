"""Outlines: from single tokens to a path, from a path to polygons."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_photon.spatial.paths import CURVE_STEPS, PathReader, polygons
from vllm_photon.spatial.shapes import Box, Point

WHOLE = Box(0.0, 0.0, 1.0, 1.0)
SQUARE = "M 0 0 960 0 960 480 0 480 Z"


def read(text: str) -> tuple[str, list[str]]:
    reader = PathReader()
    pieces = [*(reader.push(token) for token in text.split()), reader.end()]
    assert reader.path == "".join(pieces)
    return reader.path, [piece for piece in pieces if piece]


def test_commands_come_whole_and_scaled() -> None:
    path, pieces = read("M 240 480 C 0 0 96 96 480 960 z")
    assert path == "M 0.25 0.5 C 0 0 0.1 0.1 0.5 1 z"
    assert pieces == ["M 0.25 0.5", " C 0 0 0.1 0.1 0.5 1", " z"]


def test_signs_are_tokens() -> None:
    assert read("m 96 96 l - 96 480 v - 48")[0] == "m 0.1 0.1 l -0.1 0.5 v -0.05"


def test_angle_and_flags_of_an_arc_are_not_scaled() -> None:
    assert read("M 0 0 A 96 48 30 1 0 960 960")[0] == "M 0 0 A 0.1 0.05 30 1 0 1 1"


@pytest.mark.parametrize(
    ("tokens", "path"),
    [
        ("", ""),
        ("5 5", ""),
        ("- M 0 0", ""),
        ("M 96 96 L 96", "M 0.1 0.1"),
        ("M 96 96 96", "M 0.1 0.1"),
        ("M 96 96 what L 1 1", "M 0.1 0.1"),
        ("M 96 96 L 96 - - 96", "M 0.1 0.1"),
        ("M 96 96 L 96 - Z", "M 0.1 0.1"),
        ("M 96 96 L 1.5 2", "M 0.1 0.1"),
        ("M 96 96 ² 2", "M 0.1 0.1"),
        ("L 96 96 M 96 96", ""),
        ("M 96 L 96 96", ""),
        ("M 96 96 Z 5 L 96 96", "M 0.1 0.1 Z L 0.1 0.1"),
    ],
)
def test_a_mistake_ends_the_path(tokens: str, path: str) -> None:
    assert read(tokens)[0] == path


@given(st.lists(st.sampled_from([*"MmLlCcQqSsTtHhVvAaZz-", "5", "960", "x"])))
def test_whatever_comes_the_path_can_be_read(tokens: list[str]) -> None:
    path, _ = read(" ".join(["M", "0", "0", *tokens]))
    polygons(path, WHOLE)


def test_polygons_lie_in_the_box() -> None:
    (outline,) = polygons(read(SQUARE)[0], Box(0.2, 0.4, 0.6, 0.8))
    assert outline == [
        pytest.approx(corner) for corner in ((0.2, 0.4), (0.6, 0.4), (0.6, 0.6), (0.2, 0.6))
    ]


def test_relative_and_short_commands() -> None:
    assert polygons("m 0.25 0.25 h 0.5 v 0.5 H 0.25 z", WHOLE) == [
        [Point(0.25, 0.25), Point(0.75, 0.25), Point(0.75, 0.75), Point(0.25, 0.75)]
    ]


def test_after_closing_the_pen_is_where_it_began() -> None:
    first, second = polygons("M0.5,0.5l0.25,0,0,0.25zm-0.25-0.25l0.125,0,0,0.125z", WHOLE)
    assert first[0] == Point(0.5, 0.5)
    assert second == [Point(0.25, 0.25), Point(0.375, 0.25), Point(0.375, 0.375)]


def test_curves_pass_where_they_must() -> None:
    (outline,) = polygons("M 0 0 C 0 1 1 1 1 0 S 0.5 0.5 0 0", WHOLE)
    assert len(outline) == 1 + 2 * CURVE_STEPS
    assert outline[CURVE_STEPS // 2] == pytest.approx((0.5, 0.75))
    assert outline[CURVE_STEPS] == (1.0, 0.0)
    # The smooth curve leaves in the direction in which the first one came.
    assert outline[CURVE_STEPS + 1].y < 0
    (smooth,) = polygons("M 0 0 Q 0.5 1 1 0 T 2 0", WHOLE)
    assert smooth[CURVE_STEPS + CURVE_STEPS // 2] == pytest.approx((1.5, -0.5))


@pytest.mark.parametrize("path", ["L 0 0", "5 5", "M 0", "M 0 0 Z 5", "M 0 x", "M 0 0 C 1 L 0 0"])
def test_no_path(path: str) -> None:
    with pytest.raises(ValueError, match="path"):
        polygons(path, WHOLE)


def test_two_points_hold_nothing() -> None:
    assert polygons("M 0 0 L 1 1 Z", WHOLE) == []
