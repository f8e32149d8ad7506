"""Training of a toy of the tiny model: it stops and goes on, and exports what it can read back."""

import json

import numpy as np
import pytest
import torch
from safetensors import safe_open

from benchmarks.questions import held_out
from scripts.tiny.data import resized
from scripts.tiny.evaluate import decode
from scripts.tiny.export import CROP, load
from scripts.train_tiny import Plan, Run, batches

PLAN = Plan(
    vision_steps=2, vision_batch=2, steps=3, batch=2, tokens=64, warm_steps=2, warmup=1, small=True
)


def _learn(run: Run, last: int) -> None:
    for batch in batches(PLAN, run.asker, run.step, workers=0):
        run.learn(batch)
        if run.step == last:
            return


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    run = Run(PLAN, tmp_path_factory.mktemp("straight"))
    _learn(run, 5)
    return run


def test_a_stopped_run_goes_on_as_if_it_had_not(trained, tmp_path):
    first = Run(PLAN, tmp_path)
    _learn(first, 3)
    first.save()
    again = Run(PLAN, tmp_path)
    assert again.step == 3
    _learn(again, 5)
    for name, weight in trained.trainee.state_dict().items():
        assert torch.equal(weight, again.trainee.state_dict()[name]), name
    for name, weight in trained.average.state_dict().items():
        assert torch.equal(weight, again.average.state_dict()[name]), name


def test_the_export_has_the_published_names_and_answers_alike(trained, tmp_path):
    trained.export(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["model_type"] == "moondream1"
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        names = set(file.keys())
        assert (
            file.get_slice("model.text.wte").get_shape()[0]
            == (config["config"]["text"]["vocab_size"])
        )
    assert {n.split(".")[1] for n in names} == {"text", "vision", "region"}
    assert "model.region.coord_decoder.fc2.bias" in names
    model, tokenizer = load(tmp_path)
    assert tokenizer.get_vocab_size() == config["config"]["text"]["vocab_size"]
    _, _, image = next(held_out(0, 1, CROP))
    pixels = torch.from_numpy(np.asarray(resized(image, CROP), np.float32))[None] / 127.5 - 1
    prompt = trained.asker.prompt("detect", "red circle")
    rounded = {k: w.half().float() for k, w in trained.average.state_dict().items()}
    trained.average.load_state_dict(rounded)
    rows = [decode(m, pixels, [("detect", prompt)])[0] for m in (model, trained.average)]
    assert rows[0].values == rows[1].values
