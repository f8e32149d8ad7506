"""I4, seen: the times of every step of a run that mixes skills, a grammar and free text."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from vllm import envs

from tests.identity.building import arriving
from tests.identity.engine_process import Engine
from tests.identity.engines import BASE, FORMS, SPATIAL
from tests.identity.models import MOONDREAM
from tests.identity.spatial_scenarios import spatial_asks
from tests.identity.workload import Ask, Workload
from vllm_photon.executor.pipeline import Phase, Step

GRAMMAR = {"regex": "[a-z]{25,30}"}


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with pytest.MonkeyPatch.context() as patch:
        envs.disable_envs_cache()
        patch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        patch.setenv("VLLM_CPU_OMP_THREADS_BIND", "nobind")
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("HF_HUB_OFFLINE", "1")
        engine = Engine({**BASE, **SPATIAL, **FORMS["photon-mp"], "model": str(MOONDREAM)}, [])
        yield engine
        engine.llm.engine_core.shutdown()
    envs.disable_envs_cache()


def run(engine: Engine, asks: list[Ask], patch: pytest.MonkeyPatch) -> list[Step[Any]]:
    """The committed steps of a run, in order."""
    steps: list[Step[Any]] = []
    pipeline = engine.scheduler.pipeline
    commit = pipeline.commit

    def recorded(payload: Any) -> Step[Any]:
        steps.append(commit(payload))
        return steps[-1]

    patch.setattr(pipeline, "commit", recorded)
    engine.run(Workload("order", asks))
    return steps


def ran_spatial(step: Step[Any]) -> bool:
    return any("spatial" in request_id for request_id in step.payload.num_scheduled_tokens)


def mixed() -> list[Ask]:
    """First skills and free text alone, then the same beside a grammar."""
    asks = spatial_asks(16, 7, ["point", "detect", "text", "text"])
    for index, ask in enumerate(asks):
        kind = "text" if ask.image is None else "spatial"
        ask.id = f"{kind}-{index}"
        ask.params["max_tokens"] = 30
        if index in (10, 14):
            ask.params["structured_outputs"] = GRAMMAR
    return arriving(asks, lambda index: 0 if index < 8 else 25 + index)


def test_i4_commit_before_finalize_where_needed_and_nowhere_else(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = run(engine, mixed(), monkeypatch)
    waited, free = [], []
    for before, step in pairwise(steps):
        assert step.phase is Phase.COMMITTED
        assert step.launched_at <= step.finalized_at <= step.delivered_at <= step.committed_at
        if step.launched_at > before.committed_at:
            continue  # nothing was in flight
        if step.needs_commit:
            assert step.launched_at < before.committed_at <= step.finalized_at
            waited.append(step)
        else:
            assert step.finalized_at < before.committed_at
            free.append(step)
    assert len(waited) > 10
    assert len(free) > 10
    assert any(map(ran_spatial, waited)), "no skill beside a grammar"
    assert any(map(ran_spatial, free)), "no skill alone"


def test_i1_i2_order_of_launch_is_the_order_of_everything(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = run(engine, mixed(), monkeypatch)
    for before, step in pairwise(steps):
        assert step.index == before.index + 1
        for moment in ("launched_at", "finalized_at", "delivered_at", "committed_at"):
            assert getattr(before, moment) < getattr(step, moment)


def test_without_a_grammar_no_step_waits(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    asks = spatial_asks(8, 8, ["point", "detect", "query", "text"])
    steps = run(engine, asks, monkeypatch)
    assert steps
    assert not any(step.needs_commit for step in steps)
