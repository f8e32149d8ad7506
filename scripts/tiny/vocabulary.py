"""The tiny model's words: a byte-level BPE tokenizer in which every word used is one token."""

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from benchmarks.scenes import COLOURS, KINDS

RESERVED = ["<|endoftext|>", *(f"<|md_reserved_{i}|>" for i in range(9)), "<image>"]
_SENTENCES = (
    "How many {s} are there? How many {s}? Count the {s}. How many {s} are in the picture?",
    "how many {s} are in the image?",
    "Is there a {o}? Is there a {o} in the picture? yes no",
    "What colour is the {o}? What color is the {o}? What shape is the {o}?",
    "The picture shows a {o}, a {o} and a {o}.",
    "The picture shows 2 shapes. From left to right: a small {o} at the top, a large {o} in the"
    " middle, a {o} at the bottom.",
    "a {o} a {s} no one shapes shape nothing",
    " caption query detect point short normal long",
)


def _corpus() -> list[str]:
    lines = ["yes", "no"]
    for noun in (*KINDS, "shape"):
        for colour in ("", *COLOURS):
            name = f"{colour} {noun}".strip()
            lines += [s.format(o=name, s=name + "s") for s in _SENTENCES]
            lines += [colour, noun, noun + "s", f"a {colour}"]
    return lines * 3


def build_tokenizer() -> Tokenizer:
    """Train the tokenizer; ids 0 to 10 are the reserved ones of the published vocabulary."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1024,
        min_frequency=2,
        special_tokens=[AddedToken(t, special=True) for t in RESERVED],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_corpus(), trainer)
    return tokenizer


def templates(tokenizer: Tokenizer) -> dict[str, Any]:
    """Prompt templates of the published form over this vocabulary."""

    def word(text: str) -> int:
        ids = tokenizer.encode(" " + text).ids
        if len(ids) != 1:
            raise ValueError(f"{text!r} is {len(ids)} tokens, not one")
        return ids[0]

    return {
        "caption": {n: [1, word("caption"), 2, word(n), 3] for n in ("short", "normal", "long")},
        "query": {"prefix": [1, word("query"), 2], "suffix": [3]},
        "detect": {"prefix": [1, word("detect"), 2], "suffix": [3]},
        "point": {"prefix": [1, word("point"), 2], "suffix": [3]},
    }


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write tokenizer.json and the tokenizer_config.json that goes with it."""
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "bos_token": RESERVED[0],
        "eos_token": RESERVED[0],
        "model_max_length": 2048,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")
