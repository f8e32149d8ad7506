"""``--worker-cls vllm_photon.worker.PhotonWorker``: the platform's worker plus ours."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from vllm.logger import init_logger
from vllm.platforms import current_platform
from vllm.v1.executor.uniproc_executor import UniProcExecutor
from vllm.v1.outputs import AsyncModelRunnerOutput

from vllm_photon import compat
from vllm_photon.config import mode_line
from vllm_photon.worker.slots import DecodeSlots

if TYPE_CHECKING:
    from collections.abc import Callable

    from vllm.config import VllmConfig
    from vllm.v1.core.sched.output import GrammarOutput
    from vllm.v1.outputs import ModelRunnerOutput
    from vllm.v1.worker.gpu_worker import Worker as PlatformWorker
    from vllm.v1.worker.worker_base import CompilationTimes
elif current_platform.is_cpu():
    from vllm.v1.worker.cpu_worker import CPUWorker as PlatformWorker
else:
    from vllm.v1.worker.gpu_worker import Worker as PlatformWorker

logger = init_logger("vllm.photon")  # under "vllm", whose loggers have handlers


class PhotonWorker(PlatformWorker):
    """Owns the finalize stage. Prepare, forward and sample of a step stay on one thread."""

    outputs_ready_at_return: bool = current_platform.is_cpu()
    """Whether a step's tokens are on the host when the step returns.

    They are on a CPU. The runner then needs no placeholders and the worker process no thread that
    waits for a copy: only the engine core's loop is two steps deep. Model runner V2 hands out its
    tokens later on every platform.
    """

    def __init__(self, vllm_config: VllmConfig, *args: Any, **kwargs: Any) -> None:
        if not compat.applied():
            raise RuntimeError(
                "PhotonWorker needs its plugin: VLLM_PLUGINS is set and does not name photon, "
                "or the package is on the path but not installed; add photon or install it."
            )
        if kwargs.get("rank", args[1] if len(args) > 1 else 0) == 0:
            logger.info("%s", mode_line(vllm_config))
        self.slots: DecodeSlots | None = None
        if vllm_config.use_v2_model_runner:
            self.outputs_ready_at_return = False
        if vllm_config.scheduler_config.async_scheduling and self.outputs_ready_at_return:
            vllm_config = _without_placeholders(vllm_config)
        super().__init__(vllm_config, *args, **kwargs)

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        super().load_model(*args, **kwargs)
        adapted: Callable[[type], type]
        if self.use_v2_model_runner:
            from vllm_photon.worker.runner_v2 import adapted
        else:
            from vllm_photon.worker.runner_v1 import adapted

        runner: Any = self.model_runner
        runner.__class__ = adapted(runner.__class__)
        runner.attach()

    def compile_or_warm_up_model(self) -> CompilationTimes:
        times = super().compile_or_warm_up_model()
        # Not earlier: nobody reads the outputs of warm-up steps.
        self.slots = DecodeSlots(self.vllm_config.max_concurrent_batches)
        return times

    def sample_tokens(
        self, grammar_output: GrammarOutput | None
    ) -> ModelRunnerOutput | AsyncModelRunnerOutput:
        output = super().sample_tokens(grammar_output)
        if self.slots is None or not isinstance(output, AsyncModelRunnerOutput):
            return output
        return self.slots.launch(output) if self._is_read else output

    @property
    def _is_read(self) -> bool:
        """Whether the executor reads this worker's outputs: one worker's of the last stage."""
        parallel = self.parallel_config
        stage = parallel.tensor_parallel_size * parallel.prefill_context_parallel_size
        return self.rank == parallel.world_size - stage


def _without_placeholders(vllm_config: VllmConfig) -> VllmConfig:
    """The configuration for a worker whose outputs are ready at return.

    vLLM's worker process starts its copy thread, and the runner its placeholders, when
    ``async_scheduling`` is set. In the engine core's process the flag is not ours to change, so an
    in-process worker gets a copy.
    """
    if issubclass(vllm_config.parallel_config.distributed_executor_backend, UniProcExecutor):
        vllm_config = copy.copy(vllm_config)
        vllm_config.scheduler_config = copy.copy(vllm_config.scheduler_config)
    vllm_config.scheduler_config.async_scheduling = False
    return vllm_config
