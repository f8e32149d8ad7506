"""What a request asks of Moondream, and how its arguments are read and checked.

Arguments travel as ``SamplingParams.extra_args`` (``vllm_xargs`` over HTTP), so every value may be
a string, a number or a list, and numbers may come as floats.

The default number of objects is Moondream's engine's: 50 boxes, and for points what fits into its
768 output tokens, two for each point and one to end.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

from vllm_photon.spatial.grammar import UNCAPPED, State

MAX_OBJECTS = 1000
MAX_REFS = 64
MAX_REASONING_TOKENS = 32768
PREFIX = "photon_"

E = TypeVar("E", bound=StrEnum)


class Task(StrEnum):
    """A skill, by the name used in every interface."""

    QUERY = "query"
    CAPTION = "caption"
    POINT = "point"
    DETECT = "detect"
    SEGMENT = "segment"


class Length(StrEnum):
    """How long a caption is to be."""

    SHORT = "short"
    NORMAL = "normal"
    LONG = "long"


DEFAULT_MAX_OBJECTS = {Task.POINT: 383, Task.DETECT: 50}
NEEDS_IMAGE = frozenset({Task.CAPTION, Task.POINT, Task.DETECT, Task.SEGMENT})
NEEDS_OBJECT = frozenset({Task.POINT, Task.DETECT, Task.SEGMENT})
# The arguments beside the task, without their prefix, and the skills that each is for.
ARGUMENTS: dict[str, frozenset[Task]] = {
    "max_objects": frozenset(DEFAULT_MAX_OBJECTS),
    "length": frozenset({Task.CAPTION}),
    "reasoning": frozenset({Task.QUERY}),
    "max_reasoning_tokens": frozenset({Task.QUERY}),
    "spatial_refs": frozenset({Task.QUERY, Task.POINT, Task.SEGMENT}),
}

# A point [x, y] or a box [x_min, y_min, x_max, y_max], as shares of the image sides.
SpatialRef = tuple[float, ...]


class SkillError(ValueError):
    """A request that can't be served; ``field`` names the argument that is wrong."""

    def __init__(self, message: str, field: str) -> None:
        super().__init__(message)
        self.field = field


@dataclass(frozen=True, slots=True)
class SkillParams:
    """A checked request. ``max_objects`` is set for point and detect only."""

    task: Task
    max_objects: int | None = None
    length: Length = Length.NORMAL
    reasoning: bool = False
    max_reasoning_tokens: int | None = None
    spatial_refs: tuple[SpatialRef, ...] = ()

    @property
    def start(self) -> State:
        """The grammar state in which the answer begins, by the published code's rules."""
        if self.reasoning:
            return State.REASON
        return {
            Task.QUERY: State.ANSWER,
            Task.CAPTION: State.ANSWER,
            Task.POINT: State.POINT_X,
            Task.DETECT: State.DETECT_X,
            Task.SEGMENT: State.SEGMENT,
        }[self.task]

    @property
    def cap(self) -> int:
        """The count at which the grammar allows less: objects, or tokens of reasoning."""
        limit = self.max_reasoning_tokens if self.reasoning else self.max_objects
        return UNCAPPED if limit is None else limit

    @property
    def is_spatial(self) -> bool:
        """Whether the answer holds coordinates, so that its tokens are not plain text."""
        return self.reasoning or self.task in NEEDS_OBJECT


