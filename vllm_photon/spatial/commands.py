"""Skills in plain text: ``/detect {"object": "red car"}`` instead of arguments beside the text.

For clients that can send nothing but text. A text is a command when it begins with a slash, a
skill's name and then white space, a brace or nothing; what follows must be a JSON object or
nothing. Any other text is left as it is.
"""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

from vllm_photon.spatial.skills import ARGUMENTS, NEEDS_OBJECT, PREFIX, SkillError, Task

_COMMAND = re.compile(rf"\s*/({'|'.join(Task)})(?=[\s{{]|$)(.*)", re.DOTALL)


class Command(NamedTuple):
    """A skill's arguments, as ``extra_args``, and its object or question."""

    arguments: dict[str, Any]
    text: str


def parse_command(text: str, field: str) -> Command | None:
    """The command that ``text`` is; None when it is none.

    SkillError, naming ``field``, when what follows the skill's name is wrong. The values of
    arguments are checked where every request's are.
    """
    match = _COMMAND.fullmatch(text)
    if match is None:
        return None
    task = Task(match[1])
    subject = _subject_of(task)
    arguments = {name for name, tasks in ARGUMENTS.items() if task in tasks}
    try:
        given = json.loads(match[2].strip() or "{}")
    except (ValueError, RecursionError):
        given = None
    if not isinstance(given, dict):
        raise SkillError(f"{field}: /{task} must be followed by a JSON object or nothing", field)
    asked = given.pop(subject, "") if subject else ""
    if not isinstance(asked, str):
        raise SkillError(f"{field}: {subject} of /{task} must be text, got {asked!r}", field)
    unknown = sorted(given.keys() - arguments)
    if unknown:
        allowed = ", ".join(sorted(arguments | ({subject} if subject else set()))) or "none"
        raise SkillError(f"{field}: /{task} has no {unknown[0]}; allowed are {allowed}", field)
    prefixed = {PREFIX + name: value for name, value in given.items()}
    return Command({f"{PREFIX}task": str(task), **prefixed}, asked)


def _subject_of(task: Task) -> str | None:
    """What a skill's text is called."""
    if task in NEEDS_OBJECT:
        return "object"
    return "question" if task is Task.QUERY else None
