"""A whole vLLM engine over the virtual device: client, engine core and worker processes."""

import itertools
import random
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.emulated.device import DeviceStep, DeviceTimes
from benchmarks.emulated.steps import StepTimes, steady_decode
from benchmarks.text_model import VOCAB_SIZE

if TYPE_CHECKING:
    from vllm.inputs import TokensPrompt

WORKERS = {
    "blocking": "benchmarks.emulated.stock.StockEmulatedWorker",
    "pipelined": "benchmarks.emulated.photon.PhotonEmulatedWorker",
}
MAX_STREAMS = 32
PROMPT = 16  # tokens


class EmulatedEngine:
    """Stock vLLM (`blocking`) or photon (`pipelined`) on the virtual device.

    Start-up reads back what the model runner does and raises RuntimeError if it is not `mode`.
    """

    def __init__(self, mode: str, model: Path, executor: str = "mp") -> None:
        from vllm import LLM

        self.mode = mode
        self._ids = itertools.count()
        self.llm = LLM(
            model=str(model),
            worker_cls=WORKERS[mode],
            distributed_executor_backend=executor,
            enforce_eager=True,
            enable_prefix_caching=False,
            max_model_len=512,
            max_num_seqs=MAX_STREAMS,
            kv_cache_memory_bytes=64 << 20,
        )
        effective = set(self.llm.collective_rpc("effective_mode"))
        if effective != {mode}:
            self.close()
            raise RuntimeError(f"asked for the {mode} loop, the workers run {effective}")

    def set_times(self, times: DeviceTimes) -> None:
        self.llm.collective_rpc("set_device_times", args=(times.forward_ms, times.sampling_ms))

    def decode(self, streams: int, tokens: int) -> StepTimes:
        """Steady decode of `streams` requests at once, `tokens` tokens each."""
        from vllm import SamplingParams

        params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
        self.take_log()
        self.llm.generate(self._prompts(streams), params, use_tqdm=False)
        return steady_decode(self.take_log(), streams)

    def closed_loop(
        self, streams: int, requests: int, length: int, surprise: bool
    ) -> list[DeviceStep]:
        """Keep `streams` requests running until `requests` have ended, at `length` tokens each.

        With `surprise` a stop token ends them, which the scheduler can't foresee; otherwise the
        token limit does. The first ones are shorter, so that the ends lie spread out.
        """
        from vllm import SamplingParams

        engine, prompts = self.llm.llm_engine, self._prompts(requests)
        self.take_log()
        added = 0
        while added < requests or engine.has_unfinished_requests():
            while added < requests and engine.get_num_unfinished_requests() < streams:
                end = loop_length(added, streams, length)
                params = SamplingParams(
                    temperature=0,
                    min_tokens=end - 1,
                    max_tokens=2 * end if surprise else end,
                    stop_token_ids=[0],
                    ignore_eos=True,
                )
                engine.add_request(f"loop-{next(self._ids)}", prompts[added], params)
                added += 1
            engine.step()
        return self.take_log()

    def _prompts(self, count: int) -> list["TokensPrompt"]:
        draw = random.Random(count)
        return [
            {"prompt_token_ids": [draw.randrange(3, VOCAB_SIZE) for _ in range(PROMPT)]}
            for _ in range(count)
        ]

    def take_log(self) -> list[DeviceStep]:
        """The device's steps since the last call."""
        (log,) = self.llm.collective_rpc("take_device_log")
        return [DeviceStep(**step) for step in log]

    def close(self) -> None:
        self.llm.llm_engine.engine_core.shutdown()


def loop_length(index: int, streams: int, length: int) -> int:
    """Tokens of the index-th request of a closed loop; never below 2."""
    return max(2, length * (index + 1) // streams) if index < streams else length
