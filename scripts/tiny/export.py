"""Write and read a checkpoint folder in the published Moondream 2 form."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from scripts.tiny.model import TinyMoondream
from scripts.tiny.vocabulary import save_tokenizer, templates

CROP, PATCH = 112, 14


def model_config(tokenizer: Tokenizer, small: bool = False) -> dict[str, Any]:
    """The nested `config` of config.json; `small` is a toy for tests of this code."""
    dim, layers, enc_dim, enc_layers = (192, 3, 32, 1) if small else (192, 3, 128, 4)
    return {
        "text": {
            "dim": dim,
            "ff_dim": 2 * dim,
            "n_layers": layers,
            "vocab_size": tokenizer.get_vocab_size(),
            "max_context": 2048,
            "n_heads": dim // 64,
            "n_kv_heads": dim // 64,
            "prefix_attn": 1 + (CROP // PATCH) ** 2,
        },
        "vision": {
            "enc_dim": enc_dim,
            "enc_patch_size": PATCH,
            "enc_n_layers": enc_layers,
            "enc_ff_dim": 4 * enc_dim,
            "enc_n_heads": enc_dim // 32,
            "proj_out_dim": dim,
            "crop_size": CROP,
            "in_channels": 3,
            "max_crops": 1,
            "overlap_margin": 1,
            "proj_inner_dim": 2 * dim,
        },
        "region": {
            "dim": dim,
            "coord_feat_dim": 256,
            "coord_out_dim": 1024,
            "size_feat_dim": 256,
            "size_out_dim": 2048,
            "inner_dim": dim,
        },
        "tokenizer": {
            "bos_id": 0,
            "eos_id": 0,
            "answer_id": 3,
            "thinking_id": None,  # it has never seen reasoning
            "coord_id": 5,
            "size_id": 6,
            "start_ground_points_id": 7,
            "end_ground_id": 9,
            "templates": templates(tokenizer),
        },
    }


def export(
    weights: dict[str, torch.Tensor],
    config: dict[str, Any],
    tokenizer: Tokenizer,
    folder: Path,
) -> None:
    """Write config.json, model.safetensors, tokenizer.json and tokenizer_config.json.

    The file holds float16 to be small, which keeps the tuned frequencies exact. The config says
    float32, which is what it was tuned in; vLLM's own choice, bfloat16, answers as well.
    """
    folder.mkdir(parents=True, exist_ok=True)
    outer = {
        "architectures": ["HfMoondream"],
        "model_type": "moondream1",
        "torch_dtype": "float32",
        "config": config,
    }
    (folder / "config.json").write_text(json.dumps(outer, indent=1) + "\n")
    cast = {f"model.{name}": w.half().contiguous() for name, w in weights.items()}
    save_file(cast, folder / "model.safetensors", metadata={"format": "pt"})
    save_tokenizer(tokenizer, folder)


def load(folder: Path) -> tuple[TinyMoondream, Tokenizer]:
    """The model of such a folder, in float32, with its tokenizer."""
    config = json.loads((folder / "config.json").read_text())["config"]
    model = TinyMoondream(config)
    weights = load_file(folder / "model.safetensors")
    model.load_state_dict({k.removeprefix("model."): w.float() for k, w in weights.items()})
    return model, Tokenizer.from_file(str(folder / "tokenizer.json"))
