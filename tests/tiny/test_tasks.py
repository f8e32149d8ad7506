"""The tiny model is trained on the very sequences that the server will feed."""

import random
import types

import pytest
from tokenizers import Tokenizer

from benchmarks.scenes import sample_scene
from scripts.tiny.bins import BINS, coord_bin, size_bin
from scripts.tiny.data import Batches
from scripts.tiny.tasks import COORD, EOS, SIZE, Asker, ask, caption
from scripts.tiny.vocabulary import RESERVED, build_tokenizer, templates
from vllm_photon.spatial import tokens as served
from vllm_photon.spatial.prompts import ModelSkills
from vllm_photon.spatial.skills import SkillParams, Task


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return build_tokenizer()


@pytest.fixture(scope="module")
def asker(tokenizer) -> Asker:
    return Asker(tokenizer, templates(tokenizer))


def test_reserved_ids_are_the_published_ones(tokenizer):
    assert [tokenizer.token_to_id(t) for t in RESERVED] == list(range(len(RESERVED)))
    assert tokenizer.encode("How many red circles are there?").tokens[2] == "Ġred"
    text = "any text at all, été too"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


@pytest.mark.parametrize("skill", ["point", "detect", "query", "caption"])
def test_prompts_are_those_of_the_server(tokenizer, asker, skill):
    vocab = types.SimpleNamespace(image_id=-7)
    skills = ModelSkills(vocab=vocab, templates=templates(tokenizer), third=False)  # type: ignore[arg-type]
    text = {"caption": "normal", "query": "How many circles?"}.get(skill, "red circle")
    params = SkillParams(Task(skill))

    def encode(words: str) -> list[int]:
        return tokenizer.encode(words).ids

    if skill == "query":
        prompt = skills.chat_ids(params, [(text, "")], True, encode)
    else:
        prompt = skills.prompt_ids(params, text, True, encode)
    assert prompt == [0, -7, *asker.prompt(skill, text)]


def test_size_bins_are_those_of_the_server():
    for i in range(400):
        assert size_bin((i + 0.5) / 400) == served.size_bin((i + 0.5) / 400)


def test_coordinates_are_near_and_tell_their_axis():
    for i in range(401):
        x, y = (coord_bin(i / 400, axis) for axis in (0, 1))
        assert x % 8 == 0
        assert y % 8 == 4
        assert abs(x / BINS - i / 400) <= 8 / BINS
        assert abs(y / BINS - i / 400) <= 4 / BINS


def test_detect_sequences_follow_the_grammar(asker):
    scene = sample_scene(random.Random(8))
    want = (scene.shapes[0].colour, scene.shapes[0].kind)
    seq = asker.locate("detect", "red circle", scene, want, lambda: 0.0)
    expected = [COORD, COORD, SIZE] * len(scene.matching(*want)) + [EOS]
    assert [t for t in seq.target if t >= 0] == expected
    assert [k for k in seq.kind if k] == [1, 1, 2] * len(scene.matching(*want))


def test_captions_name_every_shape_in_order():
    scene = sample_scene(random.Random(11))
    for length in ("short", "normal", "long"):
        rest = caption(scene, length)
        for shape in scene.matching(None, None):
            assert shape.name in rest
            rest = rest.split(shape.name, 1)[1]


def test_batches_repeat_and_fill_their_budget(asker):
    def make(index: int) -> dict:
        return Batches(asker, 3, 10, 4, 96, 112, 14)[index]

    first, again, other = make(2), make(2), make(3)
    assert all((first[k] == again[k]).all() for k in first)
    assert (first["ids"] != other["ids"]).any()
    assert (first["segment"] >= 0).float().mean() > 0.8
    targets = first["target"][first["segment"] >= 0]
    assert ((targets >= -1) & (targets < 1024)).all()


def test_every_question_ends(asker):
    rng = random.Random(9)
    for _ in range(300):
        seq = ask(rng, asker, sample_scene(rng))
        assert seq.target[-1] == EOS
        assert seq.weight[-1] > 0