def parse_extra_args(extra_args: Mapping[str, Any] | None) -> SkillParams | None:
    """The skill that the arguments ask for; None when they name none.

    Only keys that begin with ``photon_`` are read. SkillError names the field that is wrong and
    what is allowed.
    """
    given = {k: v for k, v in (extra_args or {}).items() if k.startswith(PREFIX)}
    if not given:
        return None
    allowed = {f"{PREFIX}task", *(PREFIX + name for name in ARGUMENTS)}
    unknown = sorted(set(given) - allowed)
    if unknown:
        raise SkillError(f"{unknown[0]} is unknown; allowed are {_listed(allowed)}", unknown[0])
    if "photon_task" not in given:
        name = min(given)
        raise SkillError(f"{name} needs photon_task, one of {_listed(Task)}", "photon_task")
    task = _choice(given["photon_task"], Task, "photon_task")

    for name, tasks in ARGUMENTS.items():
        if PREFIX + name in given and task not in tasks:
            raise SkillError(
                f"{PREFIX}{name} is allowed for {_listed(tasks)} only, not for {task}",
                PREFIX + name,
            )

    max_objects = DEFAULT_MAX_OBJECTS.get(task)
    if "photon_max_objects" in given:
        max_objects = _integer(given["photon_max_objects"], "photon_max_objects", MAX_OBJECTS)
    length = Length.NORMAL
    if "photon_length" in given:
        length = _choice(given["photon_length"], Length, "photon_length")
    reasoning = False
    if "photon_reasoning" in given:
        reasoning = _boolean(given["photon_reasoning"], "photon_reasoning")
    max_reasoning_tokens = None
    if "photon_max_reasoning_tokens" in given:
        name = "photon_max_reasoning_tokens"
        if not reasoning:
            raise SkillError(f"{name} needs photon_reasoning", name)
        max_reasoning_tokens = _integer(given[name], name, MAX_REASONING_TOKENS)
    refs: tuple[SpatialRef, ...] = ()
    if "photon_spatial_refs" in given:
        refs = parse_refs(given["photon_spatial_refs"], "photon_spatial_refs")
    return SkillParams(task, max_objects, length, reasoning, max_reasoning_tokens, refs)


def parse_refs(value: Any, field: str) -> tuple[SpatialRef, ...]:
    """Points and boxes from a list of lists, or from its JSON text.

    SkillError when one is not [x, y] or [x_min, y_min, x_max, y_max] in [0, 1].
    """
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            value = None
    allowed = "a list of [x, y] and [x_min, y_min, x_max, y_max], each number in [0, 1]"
    if not isinstance(value, list | tuple):
        raise SkillError(f"{field} must be {allowed}", field)
    if len(value) > MAX_REFS:
        raise SkillError(f"{field} may hold at most {MAX_REFS} points and boxes", field)
    refs = []
    for ref in value:
        if (
            not isinstance(ref, list | tuple)
            or len(ref) not in (2, 4)
            or not all(_is_number(v) and 0 <= v <= 1 for v in ref)
        ):
            raise SkillError(f"{field} must be {allowed}, got {ref!r}", field)
        if len(ref) == 4 and (ref[0] > ref[2] or ref[1] > ref[3]):
            raise SkillError(f"{field}: the box {ref!r} ends before it begins", field)
        refs.append(tuple(float(v) for v in ref))
    return tuple(refs)


def clean_object(text: str, field: str) -> str:
    """The object to look for, stripped; SkillError when nothing is left."""
    stripped = text.strip()
    if not stripped:
        raise SkillError(f"{field}: the object to look for is blank", field)
    return stripped


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _integer(value: Any, field: str, highest: int) -> int:
    whole = _is_number(value) and value == value // 1
    if not whole or not 1 <= value <= highest:
        raise SkillError(f"{field} must be an integer in [1, {highest}], got {value!r}", field)
    return int(value)


def _boolean(value: Any, field: str) -> bool:
    # vllm_xargs turns true into 1, and has strings.
    readings = {True: True, False: False, "true": True, "false": False}
    if not isinstance(value, bool | int | float | str) or value not in readings:
        raise SkillError(f"{field} must be true or false, got {value!r}", field)
    return readings[value]


def _choice(value: Any, options: type[E], field: str) -> E:
    try:
        return options(value)
    except ValueError:
        message = f"{field} must be one of {_listed(options)}, got {value!r}"
        raise SkillError(message, field) from None


def _listed(names: Any) -> str:
    return ", ".join(sorted(str(name) for name in names))
