"""Reasoning and answer, told apart by vLLM's own machinery."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.parser import ParserManager

from vllm_photon import entrypoints
from vllm_photon.models.hf_config import Moondream2Config

ANSWER = 3
REASONS = {"photon_task": "query", "photon_reasoning": 1}
REQUEST = ChatCompletionRequest(messages=[{"role": "user", "content": "x"}])


def parser(arguments: dict[str, Any]) -> Any:
    entrypoints.register()
    found = ParserManager.get_parser(reasoning_parser_name=entrypoints.REASONING_PARSER)
    assert found is not None
    config = SimpleNamespace(hf_config=Moondream2Config(), model="moondream")
    return found(None, None, chat_template_kwargs=arguments, model_config=config)


@pytest.mark.parametrize(
    ("text", "ids", "reasoning", "answer", "count"),
    [
        ("one two</think>Two.", [11, 12, ANSWER, 13], "one two", "Two.", 2),
        ("one", [11], "one", None, 1),
        ("</think>Two.", [ANSWER, 13], "", "Two.", 0),
        ("one</think>", [11, ANSWER], "one", "", 1),
    ],
)
def test_whole(text: str, ids: list[int], reasoning: str, answer: str | None, count: int) -> None:
    reads = parser(REASONS)
    assert reads.parse(text, REQUEST)[:2] == (reasoning, answer)
    assert reads.count_reasoning_tokens(ids) == count


def test_without_reasoning_nothing_is_taken() -> None:
    reads = parser({"photon_task": "query"})
    assert reads.parse("a</think>b", REQUEST)[:2] == (None, "a</think>b")
    assert reads.count_reasoning_tokens([11, ANSWER]) == 0
    delta = reads.parse_delta("a", [11], REQUEST, [0, ANSWER, 4], finished=False)
    assert (delta.reasoning, delta.content) == (None, "a")


@pytest.mark.parametrize("together", [1, 2, 3, 5])
def test_streamed_in_any_pieces(together: int) -> None:
    tokens = [("one", 11), (" two", 12), ("</think>", ANSWER), ("Two", 13), (".", 14)]
    reads = parser(REASONS)
    reasoning, answer = "", ""
    for at in range(0, len(tokens), together):
        piece = tokens[at : at + together]
        delta = reads.parse_delta(
            "".join(text for text, _ in piece),
            [token_id for _, token_id in piece],
            REQUEST,
            [0, ANSWER, 4],
            finished=at + together >= len(tokens),
        )
        if delta is not None:
            reasoning += delta.reasoning or ""
            answer += delta.content or ""
    assert (reasoning, answer) == ("one two", "Two.")


def test_in_the_engine_there_is_no_reasoning() -> None:
    """Where vLLM asks before it applies a grammar, without the model's configuration."""
    from vllm.reasoning import ReasoningParserManager

    entrypoints.register()
    made = ReasoningParserManager.get_reasoning_parser("moondream")(tokenizer=None)
    assert made.is_reasoning_end([4])
    assert made.is_reasoning_end_streaming([4, 5], [5])
    assert made.extract_content_ids([4, 5]) == [4, 5]
