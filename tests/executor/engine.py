"""A pipelined engine core in this process, driven step by step and looked into."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

from vllm_photon.config import WORKER_CLS

MAX_STEPS = 5_000


class Engine:
    """vLLM's engine core over the photon worker, below request ids that vLLM makes unique."""

    def __init__(self, **arguments: Any) -> None:
        from vllm import EngineArgs, LLMEngine

        given = {
            "worker_cls": WORKER_CLS,
            "distributed_executor_backend": "uni",
            "disable_log_stats": True,
            **arguments,
        }
        self.llm = LLMEngine.from_engine_args(EngineArgs(**given))
        self.core: Any = self.llm.engine_core.engine_core  # type: ignore[attr-defined]
        self.scheduler: Any = self.core.scheduler
        self.pool: Any = self.scheduler.kv_cache_manager.block_pool
        self.tokens: dict[str, list[int]] = {}
        self.finish: dict[str, str] = {}

    def close(self) -> None:
        self.llm.engine_core.shutdown()

    def add(self, name: str, prompt: list[int], **params: Any) -> None:
        """Add a request under exactly this id; its tokens gather anew in ``tokens``."""
        from vllm import SamplingParams

        given = {"temperature": 0.0, "ignore_eos": True, **params}
        request = self.llm.input_processor.process_inputs(
            name,
            {"type": "token", "prompt_token_ids": prompt},
            SamplingParams(**given),
            supported_tasks=("generate",),
        )
        request.request_id = name
        self.tokens[name] = []
        self.finish.pop(name, None)
        self.core.add_request(*self.core.preprocess_add_request(request))

    def step(self) -> None:
        """One turn of the engine core's loop."""
        outputs, executed = self.core.step_fn()
        self.core.post_step(executed)
        self._gather(outputs or {})

    def launch(self) -> Any:
        """Launch a step of unconstrained requests without committing any; gives its output."""
        output = self.scheduler.schedule()
        forward = self.core.model_executor.execute_model(output, non_block=True)
        sampled = self.core.model_executor.sample_tokens(None, non_block=True)
        self.core.batch_queue.appendleft((sampled, output, forward))
        return output

    def commit(self) -> None:
        """Commit the oldest step."""
        future, output, _ = self.core.batch_queue.pop()
        self._gather(self.scheduler.update_from_output(output, future.result()))

    def _gather(self, outputs: dict[int, Any]) -> None:
        for output in outputs.values():
            for item in output.outputs:
                self.tokens[item.request_id] += item.new_token_ids
                if item.finish_reason is not None:
                    self.finish[item.request_id] = str(item.finish_reason)

    def run(self, until: Callable[[], bool] = lambda: False) -> None:
        """Step until ``until()`` holds or nothing is left, in flight or waiting."""
        for _ in range(MAX_STEPS):
            if until() or not self.busy():
                return
            self.step()
        raise AssertionError(f"not done after {MAX_STEPS} steps")

    def run_for(self, tokens: int) -> None:
        """Step until so many more tokens have come."""
        enough = self.delivered() + tokens
        self.run(until=lambda: self.delivered() >= enough)

    def delivered(self) -> int:
        return sum(map(len, self.tokens.values()))

    def busy(self) -> bool:
        return bool(self.core.batch_queue) or self.scheduler.has_requests()

    def abort(self, *names: str) -> None:
        self.core.abort_requests(list(names))

    def free_blocks(self) -> int:
        return self.pool.get_num_free_blocks()

    def all_blocks(self) -> int:
        return self.pool.num_gpu_blocks - 1

    def parked_blocks(self) -> int:
        return sum(map(len, self.scheduler._parked.values()))

    def alone(self, prompt: list[int], **params: Any) -> list[int]:
        """The answer of an idle engine to one request, its cache empty."""
        assert not self.busy()
        self.scheduler.reset_prefix_cache()
        self.add("alone", prompt, **params)
        self.run()
        self.scheduler.reset_prefix_cache()
        return self.tokens["alone"]


class BlockWatch:
    """Which blocks the steps in flight write, and which of them are handed out meanwhile."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.violations: list[tuple[int, set[str], str]] = []
        self.most_parked = 0
        self.preemptions = 0

    @contextmanager
    def watching(self, patch: Any) -> Any:
        """Watch through the scheduler's methods; ``patch`` is a MonkeyPatch."""
        scheduler, pool = self.engine.scheduler, self.engine.pool
        flight: deque[dict[int, set[str]]] = deque()
        handed_out: set[int] = set()
        schedule, update = scheduler.schedule, scheduler.update_from_output
        hand_out, preempt = pool.get_new_blocks, scheduler._preempt_request

        def watched_hand_out(count: int) -> Any:
            blocks = hand_out(count)
            handed_out.update(block.block_id for block in blocks)
            return blocks

        def watched_schedule(*args: Any) -> Any:
            handed_out.clear()
            output = schedule(*args)
            owners = {
                block: request_id
                for request_id in output.num_scheduled_tokens
                for block in scheduler.kv_cache_manager.get_block_ids(request_id)[0]
            }
            for block in handed_out & owners.keys():
                writers = set().union(*(step.get(block, set()) for step in flight))
                if writers - {owners[block]}:
                    self.violations.append((block, writers, owners[block]))
            written: dict[int, set[str]] = {}
            for request_id in output.num_scheduled_tokens:
                for block in scheduler.kv_cache_manager.get_block_ids(request_id)[0]:
                    written.setdefault(block, set()).add(request_id)
            flight.append(written)
            self.most_parked = max(self.most_parked, self.engine.parked_blocks())
            return output

        def watched_update(*args: Any) -> Any:
            flight.popleft()
            return update(*args)

        def watched_preempt(*args: Any, **kwargs: Any) -> Any:
            self.preemptions += 1
            return preempt(*args, **kwargs)

        with patch.context() as inner:
            inner.setattr(pool, "get_new_blocks", watched_hand_out)
            inner.setattr(scheduler, "schedule", watched_schedule)
            inner.setattr(scheduler, "update_from_output", watched_update)
            inner.setattr(scheduler, "_preempt_request", watched_preempt)
            yield self


def drawn_prompt(draw: random.Random, shortest: int = 20, longest: int = 90) -> list[int]:
    return [draw.randrange(300, 8000) for _ in range(draw.randint(shortest, longest))]
