"""Prompt ids: the published templates, and what the oracle fed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers import Tokenizer

from vllm_photon.config import ENGINE_RULES
from vllm_photon.models.hf_config import Moondream2Config, Moondream3Config
from vllm_photon.spatial.grammar import State
from vllm_photon.spatial.prompts import ModelSkills, skills_of
from vllm_photon.spatial.skills import SkillError, parse_extra_args
from vllm_photon.spatial.tokens import Coord, Size, size_bin

DATA = Path(__file__).parents[1] / "data" / "oracle"
QUESTION_IDS = [97, 82, 298, 367, 419, 448]


def oracle_skills(name: str) -> ModelSkills:
    config = json.loads((DATA / name / "config.json").read_text())
    kind = Moondream2Config if name == "md2" else Moondream3Config
    skills = skills_of(kind(config=config["config"]))
    assert skills is not None
    return skills


def prompt(skills: ModelSkills, text: str = "", image: bool = True, **arguments: Any) -> list[int]:
    params = parse_extra_args({f"photon_{k}": v for k, v in arguments.items()})
    assert params is not None
    encode = lambda text: [ord(c) for c in text]  # noqa: E731
    if params.task == "query":
        return skills.chat_ids(params, [(text, "")], image, encode)
    return skills.prompt_ids(params, text, image, encode)


def fed_prompt(entry: dict[str, Any]) -> list[int]:
    """The prompt's part of what the oracle fed: everything to the first value or the end."""
    ids = []
    for fed in entry["fed"]:
        if not isinstance(fed, int):
            break
        ids.append(fed)
    return ids


def test_oracle_prompts_of_point_and_detect() -> None:
    skills = oracle_skills("md2")
    tokenizer = Tokenizer.from_file(str(DATA / "md2" / "tokenizer.json"))
    checked = 0
    for image in json.loads((DATA / "md2" / "oracle_masked.json").read_text()):
        for name, entry in image.items():
            if name == "image":
                continue
            task, _, text = name.partition(" ")
            params = parse_extra_args({"photon_task": task})
            ids = skills.prompt_ids(params, text, True, lambda t: tokenizer.encode(t).ids)
            assert ids == [0, skills.vocab.image_id, *fed_prompt(entry)]
            checked += 1
    assert checked == 32


def encode_question(_: str) -> list[int]:
    return QUESTION_IDS


@pytest.mark.parametrize(
    ("model", "arguments", "ids"),
    [
        ("md2", {}, [1, 304, 2, *QUESTION_IDS, 3, 3]),
        ("md2", {"reasoning": True}, [1, 304, 2, *QUESTION_IDS, 3, 4]),
        ("md3", {}, [1, 304, 2, *QUESTION_IDS, 3]),
        ("md3", {"reasoning": True}, [1, 304, 2, *QUESTION_IDS, 4]),
    ],
)
def test_oracle_questions(model: str, arguments: dict[str, Any], ids: list[int]) -> None:
    skills = oracle_skills(model)
    params = parse_extra_args(
        {"photon_task": "query", **{f"photon_{k}": v for k, v in arguments.items()}}
    )
    got = skills.chat_ids(params, [("", "")], True, encode_question)
    assert got == [0, skills.vocab.image_id, *ids]
    assert skills.chat_ids(params, [("", "")], False, encode_question) == [0, *ids]


def test_published_templates() -> None:
    md2, md3 = skills_of(Moondream2Config()), skills_of(Moondream3Config())
    head = [0, md2.vocab.image_id]
    assert md2.vocab.vocab_size == 51200
    assert prompt(md2, "a", task="point") == [*head, 1, 2581, 2, 32, 97, 3]
    assert prompt(md2, "a", task="detect") == [*head, 1, 7235, 476, 2, 32, 97, 3]
    assert prompt(md2, task="caption", length="long") == [*head, 1, 32708, 2, 4059, 3]
    assert prompt(md2, "a", task="query") == [*head, 1, 15381, 2, 97, 3, 3]
    assert prompt(md3, "a", task="segment") == [*head, 1, 17374, 2, 97, 3]


def test_where_an_answer_starts() -> None:
    """Moondream 2 by its engine's rules repeats the answer token after reasoning, nobody else."""
    reasoning = parse_extra_args({"photon_task": "query", "photon_reasoning": True})
    plain = parse_extra_args({"photon_task": "query"})
    for config in (Moondream2Config(), Moondream3Config()):
        assert skills_of(config).start(reasoning) is State.REASON
        config.rules = ENGINE_RULES
        assert skills_of(config).start(plain) is State.ANSWER
    assert skills_of(config).start(reasoning) is State.REASON
    config = Moondream2Config()
    config.rules = ENGINE_RULES
    assert skills_of(config).start(reasoning) is State.REASON_TWICE


def test_references_follow_the_prefix() -> None:
    skills = oracle_skills("md2")
    ids = prompt(skills, "a", task="query", spatial_refs=[[0.5, 0.25], [0.0, 0.0, 0.5, 1.0]])
    vocab = skills.vocab
    assert ids[2:] == [
        *(1, 304, 2),
        *(vocab.encode(Coord(b)) for b in (512, 256, 256, 512)),
        vocab.encode(Size(size_bin(0.5), size_bin(1.0))),
        *(97, 3, 3),
    ]


def test_a_conversation_is_one_block_after_the_other() -> None:
    skills = oracle_skills("md2")
    params = parse_extra_args({"photon_task": "query"})
    encode = lambda text: [ord(c) for c in text]  # noqa: E731
    assert skills.chat_ids(params, [("a", "b"), ("c", "")], False, encode) == [
        *(0, 1, 304, 2, 97, 3, 3, 98),
        *(1, 304, 2, 99, 3, 3),
    ]


@pytest.mark.parametrize("task", ["point", "detect", "caption"])
def test_an_image_is_needed(task: str) -> None:
    with pytest.raises(SkillError, match="needs an image"):
        prompt(oracle_skills("md2"), "a", image=False, task=task)


def test_references_need_an_image() -> None:
    with pytest.raises(SkillError, match="spatial_refs needs an image"):
        prompt(oracle_skills("md2"), "a", image=False, task="query", spatial_refs=[[0.1, 0.2]])


def test_what_a_model_lacks_is_refused() -> None:
    skills = oracle_skills("md2")
    with pytest.raises(SkillError, match="no skill segment; it has caption, detect, point, query"):
        skills.check(parse_extra_args({"photon_task": "segment"}))
    silent = replace(skills, thinking_id=None)
    reasoning = parse_extra_args({"photon_task": "query", "photon_reasoning": True})
    skills.check(reasoning)
    with pytest.raises(SkillError, match="reason"):
        silent.check(reasoning)


def test_other_models_have_no_skills() -> None:
    assert skills_of(SimpleNamespace(model_type="llama")) is None
