"""The made-up text model: same bytes every time, and a tokenizer that keeps a prompt's length."""

import random

import pytest
from transformers import AutoTokenizer

from benchmarks.text_model import VOCAB_SIZE, make_text_model


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_text_model(tmp_path_factory.mktemp("models") / "tiny")


def test_the_same_seed_gives_the_same_bytes_and_another_does_not(model, tmp_path):
    again = make_text_model(tmp_path / "again")
    other = make_text_model(tmp_path / "other", seed=1)
    weights = (model / "model.safetensors").read_bytes()
    assert (again / "model.safetensors").read_bytes() == weights
    assert (other / "model.safetensors").read_bytes() != weights


def test_a_model_that_is_there_is_left_alone(model):
    before = (model / "model.safetensors").stat().st_mtime_ns
    assert make_text_model(model) == model
    assert (model / "model.safetensors").stat().st_mtime_ns == before


def test_somebody_elses_folder_is_not_overwritten(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="not a model made here"):
        make_text_model(tmp_path)
    with pytest.raises(ValueError, match="size must be one of"):
        make_text_model(tmp_path / "x", size="huge")


def test_words_and_any_text_survive_the_tokenizer(model):
    tokenizer = AutoTokenizer.from_pretrained(model)
    assert len(tokenizer) == VOCAB_SIZE
    draw = random.Random(0)
    words = [draw.randrange(VOCAB_SIZE - 7000, VOCAB_SIZE) for _ in range(200)]
    assert tokenizer.encode(tokenizer.decode(words)) == words
    for text in ('{"a": [1, 2]}', "Grüße, 世界 🙂", "two  spaces\n"):
        assert tokenizer.decode(tokenizer.encode(text)) == text
