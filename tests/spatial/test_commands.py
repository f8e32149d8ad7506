"""Skills in plain text: what is a command, and what is only a text with a slash."""

from __future__ import annotations

import pytest

from vllm_photon.spatial.commands import parse_command
from vllm_photon.spatial.skills import SkillError


@pytest.mark.parametrize(
    ("text", "arguments", "subject"),
    [
        ('/detect {"object": "red car"}', {"photon_task": "detect"}, "red car"),
        ('  /point\n{"object": "cat",\n"max_objects": 3}\n', {"photon_max_objects": 3}, "cat"),
        ('/detect{"object": "x"}', {"photon_task": "detect"}, "x"),
        ("/caption", {"photon_task": "caption"}, ""),
        ('/caption {"length": "short"}', {"photon_length": "short"}, ""),
        (
            '/query {"question": "Why?", "reasoning": true, "spatial_refs": [[0.1, 0.2]]}',
            {"photon_reasoning": True, "photon_spatial_refs": [[0.1, 0.2]]},
            "Why?",
        ),
        ('/segment {"object": "cat"}', {"photon_task": "segment"}, "cat"),
        ("/detect", {"photon_task": "detect"}, ""),
    ],
)
def test_commands(text: str, arguments: dict, subject: str) -> None:
    command = parse_command(text, "messages")
    assert command is not None
    assert command.text == subject
    assert arguments.items() <= command.arguments.items()
    assert command.arguments["photon_task"] == text.split()[0].split("{")[0][1:]


@pytest.mark.parametrize(
    "text",
    ["", "detect", "/", "/detector", "/detect-it", "/Detect {}", "/paint {}", "please /detect {}"],
)
def test_other_texts_are_left_alone(text: str) -> None:
    assert parse_command(text, "messages") is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("/detect red car", "/detect must be followed by a JSON object"),
        ('/detect {"object": "x"', "JSON object"),
        ('/detect ["x"]', "JSON object"),
        ("/caption short", "JSON object"),
        ('/detect {"object": 3}', "object of /detect must be text"),
        ('/query {"question": null}', "question of /query must be text"),
        ('/detect {"question": "x"}', "/detect has no question; allowed are .*object"),
        ('/caption {"object": "x"}', "/caption has no object; allowed are length$"),
        ('/detect {"length": "short"}', "/detect has no length; allowed are max_objects, object$"),
        ('/detect {"task": "point"}', "/detect has no task"),
        ('/detect {"photon_max_objects": 1}', "/detect has no photon_max_objects"),
    ],
)
def test_mistakes_name_the_field(text: str, message: str) -> None:
    with pytest.raises(SkillError, match=message) as caught:
        parse_command(text, "messages")
    assert caught.value.field == "messages"
