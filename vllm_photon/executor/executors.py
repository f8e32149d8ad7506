"""Executors that run every step through the step pipeline.

vLLM's engine core drives a step by two calls, ``execute_model`` (the forward) and
``sample_tokens`` (masks and sampling), each a message to the workers. :class:`PipelinedExecutor`
adds to vLLM's own executors

- the order: launch, finalize and delivery of each step go through
  :class:`~vllm_photon.executor.pipeline.StepPipeline`, and the scheduler commits there;
- one message instead of two for a step that needs no mask from the host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from functools import cache
from typing import TYPE_CHECKING, Any

from vllm.distributed.device_communicators.shm_broadcast import SpinCondition
from vllm.platforms import current_platform
from vllm.utils.import_utils import resolve_obj_by_qualname
from vllm.v1.executor.multiproc_executor import MultiprocExecutor
from vllm.v1.executor.uniproc_executor import UniProcExecutor

from vllm_photon.executor.engine import pipeline_of
from vllm_photon.executor.pipeline import PipelineError, Step

if TYPE_CHECKING:
    from vllm.distributed.device_communicators.shm_broadcast import MessageQueue
    from vllm.v1.core.sched.output import GrammarOutput, SchedulerOutput
    from vllm.v1.executor.abstract import Executor
    from vllm.v1.outputs import ModelRunnerOutput


def run_step(worker: Any, scheduler_output: SchedulerOutput) -> Any:
    """Forward and sampling of a step that needs no host mask, in the worker process."""
    output = worker.execute_model(scheduler_output)
    return worker.sample_tokens(None) if output is None else output


class _StepFuture(Future):
    """The output of a step; records its delivery when it is first waited for."""

    def __init__(self, inner: Future, deliver: Callable[[], None]) -> None:
        super().__init__()
        self._inner = inner
        self._deliver: Callable[[], None] | None = deliver

    def done(self) -> bool:
        return self._inner.done()

    def result(self, timeout: float | None = None) -> Any:
        output = self._inner.result(timeout)
        if self._deliver is not None and output is not None:
            self._deliver()
            self._deliver = None
        return output


class PipelinedExecutor:
    """Mixin over a vLLM executor; the engine core calls it with ``non_block=True`` only."""

    _step: Step[SchedulerOutput]
    _fused: Future | None = None
    _method: Callable | None = None

    def _init_executor(self) -> None:
        self.pipeline = pipeline_of(self.vllm_config)  # type: ignore[attr-defined]
        super()._init_executor()  # type: ignore[misc]

    @classmethod
    def supports_async_scheduling(cls) -> bool:
        return True

    def execute_model(
        self, scheduler_output: SchedulerOutput, non_block: bool = False
    ) -> Future[ModelRunnerOutput | None]:
        """Launch a step; finalize it in the same message when it needs no host mask."""
        if not non_block:
            raise PipelineError("a pipelined executor was asked to block on a forward")
        self._step = self.pipeline.launch(
            scheduler_output, needs_commit=scheduler_output.pending_structured_output_tokens
        )
        fuse = not scheduler_output.has_structured_output_requests
        if fuse:
            self.pipeline.finalize(self._step)
            self._method = run_step
        try:
            future = super().execute_model(scheduler_output, non_block=True)  # type: ignore[misc]
        finally:
            self._method = None
        self._fused = self._delivering(future) if fuse else None
        return future if self._fused is None else self._fused

    def sample_tokens(
        self, grammar_output: GrammarOutput | None, non_block: bool = False
    ) -> Future[ModelRunnerOutput | None]:
        """Finalize the launched step: its masks, its sampling."""
        if self._fused is not None:
            if grammar_output is not None:
                raise PipelineError(f"a mask came for {self._step}, which was launched without")
            future, self._fused = self._fused, None
            return future
        self.pipeline.finalize(self._step)
        return self._delivering(super().sample_tokens(grammar_output, non_block=True))  # type: ignore[misc]

    def collective_rpc(self, method: str | Callable, *args: Any, **kwargs: Any) -> Any:
        """Send a message to the workers; a fused step replaces the method of its forward."""
        return super().collective_rpc(self._method or method, *args, **kwargs)  # type: ignore[misc]

    def _delivering(self, future: Future) -> Future:
        step = self._step
        return _StepFuture(future, lambda: self.pipeline.deliver(step))


class PhotonUniProcExecutor(PipelinedExecutor, UniProcExecutor):
    """The worker in the engine's own process and thread."""


class PhotonMultiprocExecutor(PipelinedExecutor, MultiprocExecutor):
    """One process for each worker of this host."""

    def _init_executor(self) -> None:
        super()._init_executor()
        if current_platform.is_cpu():
            _wait_asleep(self.response_mqs)


class _Asleep(SpinCondition):
    """Waits for a message asleep, and looks by itself once a millisecond.

    The writer's notice of a message can be lost: its socket holds one, and takes up to about a
    millisecond to learn that it was fetched. vLLM looks again after five seconds.
    """

    def wait(self, timeout_ms: int | None = None) -> None:
        super().wait(1 if timeout_ms is None else min(timeout_ms, 1))


def _wait_asleep(queues: Iterable[MessageQueue]) -> None:
    """Wait for messages by sleeping at once, where vLLM spins for up to a second first.

    On a CPU an engine core that spins takes a core from the forward or from the API server; with
    a second step in flight the few microseconds that waking up costs are hidden. Measured in
    docs/host-time.md. Hook: ``SpinCondition`` of
    ``distributed/device_communicators/shm_broadcast.py``.
    """
    for queue in queues:
        if queue._spin_condition is not None:  # None where the writer is on another host
            queue._spin_condition.__class__ = _Asleep
            queue._spin_condition.busy_loop_s = 0


@cache
def _ray_executor() -> type[Executor]:
    from vllm.v1.executor.ray_executor_v2 import RayExecutorV2

    class PhotonRayExecutor(PipelinedExecutor, RayExecutorV2):
        """One Ray actor for each worker."""

    return PhotonRayExecutor


def pipelined_executor(backend: Any) -> type[Executor] | None:
    """Our executor over vLLM's ``distributed_executor_backend``; None when there is none.

    A class that already is ours, or its dotted name, is kept.
    """
    ours = {"uni": PhotonUniProcExecutor, "mp": PhotonMultiprocExecutor}
    if backend in ours:
        return ours[backend]
    if backend == "ray":
        return _ray_executor()
    if isinstance(backend, str) and "." in backend:
        backend = resolve_obj_by_qualname(backend)
    if isinstance(backend, type) and issubclass(backend, PipelinedExecutor):
        return backend
    return None
