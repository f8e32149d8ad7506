"""Text answers of Moondream 3 as its oracles have them, and what the engine's rules change."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from tokenizers import Tokenizer

from tests.oracle.teacher import DATA, engine

QUESTION_IDS = [97, 82, 298, 367, 419, 448]
FILES = {"published": "oracle_hf.json", "engine": "oracle_kestrel.json"}
LIMIT = 8


def question(checkpoint: Path) -> str:
    return Tokenizer.from_file(str(checkpoint / "tokenizer.json")).decode(QUESTION_IDS)


def messages(image: Image.Image | None, text: str) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = [{"type": "text", "text": text}]
    if image is not None:
        parts.append({"type": "image_pil", "image_pil": image})
    return [{"role": "user", "content": parts}]


def answer(llm: Any, chat: list[dict[str, Any]], max_tokens: int, **arguments: Any) -> Any:
    from vllm import SamplingParams

    (output,) = llm.chat(
        chat,
        SamplingParams(temperature=0, max_tokens=max_tokens),
        use_tqdm=False,
        chat_template_kwargs={f"photon_{k}": v for k, v in arguments.items()},
    )
    return output


@pytest.mark.parametrize("rules", FILES)
def test_moondream3(rules: str) -> None:
    """Captions and questions, with and without an image; reasoning starts as the oracle's."""
    md3 = DATA / "md3"
    llm = engine(md3, additional_config={"photon": {"rules": rules}})
    *images, text_only = json.loads((md3 / FILES[rules]).read_text())
    for entry in images:
        with Image.open(md3 / f"image{entry['image']}.png") as image:
            cases = [
                (entry["caption"][length], "", {"task": "caption", "length": length})
                for length in ("short", "normal", "long")
            ]
            asked = question(md3)
            cases.append((entry["query"], asked, {"task": "query"}))
            for case, text, arguments in cases:
                output = answer(llm, messages(image, text), len(case["out"]), **arguments)
                assert list(output.prompt_token_ids[730:]) == case["fed"]
                assert list(output.outputs[0].token_ids) == case["out"]
            # The oracle's reasoning is not grounded: it and ours part at the first coordinate.
            case = entry["query reasoning"]
            output = answer(llm, messages(image, asked), 1, task="query", reasoning=True)
            assert list(output.prompt_token_ids[730:]) == case["fed"]
            vocab = llm.llm_engine.model_config.hf_config.spatial_vocab()
            assert vocab.placeholder(output.outputs[0].token_ids[0]) == case["out"][0]
    case = text_only["query text-only"]
    output = answer(llm, messages(None, asked), len(case["out"]), task="query")
    assert list(output.prompt_token_ids) == [0, *case["fed"]]
    assert list(output.outputs[0].token_ids) == case["out"]


def test_moondream2_by_the_engines_rules() -> None:
    """After reasoning the answer token comes twice, and has no text the second time."""
    md2 = DATA / "md2"
    llm = engine(md2, additional_config={"photon": {"rules": "engine"}})
    with Image.open(md2 / "image1.png") as image:
        output = answer(
            llm,
            messages(image, question(md2)),
            LIMIT + 6,
            task="query",
            reasoning=True,
            max_reasoning_tokens=LIMIT,
        )
    ids = list(output.outputs[0].token_ids)
    assert [at for at, token in enumerate(ids) if token == 3] == [LIMIT, LIMIT + 1]
    assert output.outputs[0].text.count("</think>") == 1
