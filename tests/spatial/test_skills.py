"""Arguments of a request: what is read from them, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from vllm_photon.spatial.grammar import State
from vllm_photon.spatial.skills import Length, SkillError, Task, clean_object, parse_extra_args


def parse(**arguments: Any):
    return parse_extra_args({f"photon_{k}": v for k, v in arguments.items()})


def test_no_arguments_of_ours() -> None:
    assert parse_extra_args(None) is None
    assert parse_extra_args({"other": 1}) is None


def test_defaults() -> None:
    assert parse(task="detect").max_objects == 50
    assert parse(task="point").max_objects == 383
    assert parse(task="query").max_objects is None
    assert parse(task="caption").length is Length.NORMAL


def test_numbers_may_be_floats() -> None:
    """JSON numbers arrive as floats through vllm_xargs."""
    params = parse(task="detect", max_objects=4.0)
    assert params.max_objects == 4
    assert type(params.max_objects) is int
    assert params.cap == 4


def test_reasoning_starts_in_its_own_state() -> None:
    params = parse(task="query", reasoning="true", max_reasoning_tokens=16)
    assert params.start is State.REASON
    assert params.cap == 16
    assert params.is_spatial
    assert not parse(task="query", reasoning=0).is_spatial


def test_references() -> None:
    want = ((0.5, 0.25), (0.0, 0.0, 1.0, 1.0))
    assert parse(task="point", spatial_refs=[[0.5, 0.25], [0, 0, 1, 1]]).spatial_refs == want
    assert parse(task="query", spatial_refs="[[0.5, 0.25], [0, 0, 1, 1]]").spatial_refs == want


@pytest.mark.parametrize(
    ("field", "arguments"),
    [
        ("photon_task", {"task": "paint"}),
        ("photon_task", {"task": 3}),
        ("photon_task", {"task": None}),
        ("photon_task", {"task": ["point"]}),
        ("photon_task", {"max_objects": 3}),
        ("photon_colour", {"task": "point", "colour": 1}),
        ("photon_max_objects", {"task": "query", "max_objects": 3}),
        *[
            ("photon_max_objects", {"task": "point", "max_objects": bad})
            for bad in (0, -1, "many", "5", 1e9, True, 1.5, None, [3], float("nan"), float("inf"))
        ],
        ("photon_length", {"task": "caption", "length": "endless"}),
        ("photon_length", {"task": "point", "length": "short"}),
        ("photon_reasoning", {"task": "query", "reasoning": "maybe"}),
        ("photon_reasoning", {"task": "query", "reasoning": [1]}),
        ("photon_reasoning", {"task": "point", "reasoning": True}),
        ("photon_max_reasoning_tokens", {"task": "query", "max_reasoning_tokens": 5}),
        *[
            ("photon_spatial_refs", {"task": "point", "spatial_refs": bad})
            for bad in (
                "what",
                "[[0.1",
                3,
                [[0.1]],
                [[0.1, 0.2, 0.3]],
                [[1.1, 0]],
                [[-0.1, 0]],
                [["a", "b"]],
                [[True, False]],
                [[float("nan"), 0]],
                [[0.9, 0.1, 0.2, 0.3]],
                [0.1, 0.2],
                [[0.1, 0.2]] * 65,
            )
        ],
        ("photon_spatial_refs", {"task": "detect", "spatial_refs": [[0.1, 0.2]]}),
    ],
)
def test_refusals_name_the_field(field: str, arguments: dict[str, Any]) -> None:
    with pytest.raises(SkillError, match=field) as caught:
        parse(**arguments)
    assert caught.value.field == field


def test_a_refusal_says_what_is_allowed() -> None:
    with pytest.raises(SkillError, match=r"\[1, 1000\]"):
        parse(task="point", max_objects=0)
    with pytest.raises(SkillError, match="caption, detect, point, query, segment"):
        parse(task="paint")


def test_objects_are_stripped_and_not_blank() -> None:
    assert clean_object("  red car\n", "object") == "red car"
    with pytest.raises(SkillError, match="blank"):
        clean_object(" \t", "object")


def test_every_task_has_a_start() -> None:
    for task in Task:
        assert parse(task=str(task)).start in State
