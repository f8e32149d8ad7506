"""Chat messages as Moondream's prompts need them: the system's words, questions and answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from vllm_photon.spatial.prompts import Turn
from vllm_photon.spatial.skills import SkillError

Messages = Sequence[Mapping[str, Any]]


class Conversation(NamedTuple):
    """Questions with their answers, the last without, and what the system said before them."""

    system: str
    turns: list[Turn]

    @property
    def last(self) -> str:
        """The open question."""
        return self.turns[-1][0]

    def asking(self, question: str) -> Conversation:
        """The same conversation with another open question."""
        return Conversation(self.system, [*self.turns[:-1], (question, "")])

    def questions(self) -> list[Turn]:
        """The turns, the system's words before the first question."""
        if not self.system:
            return self.turns
        (question, answer), *rest = self.turns
        return [(f"{self.system}\n\n{question}", answer), *rest]


def conversation_of(messages: Messages) -> Conversation:
    """Read messages; several of the user's in a row are one question.

    SkillError when they don't end with the user's, or when one can't stand where it is.
    """
    system: list[str] = []
    turns: list[Turn] = []
    is_open = False
    for message in messages:
        text = text_of(message)
        match message["role"]:
            case "system" | "developer" if not turns:
                system.append(text)
            case "user":
                if is_open:
                    text = f"{turns.pop()[0]}\n{text}"
                turns.append((text, ""))
                is_open = True
            case "assistant" if is_open:
                turns[-1] = (turns[-1][0], text)
                is_open = False
            case role:
                raise SkillError(f"a message of role {role} can't stand here", "messages")
    if not is_open:
        raise SkillError("the last message must be the user's", "messages")
    return Conversation("\n\n".join(system), turns)


def text_of(message: Mapping[str, Any]) -> str:
    """The text of one message, without its images."""
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "\n".join(
        part if isinstance(part, str) else part["text"] for part in filter(is_text, content)
    )


def is_text(part: Any) -> bool:
    """Whether a part of a message's content is text."""
    return isinstance(part, str) or (isinstance(part, Mapping) and part.get("type") == "text")
