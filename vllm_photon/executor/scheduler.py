"""Schedulers: references of requests in flight, zombies, deferred release, whole image prefixes.

:class:`PhotonScheduler` is vLLM's ``AsyncScheduler`` plus a count, for every request, of the steps
in flight that hold it. A request that finishes, is aborted or is preempted while the count is above
zero is a *zombie*: its rows ride along, its tokens are dropped by vLLM's own check, and its KV
blocks are parked until the count is zero, so that no step in flight ever writes to a block that
belongs to somebody else.

Hooks of vLLM 0.32 (``v1/core/sched/scheduler.py``): ``_update_after_schedule`` (launch),
``update_from_output`` (commit), ``_request_blocks_can_be_freed`` and ``_free_request_blocks``
(release), ``reset_prefix_cache``, ``_try_schedule_encoder_inputs`` (image prefixes).
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from vllm.v1.core.encoder_cache_manager import EncoderCacheManager
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from vllm_photon.config import PhotonConfig
from vllm_photon.executor.encoder_cache import HeldEncoderCache
from vllm_photon.executor.engine import pipeline_of
from vllm_photon.executor.metrics import StepMetrics
from vllm_photon.executor.pipeline import InflightRefs, PipelineError
from vllm_photon.executor.trace import StepTrace

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.kv_cache_utils import KVCacheBlock
    from vllm.v1.core.sched.output import GrammarOutput, SchedulerOutput
    from vllm.v1.engine import EngineCoreOutputs
    from vllm.v1.outputs import ModelRunnerOutput
    from vllm.v1.request import Request

    from vllm_photon.executor.pipeline import Step, StepPipeline


class WholePrefix:
    """Mixin: a prefill chunk never ends inside an image (I11).

    The positions of an image attend to each other both ways, so a chunk that holds only some of
    them would compute wrong keys and values. vLLM's own guard (``disable_chunked_mm_input``) does
    not see an image that starts at position 0, where Moondream's always does.
    """

    def _try_schedule_encoder_inputs(
        self, request: Request, num_computed_tokens: int, num_new_tokens: int, *args: Any, **kw: Any
    ) -> Any:
        end = num_computed_tokens + num_new_tokens
        for feature in request.mm_features or ():
            start = feature.mm_position.offset
            if start < end < start + feature.mm_position.length:
                num_new_tokens = max(0, start - num_computed_tokens)
                break
        return super()._try_schedule_encoder_inputs(  # type: ignore[misc]
            request, num_computed_tokens, num_new_tokens, *args, **kw
        )


class StepRecord:
    """Mixin: metrics and trace of committed steps, in both loops."""

    vllm_config: VllmConfig
    pipeline: StepPipeline[SchedulerOutput]

    def _open_records(self) -> None:
        path = PhotonConfig.of(self.vllm_config).trace
        if path is not None and (index := self.vllm_config.parallel_config.data_parallel_index):
            path = f"{path}.{index}"
        self._metrics = StepMetrics(self.vllm_config) if self.log_stats else None  # type: ignore[attr-defined]
        self._trace = StepTrace(path) if path is not None else None

    def _record(self, step: Step, mode: str, *, zombies: int = 0, parked: int = 0) -> None:
        """Record a committed step; ``parked`` is the number of KV blocks held by zombies."""
        if self._metrics is not None:
            unfinished = self.has_unfinished_requests()  # type: ignore[attr-defined]
            self._metrics.committed(step, mode=mode, zombies=zombies, unfinished=unfinished)
            self._metrics.set("steps_in_flight", len(self.pipeline))
            self._metrics.set("zombie_blocks", parked)
        if self._trace is not None:
            rows = len(step.payload.num_scheduled_tokens)
            self._trace.committed(step, mode=mode, rows=rows, zombies=zombies)

    def shutdown(self) -> None:
        super().shutdown()  # type: ignore[misc]
        for record in (self._metrics, self._trace):
            if record is not None:
                record.close()


class BlockingScheduler(StepRecord, WholePrefix, Scheduler):
    """vLLM's scheduler for the blocking loop, with whole image prefixes and the same records."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.pipeline = pipeline_of(self.vllm_config)
        self._open_records()

    def _update_after_schedule(self, scheduler_output: SchedulerOutput) -> None:
        super()._update_after_schedule(scheduler_output)
        self.pipeline.finalize(self.pipeline.launch(scheduler_output))

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        self.pipeline.deliver(self.pipeline.steps[0])
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        self._record(self.pipeline.commit(scheduler_output), "blocking")
        return outputs


