"""Skills as plain text through ``LLM.generate`` and ``LLM.chat``, and the README's example."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from tokenizers import Tokenizer

from tests.oracle.teacher import DATA, engine, fed_ids
from tests.serve.oracle import MAX_OBJECTS, Case, cases
from vllm_photon.spatial import Answer, Point, parse, parse_ids

MD2 = DATA / "md2"
README = Path(__file__).parents[2] / "README.md"
ORACLE = json.loads((MD2 / "oracle.json").read_text())
QUESTION = Tokenizer.from_file(str(MD2 / "tokenizer.json")).decode([97, 82, 298, 367, 419, 448])
BUSY = next(case for case in cases() if str(case) == "detect-def-1")


@pytest.fixture(scope="module")
def llm() -> Any:
    return engine(MD2)


@pytest.fixture(scope="module")
def vocab(llm: Any) -> Any:
    return llm.llm_engine.model_config.hf_config.spatial_vocab()


def greedy(max_tokens: int = 100) -> Any:
    from vllm import SamplingParams

    return SamplingParams(temperature=0, max_tokens=max_tokens)


def command(case: Case) -> str:
    arguments = {"object": case.object, "max_objects": MAX_OBJECTS}
    return f"/{case.task} {json.dumps(arguments)}"


def chat_message(image: Image.Image, text: str) -> list[dict[str, Any]]:
    parts = [{"type": "image_pil", "image_pil": image}, {"type": "text", "text": text}]
    return [{"role": "user", "content": parts}]


@pytest.fixture(scope="module")
def images() -> list[Image.Image]:
    return [Image.open(MD2 / f"image{i}.png") for i in (0, 1)]


def test_generate(llm: Any, vocab: Any, images: list[Image.Image]) -> None:
    """Every case of the oracle, as a command; text and ids read the same."""
    prompts = [
        {"prompt": command(case), "multi_modal_data": {"image": images[case.image]}}
        for case in cases()
    ]
    outputs = llm.generate(prompts, greedy(), use_tqdm=False)
    for case, output in zip(cases(), outputs, strict=True):
        (choice,) = output.outputs
        case.check(json.loads(choice.text))
        assert parse(choice.text) == parse_ids(choice.token_ids, vocab)


def test_chat(llm: Any, images: list[Image.Image]) -> None:
    messages = [chat_message(images[case.image], command(case)) for case in cases()[::4]]
    outputs = llm.chat(messages, greedy(), use_tqdm=False)
    for case, output in zip(cases()[::4], outputs, strict=True):
        case.check(json.loads(output.outputs[0].text))


def test_skill_beside_the_text(llm: Any, images: list[Image.Image]) -> None:
    """As ``chat_template_kwargs``; the text is then no command."""
    arguments = {"photon_task": BUSY.task, "photon_max_objects": MAX_OBJECTS}
    for text, same in ((BUSY.object, True), (command(BUSY), False)):
        (output,) = llm.chat(
            chat_message(images[1], text), greedy(), use_tqdm=False, chat_template_kwargs=arguments
        )
        length = len(output.prompt_token_ids)
        if same:
            BUSY.check(json.loads(output.outputs[0].text))
            plain = length
        else:
            assert length > plain + 5


@pytest.mark.parametrize("image", [0, 1])
def test_reasoning(llm: Any, vocab: Any, images: list[Image.Image], image: int) -> None:
    arguments = {"question": QUESTION, "reasoning": True, "max_reasoning_tokens": 16}
    (output,) = llm.chat(
        chat_message(images[image], f"/query {json.dumps(arguments)}"), greedy(33), use_tqdm=False
    )
    entry = ORACLE[image]["query reasoning"]
    ids = fed_ids(vocab, entry["fed"])
    got = [i for i in [*output.prompt_token_ids, *output.outputs[0].token_ids] if i > 0]
    assert [i for i in got if i != vocab.image_id] == ids
    expected = entry["out"]["reasoning"]
    assert output.outputs[0].text == f"{expected['text']}</think>{entry['out']['answer']}"
    points = tuple(Point(*point) for part in expected["grounding"] for point in part["points"])
    assert parse_ids(output.outputs[0].token_ids, vocab) == Answer(points=points)


def test_a_wrong_command_is_refused(llm: Any, images: list[Image.Image]) -> None:
    from vllm.exceptions import VLLMValidationError

    for text, field in (("/detect car", "prompt"), ('/segment {"object": "car"}', "photon_task")):
        prompt = {"prompt": text, "multi_modal_data": {"image": images[0]}}
        with pytest.raises(VLLMValidationError) as caught:
            llm.generate(prompt, greedy(), use_tqdm=False)
        assert caught.value.parameter == field
    with pytest.raises(VLLMValidationError) as caught:
        llm.generate('/detect {"object": "car"}', greedy(), use_tqdm=False)
    assert caught.value.parameter == "image_url"


def test_the_readmes_example(
    llm: Any,
    images: list[Image.Image],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Line by line as it stands there, with this engine and picture."""
    (code,) = (
        block
        for block in re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
        if "vllm_photon.spatial" in block
    )
    monkeypatch.setattr("vllm.LLM", lambda model: llm)
    monkeypatch.chdir(tmp_path)
    images[1].convert("RGB").save("street.jpg")
    exec(compile(code, "README.md", "exec"), {})
    with Image.open("cars.png") as drawn:
        assert drawn.size == images[1].size
    printed = capsys.readouterr().out
    assert printed.count("Box(") > 0
