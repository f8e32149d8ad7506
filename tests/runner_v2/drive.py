"""Runs every workload in one engine and writes what came out as JSON.

``python -m tests.runner_v2.drive RUNNER MODE OUT``: RUNNER is v1 or v2 on a CPU, or gpu for V2 on a
GPU with vLLM's check that no step waits for the device; MODE is pipelined or blocking.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from tests.runner_v2 import workloads
from tests.runner_v2.workloads import Request


def start(pipelined: bool) -> Any:
    """An engine in this process."""
    from vllm import LLM

    return LLM(
        str(workloads.CHECKPOINT),
        dtype="float32",
        enforce_eager=True,
        max_model_len=1024,
        max_num_seqs=8,
        max_num_batched_tokens=workloads.BUDGET,
        block_size=workloads.BLOCK,
        num_gpu_blocks_override=workloads.NUM_BLOCKS,
        kv_cache_memory_bytes=64 << 20,
        seed=0,
        additional_config={"photon": {"pipeline": pipelined}},
    )


def run(llm: Any, requests: list[Request]) -> list[dict[str, Any]]:
    """What became of each request, in order."""
    from PIL import Image
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    engine = llm.llm_engine
    waiting = sorted(enumerate(requests), key=lambda pair: pair[1].arrive)
    results: list[dict[str, Any]] = [{} for _ in requests]
    step = 0
    while waiting or engine.has_unfinished_requests():
        while waiting and (waiting[0][1].arrive <= step or not engine.has_unfinished_requests()):
            index, request = waiting.pop(0)
            prompt: dict[str, Any] = {"prompt_token_ids": request.prompt}
            if request.image is not None:
                path = workloads.CHECKPOINT / f"image{request.image}.png"
                prompt["multi_modal_data"] = {"image": Image.open(path)}
            params = dict(request.params)
            if "structured_outputs" in params:
                params["structured_outputs"] = StructuredOutputsParams(
                    **params["structured_outputs"]
                )
            engine.add_request(str(index), prompt, SamplingParams(**params))
        for output in engine.step():
            index = int(output.request_id)
            leave_after = requests[index].leave_after
            results[index] = outcome(output, leave_after)
            tokens = results[index]["tokens"]
            if leave_after is not None and len(tokens) >= leave_after and not output.finished:
                engine.abort_request([output.request_id])
        step += 1
    return results


def outcome(output: Any, leave_after: int | None) -> dict[str, Any]:
    """Tokens, reasons and logprobs; of a client that leaves, the tokens it stayed for."""
    (answer,) = output.outputs
    tokens = list(answer.token_ids)
    if leave_after is not None:
        return {"tokens": tokens[:leave_after]}
    return {
        "tokens": tokens,
        "finish": answer.finish_reason,
        "stop": answer.stop_reason,
        "logprobs": [logprobs(position) for position in answer.logprobs or ()],
        "prompt_logprobs": [logprobs(position) for position in output.prompt_logprobs or ()],
    }


def logprobs(position: Any) -> dict[str, float | None] | None:
    """One position's logprobs by token id; None for -inf, which JSON has no word for."""
    if position is None:
        return None
    return {
        str(token): None if found.logprob == float("-inf") else found.logprob
        for token, found in position.items()
    }


class Watch:
    """What the engine did, besides its answers."""

    def __init__(self, core: Any) -> None:
        self._core = core
        self._preempted: list[int] = []
        self._most_in_flight = 0
        preempt, launch = core.scheduler._preempt_request, core.model_executor.execute_model

        def counted_preempt(request: Any, *args: Any, **kwargs: Any) -> None:
            self._preempted.append(int(request.request_id.split("-")[0]))
            preempt(request, *args, **kwargs)

        def counted_launch(*args: Any, **kwargs: Any) -> Any:
            future = launch(*args, **kwargs)
            earlier = len(core.batch_queue) if core.batch_queue is not None else 0
            self._most_in_flight = max(self._most_in_flight, earlier + 1)
            return future

        core.scheduler._preempt_request = counted_preempt
        core.model_executor.execute_model = counted_launch

    def take(self) -> dict[str, Any]:
        """Facts since the last call; lets what is in flight end first."""
        while self._core.batch_queue:
            self._core.step_fn()
        pool = self._core.scheduler.kv_cache_manager.block_pool
        worker = self._core.model_executor.driver_worker.worker
        facts = {
            "runner": type(worker.model_runner).__mro__[1].__name__,
            "in_flight": self._most_in_flight,
            "preempted": self._preempted,
            "uses_slots": worker.slots.steps > 0,
            # One block is never handed out.
            "held_blocks": pool.num_gpu_blocks - 1 - pool.get_num_free_blocks(),
        }
        self._preempted, self._most_in_flight = [], 0
        return facts


def main(runner: str, mode: str, out: str) -> None:
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
    os.environ["OMP_NUM_THREADS"] = "1"
    if runner == "gpu":
        # Triton rounds the factors of a float32 product to 10 bits unless told otherwise.
        os.environ["TRITON_F32_DEFAULT"] = "ieee"
        os.environ["VLLM_GPU_SYNC_CHECK"] = "error"
    if runner == "v2":
        from tests.runner_v2 import interpreter

        interpreter.enable()
    llm = start(mode == "pipelined")
    core = llm.llm_engine.engine_core.engine_core
    if runner == "gpu":
        from vllm.utils import gpu_sync_debug

        assert gpu_sync_debug._sync_check_enabled, "vLLM doesn't check for waits"
    watch = Watch(core)
    results: dict[str, Any] = {}
    work = workloads.workloads()
    work["oracle"] = [request for request, _ in workloads.oracle().values()]
    for name, requests in work.items():
        began = time.perf_counter()
        results[name] = {"outcomes": run(llm, requests), **watch.take()}
        results[name]["seconds"] = round(time.perf_counter() - began, 1)
        assert llm.reset_prefix_cache()
    Path(out).write_text(json.dumps(results))


if __name__ == "__main__":
    main(*sys.argv[1:])
