"""Batches of points and boxes alone: when they count as such, and that the choice is the same."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from vllm import SamplingParams
from vllm.v1.sample.logits_processor import MoveDirectionality

from tests.logits_processors.test_v1 import COORD, SIZE, WIDTH, add, lp
from vllm_photon.logits_processors.v1 import SpatialLogitsProcessor

__all__ = ["lp"]  # The fixture.
ANSWERS = {"point": [COORD, COORD], "detect": [COORD, COORD, SIZE]}


def greedy(task: str | None, **settings: Any) -> SamplingParams:
    extra = {"photon_task": task} if task else None
    return SamplingParams(**{"temperature": 0, "extra_args": extra} | settings)


@pytest.mark.parametrize(
    "other",
    [
        greedy(None),
        greedy("query"),
        greedy("caption"),
        greedy("segment"),
        greedy("point", temperature=0.5),
        greedy("point", logprobs=0),
        greedy("point", logprob_token_ids=[5]),
        greedy("detect", thinking_token_budget=3),
    ],
    ids=lambda params: f"{params.extra_args}-{params.temperature}-{params.logprobs}",
)
def test_one_request_that_needs_more_opens_the_batch(
    lp: SpatialLogitsProcessor, other: SamplingParams
) -> None:
    add(lp, {0: (greedy("point"), []), 1: (greedy("detect"), [])})
    assert lp.is_closed(2)
    add(lp, {2: (other, [])})
    assert not lp.is_closed(3)
    add(lp, {}, removed=(0,), moved=((2, 0, MoveDirectionality.UNIDIRECTIONAL),))
    assert not lp.is_closed(2)
    add(lp, {}, removed=(0,), moved=((1, 0, MoveDirectionality.UNIDIRECTIONAL),))
    assert lp.is_closed(1)


def test_an_empty_batch_and_rows_not_told_of_are_open(lp: SpatialLogitsProcessor) -> None:
    assert not lp.is_closed(0)
    add(lp, {0: (greedy("point"), [])})
    assert not lp.is_closed(2)


def test_chooses_what_a_masked_vocabulary_would(lp: SpatialLogitsProcessor) -> None:
    """Every place in an answer, ties included: logits of few different values."""
    draw = random.Random(0)
    torch.manual_seed(0)
    ties = 0
    for _ in range(200):
        rows = {}
        for row in range(7):
            task = draw.choice(list(ANSWERS))
            length = draw.randrange(7)
            answer = (ANSWERS[task] * 3)[:length]
            # Some have ended, and are run once more.
            ended = [0] if length % len(ANSWERS[task]) == 0 and draw.random() < 0.3 else []
            extra = {"photon_task": task, "photon_max_objects": draw.randint(2, 5)}
            rows[row] = (greedy(task, extra_args=extra), answer + ended)
        add(lp, rows)
        logits = torch.randint(-2, 2, (7, WIDTH)).float()
        scores = logits[:, list(lp.closed_ids)].clone()
        ties += int((scores[:, 0] == scores[:, 1]).sum())
        chosen = lp.choose(lambda scores=scores: scores)
        assert chosen.dtype == torch.int32
        assert torch.equal(chosen.long(), lp.apply(logits).argmax(dim=1, keepdim=True))
    assert ties > 100


def test_no_scores_where_nobody_has_a_choice(lp: SpatialLogitsProcessor) -> None:
    def score() -> torch.Tensor:
        raise AssertionError("asked for scores")

    add(lp, {0: (greedy("point"), [COORD]), 1: (greedy("detect"), [COORD, COORD])})
    assert lp.choose(score).tolist() == [[5], [6]]
    add(lp, {0: (greedy("point"), [])})
    with pytest.raises(AssertionError, match="asked"):
        lp.choose(score)


def test_not_a_number_chooses_an_allowed_token(lp: SpatialLogitsProcessor) -> None:
    add(lp, {0: (greedy("point"), [])})
    assert lp.choose(lambda: torch.full((1, 3), float("nan"))).tolist() in ([[0]], [[5]])
