"""The step pipeline of an engine, found from both of its halves.

vLLM builds the executor first and the scheduler after it, in one process and from one
configuration, and passes nothing between them. Both ask here by the configuration's
``instance_id``; the pipeline lives as long as either of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from vllm_photon.executor.pipeline import StepPipeline

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.sched.output import SchedulerOutput

_pipelines: WeakValueDictionary[str, StepPipeline] = WeakValueDictionary()


def pipeline_of(vllm_config: VllmConfig) -> StepPipeline[SchedulerOutput]:
    """The pipeline of the engine with this configuration, made on first use."""
    key = vllm_config.instance_id
    pipeline = _pipelines.get(key)
    if pipeline is None:
        pipeline = _pipelines[key] = StepPipeline(depth=vllm_config.max_concurrent_batches)
    return pipeline
