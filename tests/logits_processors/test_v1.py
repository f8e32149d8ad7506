"""The grammar on V1: which logits survive, row by row, through a changing batch."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm import SamplingParams
from vllm.exceptions import VLLMValidationError
from vllm.v1.sample.logits_processor import BatchUpdate, MoveDirectionality

from vllm_photon.logits_processors.v1 import SpatialLogitsProcessor
from vllm_photon.models.hf_config import Moondream2Config
from vllm_photon.spatial.grammar import GrammarError
from vllm_photon.spatial.tokens import Coord, Size, SpatialVocab

WIDTH = 600
VOCAB = SpatialVocab(WIDTH)
COORD, SIZE = VOCAB.encode(Coord(9)), VOCAB.encode(Size(1, 2))
EVERYTHING = set(range(WIDTH))


@pytest.fixture(params=[True, False], ids=["numpy", "torch"])
def lp(request: pytest.FixtureRequest) -> SpatialLogitsProcessor:
    """A processor that writes masks as on a CPU, or as on a device."""
    hf_config = Moondream2Config(config={"text": {"vocab_size": WIDTH}})
    config = SimpleNamespace(model_config=SimpleNamespace(hf_config=hf_config))
    made = SpatialLogitsProcessor(config, torch.device("cpu"), False)
    made._on_host = request.param
    return made


def params(task: str | None = None, **arguments: Any) -> SamplingParams:
    extra = {f"photon_{k}": v for k, v in arguments.items()}
    return SamplingParams(extra_args={"photon_task": task, **extra} if task else None)


def add(
    lp: SpatialLogitsProcessor,
    rows: dict[int, tuple[SamplingParams, list[int]]],
    removed: tuple[int, ...] = (),
    moved: tuple[tuple[int, int, MoveDirectionality], ...] = (),
) -> None:
    added = [(row, p, [0], output) for row, (p, output) in rows.items()]
    lp.update_state(BatchUpdate(batch_size=8, removed=removed, added=added, moved=moved))


def survivors(lp: SpatialLogitsProcessor, batch: int = 4) -> list[set[int]]:
    logits = torch.randn(batch, WIDTH)
    before = logits.clone()
    after = lp.apply(logits)
    kept = after > float("-inf")
    assert torch.equal(after[kept], before[kept])
    return [set(row.nonzero().flatten().tolist()) for row in kept]


def test_each_row_by_its_own_skill(lp: SpatialLogitsProcessor) -> None:
    add(
        lp,
        {
            0: (params("point"), []),
            1: (params(), [4, 5]),
            2: (params("detect"), [COORD, COORD]),
            3: (params("query"), [5, 6]),
        },
    )
    assert survivors(lp) == [{5, 0}, EVERYTHING, {6}, EVERYTHING - {3}]
    # Text keeps the coordinate token as it is; only searches have values.
    assert lp.decode_rows == [0, 2]


def test_follows_the_list_that_the_engine_appends_to(lp: SpatialLogitsProcessor) -> None:
    output: list[int] = []
    add(lp, {1: (params("detect", max_objects=1), output)})
    seen = []
    for token in (COORD, COORD, SIZE, 0):
        seen.append(survivors(lp)[1])
        output.append(token)
    assert seen == [{5, 0}, {5}, {6}, {0}]
    assert survivors(lp)[1] == {0}


def test_reads_no_list_before_apply(lp: SpatialLogitsProcessor) -> None:
    """In the two-deep step a list ends with a placeholder until ``apply`` (I5)."""
    output = [COORD, -1]
    add(lp, {0: (params("point"), output)})
    output[-1] = COORD
    assert survivors(lp)[0] == {5, 0}


def test_i5_a_placeholder_in_apply_is_an_error(lp: SpatialLogitsProcessor) -> None:
    add(lp, {0: (params("point"), [COORD, -1])})
    with pytest.raises(GrammarError, match="I5"):
        lp.apply(torch.zeros(4, WIDTH))


def test_rows_leave_move_and_swap(lp: SpatialLogitsProcessor) -> None:
    add(lp, {0: (params("point"), []), 1: (params("detect"), [COORD, COORD])})
    add(lp, {}, moved=((0, 1, MoveDirectionality.SWAP),))
    assert survivors(lp) == [{6}, {5, 0}, EVERYTHING, EVERYTHING]
    add(lp, {}, removed=(0,), moved=((1, 0, MoveDirectionality.UNIDIRECTIONAL),))
    assert survivors(lp) == [{5, 0}, EVERYTHING, EVERYTHING, EVERYTHING]
    add(lp, {0: (params(), [])})
    assert survivors(lp) == [EVERYTHING] * 4
    assert lp.decode_rows == []


def test_a_resumed_request_replays_its_answer(lp: SpatialLogitsProcessor) -> None:
    """After preemption the request comes back with its whole answer."""
    add(lp, {0: (params("detect", max_objects=2), [COORD, COORD, SIZE, COORD])})
    assert survivors(lp)[0] == {5}


def test_reasoning(lp: SpatialLogitsProcessor) -> None:
    output: list[int] = []
    add(lp, {0: (params("query", reasoning=True, max_reasoning_tokens=2), output)})
    assert survivors(lp)[0] == EVERYTHING - {0, 6}
    assert lp.decode_rows == [0]
    output += [77, COORD]
    assert survivors(lp)[0] == {3}
    output += [3]
    assert survivors(lp)[0] == EVERYTHING - {3}
    assert lp.decode_rows == []


@pytest.mark.parametrize(
    "settings",
    [
        {"repetition_penalty": 1.1},
        {"presence_penalty": 0.1},
        {"frequency_penalty": -0.1},
        {"logit_bias": {3: 1.0}},
        {"allowed_token_ids": [3]},
        {"bad_words": ["x"]},
        {"min_tokens": 1},
        {"ignore_eos": True},
        {"stop": ["x"]},
    ],
    ids=str,
)
def test_incompatible_settings(settings: dict[str, Any]) -> None:
    (name,) = settings
    given = SamplingParams(extra_args={"photon_task": "point"}, **settings)
    with pytest.raises(VLLMValidationError) as caught:
        SpatialLogitsProcessor.validate_params(given)
    assert caught.value.parameter == name
    # The same settings are fine for text.
    SpatialLogitsProcessor.validate_params(SamplingParams(**settings))
    given.extra_args = {"photon_task": "query"}
    SpatialLogitsProcessor.validate_params(given)
