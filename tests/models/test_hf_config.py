"""Configuration: published format, defaults, and which generation a checkpoint is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vllm_photon import models
from vllm_photon.models.hf_config import (
    MOONDREAM2,
    MOONDREAM3,
    Moondream2Config,
    Vision,
)

ORACLE = Path(__file__).parents[1] / "data" / "oracle"


def load(folder: Path, config: dict[str, Any]) -> Moondream2Config:
    """As vLLM loads it, ``--trust-remote-code`` included."""
    from vllm.transformers_utils.config import get_config

    models.register()
    (folder / "config.json").write_text(json.dumps(config))
    return get_config(str(folder), trust_remote_code=True)


def published(model_type: str, nested: dict[str, Any] | None = None) -> dict[str, Any]:
    config = {
        "architectures": ["HfMoondream"],
        "auto_map": {"AutoConfig": "hf_moondream.HfConfig"},
        "model_type": model_type,
        "torch_dtype": "bfloat16",
    }
    return config if nested is None else {**config, "config": nested}


@pytest.mark.parametrize("nested", [None, {}])
def test_published_moondream2_defaults(tmp_path: Path, nested: dict[str, Any] | None) -> None:
    config = load(tmp_path, published("moondream1", nested))
    assert config.architectures == [MOONDREAM2]
    text = config.get_text_config()
    assert (text.hidden_size, text.num_hidden_layers, text.vocab_size) == (2048, 24, 51200)
    assert (text.num_attention_heads, text.max_position_embeddings) == (32, 2048)
    assert text.rope_base == 10000
    assert (config.vision.prefix_len, config.region.inner_dim) == (730, 8192)
    assert (config.bos_token_id, config.eos_token_id) == (0, 0)
    assert config.spatial_vocab().image_id == 51200 + 1024 + 1024 * 1024
    assert config.is_mm_prefix_lm


@pytest.mark.parametrize("nested", [None, {}])
def test_published_moondream3_defaults(tmp_path: Path, nested: dict[str, Any] | None) -> None:
    config = load(tmp_path, published("moondream3", nested))
    assert config.architectures == [MOONDREAM3]
    text = config.get_text_config()
    assert text.rope_base == 1500000
    assert (text.experts.n_experts, text.experts.start_layer) == (64, 4)
    assert text.num_experts_per_tok == 8


def test_experts_make_a_moondream3(tmp_path: Path) -> None:
    config = load(tmp_path, published("moondream1", {"text": {"moe": {"n_experts": 4}}}))
    assert config.architectures == [MOONDREAM3]


def test_nothing_is_fixed_to_published_sizes(tmp_path: Path) -> None:
    nested = {"vision": {"crop_size": 112, "overlap_margin": 1}, "text": {"dim": 128}}
    config = load(tmp_path, published("moondream1", nested))
    assert (config.vision.grid, config.vision.prefix_len, config.vision.window) == (8, 65, 84)
    assert config.get_text_config().hidden_size == 128


def test_survives_json(tmp_path: Path) -> None:
    config = load(tmp_path, json.loads((ORACLE / "md2" / "config.json").read_text()))
    again = Moondream2Config(**config.to_dict())
    assert again.get_text_config().vocab_size == 600
    assert again.tokens.templates["point"]["prefix"] == [1, 307, 2]


def test_refuses_what_it_cannot_load(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="group_size"):
        load(tmp_path, published("moondream1", {"text": {"group_size": 128}}))
    with pytest.raises(ValueError, match="overlap_margin"):
        Vision(crop_size=112, overlap_margin=4)
