"""Model runner V2 in the engine: the oracle, and identity with blocking V2 and blocking V1.

The kernels run in Triton's interpreter. Seeded sampling is compared within V2 only: the runners
draw their noise from different generators.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.runner_v2.conftest import Answers
from tests.runner_v2.workloads import NUM_BLOCKS, VOCAB, oracle, workloads

pytestmark = pytest.mark.timeout(1800)

Engines = dict[tuple[str, str], Answers]
PIPELINED, BLOCKING, V1 = ("v2", "pipelined"), ("v2", "blocking"), ("v1", "blocking")
WORK = workloads()
GREEDY = sorted(set(WORK) - {"seeded"})
TOLERANCE = 1e-4


def same_logprobs(one: list[Any], other: list[Any]) -> bool:
    """Equal ids in equal order at every position, values within rounding."""
    return len(one) == len(other) and all(
        (a is None and b is None)
        or (
            list(a) == list(b)
            and list(a.values()) == pytest.approx(list(b.values()), abs=TOLERANCE)
        )
        for a, b in zip(one, other, strict=True)
    )


def check_same(one: Answers, other: Answers, name: str) -> None:
    for index, (a, b) in enumerate(
        zip(one[name]["outcomes"], other[name]["outcomes"], strict=True)
    ):
        assert a.keys() == b.keys()
        for key in a:
            where = f"{name}, request {index}: {key}"
            if key.endswith("logprobs"):
                assert same_logprobs(a[key], b[key]), where
            else:
                assert a[key] == b[key], where


@pytest.mark.parametrize("case", oracle())
def test_oracle(engines: Engines, case: str) -> None:
    """Every token of point and detect is the published reference's."""
    index = list(oracle()).index(case)
    outcome = engines[PIPELINED]["oracle"]["outcomes"][index]
    assert outcome["tokens"] == oracle()[case][1]
    assert outcome["finish"] == "stop"


@pytest.mark.parametrize("name", WORK)
def test_i9_pipelined_is_identical_to_blocking(engines: Engines, name: str) -> None:
    check_same(engines[PIPELINED], engines[BLOCKING], name)


@pytest.mark.parametrize("name", GREEDY)
def test_both_runners_agree(engines: Engines, name: str) -> None:
    check_same(engines[PIPELINED], engines[V1], name)


@pytest.mark.parametrize("name", WORK)
def test_i8_no_block_is_held_when_idle(engines: Engines, name: str) -> None:
    for answers in engines.values():
        assert answers[name]["held_blocks"] == 0


def test_the_engines_were_what_they_should_be(engines: Engines) -> None:
    facts = ("runner", "in_flight", "uses_slots")
    seen = {
        engine: tuple(answers["crowd"][fact] for fact in facts)
        for engine, answers in engines.items()
    }
    assert seen == {
        PIPELINED: ("RunnerV2Mixin", 2, True),
        BLOCKING: ("RunnerV2Mixin", 1, True),
        V1: ("RunnerV1Mixin", 1, False),
    }


def test_the_crowd_preempts_answers_with_coordinates(engines: Engines) -> None:
    """So that the crowd's identity shows the replay of a resumed request."""
    skilled = {
        index for index, request in enumerate(WORK["crowd"]) if "extra_args" in request.params
    }
    for engine in (PIPELINED, BLOCKING):
        assert skilled & set(engines[engine]["crowd"]["preempted"]), NUM_BLOCKS


def test_logprobs_name_virtual_ids(engines: Engines) -> None:
    """The sampled token comes first, under the id that the client gets; prompts have no -9999."""
    requests = WORK["logprobs"]
    outcomes = engines[PIPELINED]["logprobs"]["outcomes"]
    spatial = next(i for i, request in enumerate(requests) if request.image is not None)
    tokens, positions = outcomes[spatial]["tokens"], outcomes[spatial]["logprobs"]
    assert max(tokens) >= VOCAB.vocab_size
    assert [int(next(iter(position))) for position in positions] == tokens
    assert all(next(iter(position.values())) is not None for position in positions)
    prompt = next(i for i, r in enumerate(requests) if max(r.prompt) >= 600 and r.image is None)
    scored = outcomes[prompt]["prompt_logprobs"]
    for token, position in zip(requests[prompt].prompt[1:], scored[1:], strict=True):
        assert (position[str(token)] is None) == (token >= VOCAB.vocab_size)
