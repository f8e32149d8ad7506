"""A small Llama-type text model with random weights, made on the spot: nothing is downloaded.

The directory is an ordinary Hugging Face checkpoint (config, safetensors, fast tokenizer with a
chat template), so every engine option works on it. The same size and seed always give the same
bytes. Weights are drawn wide enough that greedy decoding wanders over the vocabulary and that the
best logit stands clear of the second: rounding seldom decides a token.
"""

import argparse
import itertools
import json
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

SPECIAL = ("<s>", "</s>", "<pad>")
BOS_ID, EOS_ID, PAD_ID = range(len(SPECIAL))
VOCAB_SIZE = 8192
RECIPE = 1  # raise it when the bytes that a (size, seed) gives change

_CONSONANTS = "bcdfghjklmnpqrstvwxz"
_VOWELS = "aeiou"
_CHAT_TEMPLATE = (
    "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}"
)


@dataclass(frozen=True)
class TextShape:
    """Dimensions of the decoder; head size is 64 throughout."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    mlp: int


SHAPES = {
    "tiny": TextShape(hidden=256, layers=4, heads=4, kv_heads=2, mlp=512),  # 7 M parameters
    "small": TextShape(hidden=768, layers=10, heads=12, kv_heads=4, mlp=2048),  # 75 M
}


def make_text_model(path: Path, size: str = "tiny", seed: int = 0) -> Path:
    """Make the model directory at `path`, unless the same model is there already.

    Raises ValueError if the size is unknown or `path` holds something else.
    """
    if size not in SHAPES:
        raise ValueError(f"size must be one of {sorted(SHAPES)}, not {size!r}")
    path = Path(path)
    recipe = {"recipe": RECIPE, "size": size, "seed": seed}
    if path.exists():
        if _recipe_of(path) == recipe:
            return path
        if _recipe_of(path) is None and any(path.iterdir()):
            raise ValueError(f"{path} exists and is not a model made here")
    building = path.with_name(f"{path.name}.{os.getpid()}.part")
    building.mkdir(parents=True)
    _write_config(building, SHAPES[size])
    _write_tokenizer(building)
    save_file(_weights(SHAPES[size], seed), building / "model.safetensors", {"format": "pt"})
    (building / "recipe.json").write_text(json.dumps(recipe))
    shutil.rmtree(path, ignore_errors=True)
    try:
        building.rename(path)
    except OSError:  # another process made the same model meanwhile
        shutil.rmtree(building)
    return path


def _recipe_of(path: Path) -> dict | None:
    stamp = path / "recipe.json"
    return json.loads(stamp.read_text()) if stamp.is_file() else None


def _write_config(path: Path, shape: TextShape) -> None:
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": VOCAB_SIZE,
        "hidden_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": 64,
        "intermediate_size": shape.mlp,
        "hidden_act": "silu",
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "bos_token_id": BOS_ID,
        "eos_token_id": EOS_ID,
        "pad_token_id": PAD_ID,
        "torch_dtype": "bfloat16",
    }
    (path / "config.json").write_text(json.dumps(config, indent=2))


def _write_tokenizer(path: Path) -> None:
    """Byte-level BPE whose merges spell two-syllable words, each with its leading space.

    Any text has an encoding, since all 256 bytes are tokens; a word of the vocabulary encodes to
    the one token that it was decoded from, so a random prompt keeps its length.
    """
    space = "Ġ"
    syllables = [c + v for c, v in itertools.product(_CONSONANTS, _VOWELS)]
    merges = [(s[0], s[1]) for s in syllables] + [(space, s) for s in syllables]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    free = VOCAB_SIZE - len(SPECIAL) - len(alphabet) - len(merges)
    pairs = itertools.product(syllables, syllables)
    merges += [(space + a, b) for a, b in itertools.islice(pairs, free)]
    tokens = [*SPECIAL, *alphabet, *(a + b for a, b in merges)]
    tokenizer = Tokenizer(BPE({t: i for i, t in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.save(str(path / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIAL[BOS_ID],
        "eos_token": SPECIAL[EOS_ID],
        "pad_token": SPECIAL[PAD_ID],
        "model_max_length": 4096,
        "clean_up_tokenization_spaces": False,
        "chat_template": _CHAT_TEMPLATE,
    }
    (path / "tokenizer_config.json").write_text(json.dumps(settings, indent=2))


def _weights(shape: TextShape, seed: int) -> dict[str, torch.Tensor]:
    """bfloat16 tensors under the names of a Llama checkpoint, linear weights [out, in]."""
    generator = torch.Generator().manual_seed(seed)

    def draw(rows: int, columns: int, scale: float) -> torch.Tensor:
        return (torch.randn(rows, columns, generator=generator) * scale).to(torch.bfloat16)

    def linear(rows: int, columns: int, gain: float = 1.0) -> torch.Tensor:
        return draw(rows, columns, gain / columns**0.5)

    ones = torch.ones(shape.hidden, dtype=torch.bfloat16)
    kv = shape.kv_heads * 64
    tensors = {
        "model.embed_tokens.weight": draw(VOCAB_SIZE, shape.hidden, 1.0),
        "model.norm.weight": ones.clone(),
        "lm_head.weight": linear(VOCAB_SIZE, shape.hidden, gain=3.0),
    }
    for layer in range(shape.layers):
        prefix = f"model.layers.{layer}."
        tensors |= {
            prefix + "input_layernorm.weight": ones.clone(),
            prefix + "post_attention_layernorm.weight": ones.clone(),
            prefix + "self_attn.q_proj.weight": linear(shape.heads * 64, shape.hidden, gain=2.0),
            prefix + "self_attn.k_proj.weight": linear(kv, shape.hidden, gain=2.0),
            prefix + "self_attn.v_proj.weight": linear(kv, shape.hidden),
            prefix + "self_attn.o_proj.weight": linear(shape.hidden, shape.heads * 64),
            prefix + "mlp.gate_proj.weight": linear(shape.mlp, shape.hidden),
            prefix + "mlp.up_proj.weight": linear(shape.mlp, shape.hidden),
            prefix + "mlp.down_proj.weight": linear(shape.hidden, shape.mlp),
        }
    return tensors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path", type=Path)
    parser.add_argument("--size", choices=sorted(SHAPES), default="tiny")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print(make_text_model(options.path, options.size, options.seed))
    print(json.dumps(asdict(SHAPES[options.size])))


if __name__ == "__main__":
    main()