class PhotonScheduler(StepRecord, WholePrefix, AsyncScheduler):
    """vLLM's scheduler for two steps in flight, with counted references."""

    encoder_cache_manager: EncoderCacheManager

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.pipeline = pipeline_of(self.vllm_config)
        self.inflight_refs: InflightRefs[Request] = InflightRefs(self.pipeline.depth)
        self._launched: deque[tuple[SchedulerOutput, list[Request]]] = deque()
        self._parked: dict[Request, list[KVCacheBlock]] = {}
        self._resetting = False
        if type(self.encoder_cache_manager) is EncoderCacheManager:
            self.encoder_cache_manager = HeldEncoderCache(
                self.encoder_cache_manager.cache_size, self._newest_step
            )
        self._open_records()

    def _newest_step(self) -> Step[SchedulerOutput] | None:
        return self.pipeline.steps[-1] if self.pipeline else None

    def _update_after_schedule(self, scheduler_output: SchedulerOutput) -> None:
        super()._update_after_schedule(scheduler_output)
        requests = [
            self.requests[request_id] for request_id in scheduler_output.num_scheduled_tokens
        ]
        self.inflight_refs.launch(requests)
        self._launched.append((scheduler_output, requests))

    def get_grammar_bitmask(self, scheduler_output: SchedulerOutput) -> GrammarOutput | None:
        """Masks of a step; PipelineError if tokens that they depend on are not committed (I4)."""
        oldest = self.pipeline.steps[0]
        if scheduler_output.pending_structured_output_tokens and (
            oldest.payload is not scheduler_output
        ):
            raise PipelineError(f"a mask was asked for while {oldest} is not committed")
        return super().get_grammar_bitmask(scheduler_output)

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        oldest, requests = self._launched.popleft()
        if oldest is not scheduler_output:
            raise PipelineError(f"commit out of order: {self.pipeline.steps[0]} is older")
        for request in self.inflight_refs.commit(requests):
            self._release(request)
        self._drop_replaced(scheduler_output, requests)
        zombies = sum(request.is_finished() for request in requests)
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        step = self.pipeline.commit(scheduler_output)
        if isinstance(self.encoder_cache_manager, HeldEncoderCache):
            self.encoder_cache_manager.release(step)
        mode = "constrained" if step.needs_commit else "pipelined"
        parked = sum(map(len, self._parked.values()))
        self._record(step, mode, zombies=zombies, parked=parked)
        return outputs

    def _drop_replaced(self, scheduler_output: SchedulerOutput, launched: list[Request]) -> None:
        """Take out the rows of zombies whose id already belongs to a new request (I7).

        vLLM finds the request of a row by its id alone and would give the new one their tokens.
        """
        for request in launched:
            request_id = request.request_id
            if self.requests.get(request_id, request) is not request:
                del scheduler_output.num_scheduled_tokens[request_id]

    def _request_blocks_can_be_freed(self, request: Request) -> bool:
        return self._resetting or self.inflight_refs[request] == 0

    def _free_request_blocks(self, request: Request) -> None:
        if self._request_blocks_can_be_freed(request):
            self.kv_cache_manager.free(request)
            return
        blocks = self.kv_cache_manager.pop_blocks_for_free(request)
        if blocks:
            self._parked.setdefault(request, []).extend(blocks)

    def _release(self, request: Request) -> None:
        """Give parked blocks back, last block first so that tails are evicted first."""
        blocks = self._parked.pop(request, None)
        if blocks:
            self.kv_cache_manager.block_pool.free_blocks(reversed(blocks))

    def reset_prefix_cache(
        self, reset_running_requests: bool = False, reset_connector: bool = False
    ) -> bool:
        """As vLLM's, which frees every block at once.

        Steps in flight may still write to them; whatever is scheduled later runs after those steps
        on the same stream, which is the order that stock vLLM relies on everywhere.
        """
        if not reset_running_requests:
            return super().reset_prefix_cache(reset_running_requests, reset_connector)
        for request in list(self._parked):
            self._release(request)
        self._resetting = True
        try:
            return super().reset_prefix_cache(reset_running_requests, reset_connector)
        finally:
            self._resetting = False
