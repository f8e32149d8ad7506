"""Messages to questions and answers."""

from __future__ import annotations

from typing import Any

import pytest

from vllm_photon.entrypoints.conversation import conversation_of, text_of
from vllm_photon.spatial.skills import SkillError


def message(role: str, content: Any) -> dict[str, Any]:
    return {"role": role, "content": content}


def test_questions_and_answers() -> None:
    found = conversation_of(
        [
            message("system", "Be brief."),
            message("developer", "Be kind."),
            message("user", "a"),
            message("assistant", "b"),
            message("user", "c"),
            message("user", "d"),
        ]
    )
    assert found.turns == [("a", "b"), ("c\nd", "")]
    assert found.last == "c\nd"
    assert found.questions() == [("Be brief.\n\nBe kind.\n\na", "b"), ("c\nd", "")]
    assert found.asking("x").turns == [("a", "b"), ("x", "")]


def test_without_a_system_message() -> None:
    assert conversation_of([message("user", "a")]).questions() == [("a", "")]


def test_text_among_images() -> None:
    parts = [{"type": "image_url", "image_url": {}}, {"type": "text", "text": "a"}, "b"]
    assert text_of(message("user", [*parts, {"type": "text", "text": "c"}])) == "a\nb\nc"
    assert text_of({"role": "user"}) == ""


@pytest.mark.parametrize(
    "roles",
    [[], ["system"], ["assistant"], ["user", "assistant"], ["user", "system"], ["user", "tool"]],
)
def test_what_cannot_stand_there(roles: list[str]) -> None:
    with pytest.raises(SkillError) as caught:
        conversation_of([message(role, "x") for role in roles])
    assert caught.value.field == "messages"
