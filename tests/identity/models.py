"""The models of the identity tests: a text model and its adapters, made once for each machine, and
the tiny Moondream 2 of the oracle."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from benchmarks.text_model import SHAPES, make_text_model
from tests.identity.engines import CACHE, ROOT

RANK = 8
MOONDREAM = ROOT / "tests" / "data" / "oracle" / "md2"


def text_model() -> Path:
    return make_text_model(CACHE / "text-tiny", "tiny")


MODELS = {"text": text_model, "moondream2": lambda: MOONDREAM}


def text_loras(count: int) -> list[Path]:
    """Random adapters of the attention projections, strong enough to change most tokens."""
    return [_lora(CACHE / f"text-tiny-lora{index}", index) for index in range(1, count + 1)]


def _lora(path: Path, seed: int) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    shape = SHAPES["tiny"]
    generator = torch.Generator().manual_seed(seed)
    outputs = {
        "q_proj": shape.heads * 64,
        "v_proj": shape.kv_heads * 64,
        "o_proj": shape.hidden,
    }
    tensors = {}
    for layer in range(shape.layers):
        for name, width in outputs.items():
            prefix = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            for part, rows, columns in (("A", RANK, shape.hidden), ("B", width, RANK)):
                drawn = torch.randn(rows, columns, generator=generator) / columns**0.5
                tensors[f"{prefix}.lora_{part}.weight"] = drawn
    save_file(tensors, path / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "r": RANK,
        "lora_alpha": 2 * RANK,
        "target_modules": sorted(outputs),
        "bias": "none",
        "base_model_name_or_path": "",
        "task_type": "CAUSAL_LM",
    }
    (path / "adapter_config.json").write_text(json.dumps(config))
    return path
