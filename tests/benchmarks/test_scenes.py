"""Synthetic pictures and the questions about them."""

import io
import json
import random

import numpy as np
import pytest
from PIL import Image

from benchmarks.questions import held_out, photograph, read_folder, wanted_in, write_folder
from benchmarks.scenes import COLOURS, MAX_SHAPES, paint, paint_owners, sample_scene

SIZE = (160, 120)


def test_scenes_repeat_with_their_seed():
    first, again = (sample_scene(random.Random(5)) for _ in range(2))
    assert first == again
    assert first != sample_scene(random.Random(6))


@pytest.mark.parametrize("seed", range(20))
def test_the_picture_shows_each_shape_in_its_box(seed):
    scene = sample_scene(random.Random(seed), aspect=SIZE[0] / SIZE[1])
    assert 1 <= len(scene.shapes) <= MAX_SHAPES
    pixels = np.asarray(paint(scene, SIZE)).reshape(SIZE[1], SIZE[0], 3)
    owners = np.asarray(paint_owners(scene, SIZE))
    for i, shape in enumerate(scene.shapes):
        ys, xs = np.nonzero(owners == i + 1)
        assert len(xs) > 0.2 * shape.w * shape.h * owners.size
        assert (pixels[ys, xs] == shape.rgb).all()
        x_min, y_min, x_max, y_max = shape.box
        assert xs.min() >= x_min * SIZE[0] - 1
        assert xs.max() <= x_max * SIZE[0] + 1
        assert ys.min() >= y_min * SIZE[1] - 1
        assert ys.max() <= y_max * SIZE[1] + 1
    assert (pixels[owners == 0] == scene.background).all()


def test_matching_is_ordered_and_filtered():
    scene = sample_scene(random.Random(3))
    everything = scene.matching(None, None)
    assert [s.x for s in everything] == sorted(s.x for s in scene.shapes)
    for colour in COLOURS:
        assert scene.matching(colour, None) == [s for s in everything if s.colour == colour]


@pytest.mark.parametrize("absent", [True, False])
def test_wanted_is_absent_or_present_as_asked(absent):
    rng = random.Random(1)
    for _ in range(300):
        scene = sample_scene(rng)
        assert (not scene.matching(*wanted_in(rng, scene, absent))) == absent


def test_pictures_come_in_many_sizes():
    rng = random.Random(2)
    sizes = {photograph(rng, 112)[1].size for _ in range(60)}
    assert (112, 112) in sizes
    assert len(sizes) > 10


def test_questions_survive_their_folder(tmp_path):
    questions = [q for q, _, _ in held_out(4, 12, 64)]
    write_folder(tmp_path, questions)
    assert read_folder(tmp_path) == questions
    assert Image.open(io.BytesIO(questions[0].image)).mode == "RGB"


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"skill": "segment"}, "segment"),
        ({"boxes": [[0.5, 0.1, 0.2, 0.4]]}, "x_min"),
        ({"boxes": [[0.1, 0.2]]}, "unpack"),
        ({"image": "missing.png"}, "missing.png"),
    ],
)
def test_a_bad_line_is_named(tmp_path, change, named):
    write_folder(tmp_path, [q for q, _, _ in held_out(4, 3, 64)])
    path = tmp_path / "questions.jsonl"
    lines = path.read_text().splitlines()
    lines[1] = json.dumps({**json.loads(lines[1]), **change})
    path.write_text("\n".join(lines))
    with pytest.raises(ValueError, match=f"line 2.*{named}"):
        read_folder(tmp_path)
