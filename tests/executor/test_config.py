"""I12: one flag, one mode, and where pipelining can't be had the server says why."""

from __future__ import annotations

from typing import Any

import pytest
from vllm import EngineArgs
from vllm.config import VllmConfig

from tests.identity.models import MOONDREAM, text_model
from vllm_photon.config import WORKER_CLS, PhotonConfig, is_photon, mode_line
from vllm_photon.executor.executors import PhotonMultiprocExecutor, PhotonUniProcExecutor
from vllm_photon.worker import PhotonWorker

PHOTON = "vllm_photon.executor.scheduler.PhotonScheduler"
BLOCKING = "vllm_photon.executor.scheduler.BlockingScheduler"
STOCK = "vllm.v1.core.sched.scheduler.Scheduler"
DERIVED = "tests.executor.test_config.DerivedWorker"


class DerivedWorker(PhotonWorker):
    """A worker of somebody who builds on ours."""


@pytest.fixture(scope="module")
def model() -> str:
    return str(text_model())


@pytest.fixture(autouse=True)
def engine_in_its_own_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """As served; an external launcher changes the variable for the whole process."""
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "1")


def configure(model: str, **arguments: Any) -> VllmConfig:
    given = {"worker_cls": WORKER_CLS, "max_model_len": 256, "enforce_eager": True, **arguments}
    return EngineArgs(model=model, **given).create_engine_config()


def photon(**keys: Any) -> dict[str, Any]:
    return {"additional_config": {"photon": keys}}


def test_the_flag_turns_everything_on(model: str) -> None:
    config = configure(model)
    assert config.scheduler_config.async_scheduling is True
    assert config.scheduler_config.scheduler_cls == PHOTON
    assert config.parallel_config.distributed_executor_backend is PhotonMultiprocExecutor
    assert config.max_concurrent_batches == 2
    assert mode_line(config) == (
        "photon: model runner V1, executor PhotonMultiprocExecutor: pipelined, 2 steps in flight"
    )


OURS = "vllm_photon.executor.executors.PhotonUniProcExecutor"


def test_our_executor_by_its_dotted_name(model: str) -> None:
    config = configure(model, distributed_executor_backend=OURS)
    assert config.parallel_config.distributed_executor_backend is PhotonUniProcExecutor
    assert config.scheduler_config.async_scheduling is True


def test_our_executor_does_not_block(model: str) -> None:
    with pytest.raises(ValueError, match="choose one of uni, mp, ray"):
        configure(model, distributed_executor_backend=OURS, **photon(pipeline=False))


def test_in_process_executor(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    config = configure(model, distributed_executor_backend="uni")
    assert config.parallel_config.distributed_executor_backend is PhotonUniProcExecutor
    assert config.scheduler_config.async_scheduling is True


@pytest.mark.parametrize("arguments", [{}, photon(pipeline=False), {"async_scheduling": False}])
def test_deciding_again_decides_the_same(model: str, arguments: dict[str, Any]) -> None:
    """The engine core's process settles the configuration once more after its handshake."""
    config = configure(model, **arguments)
    before = (_decided(config), mode_line(config))
    config.__post_init__()
    assert (_decided(config), mode_line(config)) == before


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (photon(pipeline=False), "additional-config sets photon.pipeline to false"),
        ({"async_scheduling": False}, "--no-async-scheduling was given"),
        (
            {"speculative_config": {"method": "ngram", "num_speculative_tokens": 2}},
            "speculative decoding drafts from tokens that a pipelined step does not have yet",
        ),
        ({"runner": "pooling"}, "a pooling model has no decode steps"),
        (
            {"pipeline_parallel_size": 2, "distributed_executor_backend": "mp"},
            "pipeline parallelism keeps its own steps in flight",
        ),
        ({"scheduler_cls": STOCK}, f"scheduler-cls {STOCK} does not count steps in flight"),
        (
            {"distributed_executor_backend": "external_launcher"},
            "executor external_launcher is none of uni, mp, ray",
        ),
    ],
    ids=["photon", "flag", "speculative", "pooling", "pipeline-parallel", "scheduler", "executor"],
)
def test_i12_blocking_says_why(model: str, arguments: dict[str, Any], reason: str) -> None:
    config = configure(model, **arguments)
    assert config.scheduler_config.async_scheduling is False
    assert config.max_concurrent_batches == config.parallel_config.pipeline_parallel_size
    line = mode_line(config)
    assert line.endswith(f": blocking, because {reason}")
    assert "\n" not in line


def test_blocking_keeps_the_executor_and_a_chosen_scheduler(model: str) -> None:
    config = configure(model, **photon(pipeline=False))
    assert config.parallel_config.distributed_executor_backend == "mp"
    assert config.scheduler_config.scheduler_cls == BLOCKING
    assert configure(model, scheduler_cls=STOCK).scheduler_config.scheduler_cls == STOCK


def test_without_the_flag_nothing_is_touched(model: str) -> None:
    config = configure(model, worker_cls="auto")
    assert not is_photon(config)
    assert config.scheduler_config.async_scheduling is False
    assert config.scheduler_config.scheduler_cls is None
    assert config.parallel_config.distributed_executor_backend == "mp"


def test_a_derived_worker_is_ours(model: str) -> None:
    config = configure(model, worker_cls=DERIVED)
    assert config.scheduler_config.scheduler_cls == PHOTON


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"pipelin": False}, "photon has no key 'pipelin'; allowed: pipeline, "),
        ({"pipeline": "no"}, "photon.pipeline must be true or false"),
        ({"trace": 3}, "photon.trace must be a file name"),
    ],
)
def test_a_wrong_key_is_one_sentence(model: str, keys: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        configure(model, **photon(**keys))


def test_photon_must_be_an_object(model: str) -> None:
    with pytest.raises(ValueError, match="photon must be an object, got 7"):
        configure(model, additional_config={"photon": 7})


def test_defaults(model: str) -> None:
    assert PhotonConfig().pipeline
    assert PhotonConfig.of(configure(model)) == PhotonConfig()


def _decided(config: VllmConfig) -> tuple[Any, ...]:
    scheduler, parallel = config.scheduler_config, config.parallel_config
    return (
        scheduler.async_scheduling,
        scheduler.scheduler_cls,
        parallel.distributed_executor_backend,
        config.max_concurrent_batches,
    )


def test_i11_no_threshold_that_never_lets_an_image_in() -> None:
    with pytest.raises(ValueError, match="long_prefill_token_threshold: Moondream"):
        configure(str(MOONDREAM), max_model_len=1024, long_prefill_token_threshold=256)
