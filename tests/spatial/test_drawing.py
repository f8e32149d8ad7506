"""Drawing: the right pixels change, whatever the picture is."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from vllm_photon.spatial import Answer, Box, Point, draw

GREY = (90, 90, 90)


def picture(width: int = 300, height: int = 200, mode: str = "RGB") -> Image.Image:
    return Image.new("RGB", (width, height), GREY).convert(mode)


def changed(drawn: Image.Image) -> np.ndarray:
    """Which pixels [height, width] are no longer grey."""
    return (np.asarray(drawn) != GREY).any(axis=-1)


def test_a_box_is_a_frame() -> None:
    image = picture()
    drawn = changed(draw(image, Answer(boxes=(Box(0.1, 0.2, 0.5, 0.8),))))
    ys, xs = np.nonzero(drawn)
    assert (xs.min(), xs.max()) == (30, 150)
    assert (ys.min(), ys.max()) == (40, 160)
    assert not drawn[60:140, 50:130].any()
    assert not changed(image).any()


def test_a_point_is_a_dot() -> None:
    drawn = changed(draw(picture(), {"points": [{"x": 0.5, "y": 0.25}]}))
    ys, xs = np.nonzero(drawn)
    assert xs.mean() == pytest.approx(150, abs=1)
    assert ys.mean() == pytest.approx(50, abs=1)
    assert drawn[50, 150]


def test_an_outline_is_filled() -> None:
    answer = {
        "path": "M 0 0 L 1 0 L 0 1 Z",
        "bbox": {"x_min": 0.0, "y_min": 0.0, "x_max": 1.0, "y_max": 1.0},
    }
    drawn = changed(draw(picture(), answer))
    assert drawn[60, 60]
    assert not drawn[150, 240]


def test_several_are_numbered_and_labelled() -> None:
    boxes = (Box(0.1, 0.3, 0.4, 0.6), Box(0.5, 0.3, 0.9, 0.6))
    plain = changed(draw(picture(), Answer(boxes=boxes[:1])))
    labelled = changed(draw(picture(), Answer(boxes=boxes[:1]), "cat"))
    numbered = changed(draw(picture(), Answer(boxes=boxes)))
    assert labelled.sum() > plain.sum()
    assert not (plain & ~labelled).any()
    above = (slice(40, 58), slice(28, 60))
    assert numbered[above].any()
    assert not plain[above].any()


@pytest.mark.parametrize("corner", [(0.0, 0.0), (1.0, 1.0), (1.0, 0.0)])
def test_labels_stay_inside(corner: tuple[float, float]) -> None:
    inside = changed(draw(picture(), Answer(points=(Point(0.5, 0.5),)), "a long label"))
    at_corner = changed(draw(picture(), Answer(points=(Point(*corner),)), "a long label"))
    assert at_corner.sum() > inside.sum() * 0.8


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "1", "I;16", "CMYK"])
def test_any_mode(mode: str) -> None:
    image = Image.new(mode, (40, 30))
    assert draw(image, Answer(points=(Point(0.5, 0.5),)), "x").mode == "RGB"


@pytest.mark.parametrize("size", [(1, 1), (3, 500), (2000, 5)])
def test_any_size(size: tuple[int, int]) -> None:
    answer = Answer(points=(Point(0.5, 0.5),), boxes=(Box(0.0, 0.0, 1.0, 1.0),))
    assert draw(picture(*size), answer, "label").size == size


def test_colour() -> None:
    drawn = np.asarray(draw(picture(), Answer(points=(Point(0.5, 0.5),)), color="blue"))
    assert tuple(drawn[100, 150]) == (0, 0, 255)


def test_the_displayed_orientation() -> None:
    """A photo held upright: stored lying, its coordinates are those of the upright picture."""
    image = picture(300, 200)
    image.getexif()[0x0112] = 6
    drawn = draw(image, Answer(boxes=(Box(0.0, 0.0, 0.5, 0.1),)))
    assert drawn.size == (200, 300)
    ys, xs = np.nonzero(changed(drawn))
    assert (xs.max(), ys.max()) == (100, 30)


def test_nothing_found_changes_nothing() -> None:
    assert not changed(draw(picture(), '{"objects": []}', "cat")).any()


def test_the_package_needs_neither_torch_nor_vllm() -> None:
    code = (
        "import sys, vllm_photon.spatial; "
        "assert not {'torch', 'vllm', 'PIL', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
