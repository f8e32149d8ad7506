"""The plugin's configuration, and how one flag turns everything on.

``--worker-cls vllm_photon.worker.PhotonWorker`` is that flag. vLLM lets the platform have the last
word on its configuration (``check_and_update_config``); :func:`enable` runs right after it, in
every process and possibly more than once, so it only ever sets the same values again.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm.config import VllmConfig

WORKER_CLS = "vllm_photon.worker.PhotonWorker"
_SCHEDULER = "vllm_photon.executor.scheduler.PhotonScheduler"
_BLOCKING_SCHEDULER = "vllm_photon.executor.scheduler.BlockingScheduler"
_USER_DISABLED = "--no-async-scheduling was given"
_BACKENDS = ("uni", "mp", "ray")
_SCHEDULERS = (_SCHEDULER, _BLOCKING_SCHEDULER)


PUBLISHED_RULES, ENGINE_RULES = RULES = ("published", "engine")


@dataclass(frozen=True, slots=True)
class PhotonConfig:
    """What ``--additional-config '{"photon": {...}}'`` may say."""

    pipeline: bool = True
    """Keep two steps in flight; false gives vLLM's blocking loop."""

    rules: str = PUBLISHED_RULES
    """Whose arithmetic a Moondream follows where its published code and its engine differ:

    ========================================  ===========  ===========
    what                                      published    engine
    ========================================  ===========  ===========
    value of a coordinate                     bin / 1024   bin / 1023
    GELU of Moondream 3's scaled attention    exact        tanh
    answer token after Moondream 2 reasoned   once         twice
    ========================================  ===========  ===========

    The rest is common: between objects only a coordinate or the end may come, as in the engine,
    and boxes are clamped to the picture.
    """

    trace: str | None = None
    """File for a step trace in Chrome's format, written by the engine core; none by default."""

    @classmethod
    def of(cls, vllm_config: VllmConfig) -> PhotonConfig:
        """Read it; ValueError names the key that is wrong and what is allowed."""
        given = (vllm_config.additional_config or {}).get("photon", {})
        if not isinstance(given, dict):
            raise ValueError(f"additional-config: photon must be an object, got {given!r}")
        types = {f.name: f.type for f in fields(cls)}
        for key, value in given.items():
            if key not in types:
                raise ValueError(
                    f"additional-config: photon has no key {key!r}; allowed: {', '.join(types)}"
                )
            if types[key] == "bool" and not isinstance(value, bool):
                raise ValueError(f"additional-config: photon.{key} must be true or false")
            if key == "rules" and value not in RULES:
                raise ValueError(
                    f"additional-config: photon.rules must be one of {', '.join(RULES)}"
                )
            if types[key] == "str | None" and not isinstance(value, str):
                raise ValueError(f"additional-config: photon.{key} must be a file name")
        return cls(**given)


def is_photon(vllm_config: VllmConfig) -> bool:
    """Whether the worker class is ours or derived from ours."""
    name = vllm_config.parallel_config.worker_cls
    if not isinstance(name, str) or name == "auto" or name.startswith("vllm."):
        return False
    if name == WORKER_CLS:
        return True
    from vllm.utils.import_utils import resolve_obj_by_qualname

    from vllm_photon.worker import PhotonWorker

    return issubclass(resolve_obj_by_qualname(name), PhotonWorker)


def blocking_reason(vllm_config: VllmConfig) -> str | None:
    """Why this configuration can't be pipelined, in one phrase; None when it can."""
    from vllm_photon.executor.executors import pipelined_executor

    parallel, scheduler = vllm_config.parallel_config, vllm_config.scheduler_config
    model = vllm_config.model_config
    if not PhotonConfig.of(vllm_config).pipeline:
        return "additional-config sets photon.pipeline to false"
    if vllm_config.speculative_config is not None:
        return "speculative decoding drafts from tokens that a pipelined step does not have yet"
    if model is not None and model.runner_type == "pooling":
        return "a pooling model has no decode steps"
    if model is not None and model.is_diffusion:
        return "a diffusion model has its own scheduler"
    if parallel.pipeline_parallel_size > 1:
        return "pipeline parallelism keeps its own steps in flight"
    if scheduler.scheduler_cls is not None and scheduler.scheduler_cls not in _SCHEDULERS:
        return f"scheduler-cls {scheduler.scheduler_cls} does not count steps in flight"
    backend = parallel.distributed_executor_backend
    if pipelined_executor(backend) is None:
        return f"executor {_name(backend)} is none of {', '.join(_BACKENDS)}"
    return None


def enable(vllm_config: VllmConfig, *, user_disabled: bool = False) -> None:
    """Make the configuration ours; called after the platform's last word on it.

    ``user_disabled`` is true when ``--no-async-scheduling`` was given.
    """
    from vllm_photon.executor.executors import pipelined_executor

    parallel, scheduler = vllm_config.parallel_config, vllm_config.scheduler_config
    model = vllm_config.model_config
    if model is None:
        return
    reason = blocking_reason(vllm_config)
    if reason is None and user_disabled:
        reason = _USER_DISABLED
    scheduler.async_scheduling = reason is None
    executor = pipelined_executor(parallel.distributed_executor_backend)
    if reason is None:
        scheduler.scheduler_cls = _SCHEDULER
        parallel.distributed_executor_backend = executor
    elif executor is not None and parallel.distributed_executor_backend not in _BACKENDS:
        raise ValueError(
            f"distributed-executor-backend {executor.__name__} runs pipelined steps only, and this "
            f"server is to block, because {reason}: choose one of {', '.join(_BACKENDS)}"
        )
    elif (
        scheduler.scheduler_cls is None
        and model.runner_type == "generate"
        and not model.is_diffusion
    ):
        scheduler.scheduler_cls = _BLOCKING_SCHEDULER
    _add_processor(vllm_config)


def mode_line(vllm_config: VllmConfig) -> str:
    """The effective mode in one line, for the start-up log."""
    runner = "V2" if vllm_config.use_v2_model_runner else "V1"
    executor = _name(vllm_config.parallel_config.distributed_executor_backend)
    if vllm_config.scheduler_config.async_scheduling:
        depth = vllm_config.max_concurrent_batches
        mode = f"pipelined, {depth} steps in flight"
    else:
        reason = blocking_reason(vllm_config) or _USER_DISABLED
        mode = f"blocking, because {reason}"
    return f"photon: model runner {runner}, executor {executor}: {mode}"


def _add_processor(vllm_config: VllmConfig) -> None:
    from vllm_photon.models import is_spatial

    model = vllm_config.model_config
    if not is_spatial(model):
        return
    # vLLM 0.30's model runner V2 has no such interface; with V1's class set, vLLM chooses V1.
    has_v2 = find_spec("vllm.v1.worker.gpu.sample.logits_processor") is not None
    module = "v2" if has_v2 and vllm_config.use_v2_model_runner else "v1"
    processor = f"vllm_photon.logits_processors.{module}:SpatialLogitsProcessor"
    given: list[Any] = list(model.logits_processors or [])
    if processor not in given:
        model.logits_processors = [*given, processor]


def _name(backend: Any) -> str:
    return backend.__name__ if isinstance(backend, type) else str(backend)
