"""An engine in a process of its own: reads workloads, runs them, writes what came back.

``python -m tests.identity.engine_process``: one JSON object on standard input, ``{"engine":
{EngineArgs keywords}, "loras": [paths], "workloads": [...], "out": path}``. The engine core runs
in this process (``VLLM_ENABLE_V1_MULTIPROCESSING=0``), where its scheduler can be looked into; the
workers run where the executor puts them.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.identity.workload import Answer, Ask, Result, Workload

MAX_STEPS = 20_000


class Engine:
    """vLLM's LLMEngine, driven step by step."""

    def __init__(self, arguments: dict[str, Any], loras: list[str]) -> None:
        from vllm import EngineArgs, LLMEngine

        self.llm = LLMEngine.from_engine_args(EngineArgs(**arguments))
        self.core: Any = self.llm.engine_core.engine_core  # type: ignore[attr-defined]
        self.scheduler: Any = self.core.scheduler
        self.loras = loras
        self.counts: Counter[str] = Counter()
        self._count_preemptions()
        self._count_zombies()

    def run(self, workload: Workload) -> Result:
        """Run to the end, drain, and check that every block is free again."""
        self.counts.clear()
        answers: dict[str, Answer] = {}
        waiting = sorted(workload.asks, key=lambda ask: ask.arrive)
        leaving = {ask.id: ask.abort for ask in workload.asks if ask.abort is not None}
        for step in range(MAX_STEPS):
            while waiting and (waiting[0].arrive <= step or not self.llm.has_unfinished_requests()):
                self._add(waiting.pop(0))
            if not self.llm.has_unfinished_requests():
                break
            for output in self.llm.step():
                self._collect(output, answers)
                gone = leaving.get(output.request_id)
                tokens = sum(len(o.token_ids) for o in output.outputs)
                if gone is not None and tokens >= gone and not output.finished:
                    del leaving[output.request_id]
                    self.llm.abort_request([output.request_id])
                    for completion in output.outputs:
                        answers[f"{output.request_id}/{completion.index}"].aborted = True
        else:
            raise RuntimeError(f"{workload.name}: not done after {MAX_STEPS} steps")
        self.drain()
        pool = self.scheduler.kv_cache_manager.block_pool
        self.counts["blocks_lost"] = pool.num_gpu_blocks - 1 - pool.get_num_free_blocks()
        return Result(answers, dict(self.counts))

    def drain(self) -> None:
        """Run down what the engine still has in flight."""
        while self.core.batch_queue or self.scheduler.has_requests():
            self.core.step_fn()

    def _add(self, ask: Ask) -> None:
        from vllm import SamplingParams
        from vllm.lora.request import LoRARequest
        from vllm.sampling_params import StructuredOutputsParams

        params = dict(ask.params)
        if "structured_outputs" in params:
            params["structured_outputs"] = StructuredOutputsParams(**params["structured_outputs"])
        if params.get("logit_bias"):
            params["logit_bias"] = {int(k): v for k, v in params["logit_bias"].items()}
        prompt: dict[str, Any] = {"prompt_token_ids": ask.prompt}
        if ask.image is not None:
            from PIL import Image

            prompt["multi_modal_data"] = {"image": Image.open(ask.image).convert("RGB")}
        lora = None
        if ask.lora:
            lora = LoRARequest(f"lora{ask.lora}", ask.lora, self.loras[ask.lora - 1])
        self.llm.add_request(
            ask.id, prompt, SamplingParams(**params), lora_request=lora, priority=ask.priority
        )

    def _collect(self, output: Any, answers: dict[str, Answer]) -> None:
        for completion in output.outputs:
            answer = answers.setdefault(f"{output.request_id}/{completion.index}", Answer())
            answer.tokens = list(completion.token_ids)
            answer.text = completion.text
            answer.finish = completion.finish_reason
            answer.stop = completion.stop_reason
            if completion.logprobs is not None:
                answer.logprobs = [_plain(position) for position in completion.logprobs]
            if output.prompt_logprobs is not None:
                answer.prompt_logprobs = [
                    None if position is None else _plain(position)
                    for position in output.prompt_logprobs
                ]

    def _count_preemptions(self) -> None:
        preempt = self.scheduler._preempt_request

        def counted(*args: Any, **kwargs: Any) -> None:
            self.counts["preemptions"] += 1
            preempt(*args, **kwargs)

        self.scheduler._preempt_request = counted

    def _count_zombies(self) -> None:
        update = self.scheduler.update_from_output

        def counted(scheduler_output: Any, model_output: Any) -> Any:
            self.counts["steps"] += 1
            for request_id in scheduler_output.num_scheduled_tokens:
                request = self.scheduler.requests.get(request_id)
                self.counts["rows"] += 1
                self.counts["zombies"] += request is None or request.is_finished()
            return update(scheduler_output, model_output)

        self.scheduler.update_from_output = counted


def _plain(position: dict[int, Any]) -> dict[str, float]:
    return {str(token): entry.logprob for token, entry in position.items()}


def main() -> None:
    job = json.load(sys.stdin)
    engine = Engine(job["engine"], job["loras"])
    results = []
    for data in job["workloads"]:
        workload = Workload.from_json(data)
        results.append(asdict(engine.run(workload)))
        print(workload.name, results[-1]["counts"], flush=True)
    Path(job["out"]).write_text(json.dumps(results))
    engine.llm.engine_core.shutdown()


if __name__ == "__main__":
    main()
