"""Where the host's time goes in a decode step: engine core and worker, function by function.

    python -m benchmarks.host_time [--model DIR] [--out DIR]

The real engine, without HTTP, decodes 1 and then 32 streams in four settings: blocking and
pipelined, each with a worker process (mp) and with the worker inside the engine core (uni). Each
function below is wrapped by a clock of its thread's processor time; the median over the steps is
reported. Functions nest: `forward` is part of `worker`, so is `prepare`.
"""

import argparse
import functools
import random
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm.v1.executor.multiproc_executor import MultiprocExecutor
from vllm.v1.executor.uniproc_executor import UniProcExecutor
from vllm.v1.worker.cpu_worker import CPUWorker

from benchmarks.machine import describe_machine, write_table
from benchmarks.text_model import make_text_model
from vllm_photon.executor.executors import PhotonMultiprocExecutor, PhotonUniProcExecutor
from vllm_photon.worker import PhotonWorker

STREAMS, TOKENS, ROUNDS, PROMPT = (1, 32), 110, 5, 16
_SETTLING = 5  # first calls that don't count
_TAKE = "take_host_times"
_LLM = {
    "enforce_eager": True,
    "kv_cache_memory_bytes": 256 << 20,
    "max_model_len": 512,
    "max_num_seqs": 64,
    "enable_prefix_caching": False,
}

ENGINE = ("engine", "schedule", "send", "receive", "commit")
WORKER = (
    *("worker", "update", "prepare", "metadata", "forward", "logits"),
    *("sample", "bookkeeping"),
)

_times: dict[str, list[int]] = defaultdict(list)


def timed(owner: Any, method: str, label: str) -> None:
    """Record the processor time of every call of ``owner.method`` under ``label``."""
    stock = getattr(owner, method)

    @functools.wraps(stock)
    def measured(*args: Any, **kwargs: Any) -> Any:
        began = time.thread_time_ns()
        try:
            return stock(*args, **kwargs)
        finally:
            _times[label].append(time.thread_time_ns() - began)

    setattr(owner, method, measured)


def take(labels: tuple[str, ...]) -> dict[str, float]:
    """Median microseconds of each label since the last call."""
    found = {label: _times.pop(label, [])[_SETTLING:] for label in labels}
    return {label: statistics.median(ns) / 1e3 for label, ns in found.items() if ns}


class TimedRunner:
    """Mixin over a worker."""

    model_runner: Any

    def compile_or_warm_up_model(self) -> Any:
        outcome = super().compile_or_warm_up_model()  # type: ignore[misc]
        runner = self.model_runner
        for method, label in (
            ("_update_states", "update"),
            ("_prepare_inputs", "prepare"),
            ("_build_attention_metadata", "metadata"),
            ("_model_forward", "forward"),
            ("_sample", "sample"),
            ("_bookkeeping_sync", "bookkeeping"),
        ):
            timed(runner, method, label)
        timed(runner.model, "compute_logits", "logits")
        timed(self, "execute_model", "execute")
        timed(self, "sample_tokens", "finalize")
        return outcome

    def take_host_times(self) -> dict[str, float]:
        whole = take(("execute", "finalize"))
        return {"worker": sum(whole.values()), **take(WORKER)}


class TimedWorker(TimedRunner, CPUWorker):
    """Stock."""


class TimedPhotonWorker(TimedRunner, PhotonWorker):
    """Ours."""


class TimedExecutor:
    """Mixin over an executor, which lives in the engine core's process."""

    def _init_executor(self) -> None:
        from vllm.distributed.device_communicators.shm_broadcast import MessageQueue
        from vllm.v1.core.sched.scheduler import Scheduler
        from vllm.v1.engine.core import EngineCoreProc

        super()._init_executor()  # type: ignore[misc]
        timed(EngineCoreProc, "_process_engine_step", "engine")
        timed(Scheduler, "schedule", "schedule")
        timed(Scheduler, "update_from_output", "commit")
        if not isinstance(self, UniProcExecutor):
            timed(MessageQueue, "enqueue", "send")
            timed(MessageQueue, "dequeue", "receive")

    def collective_rpc(self, method: str | Callable, *args: Any, **kwargs: Any) -> Any:
        replies = super().collective_rpc(method, *args, **kwargs)  # type: ignore[misc]
        return [take(ENGINE), *replies] if method == _TAKE else replies


class BlockingMp(TimedExecutor, MultiprocExecutor):
    """Stock, worker process."""


class BlockingUni(TimedExecutor, UniProcExecutor):
    """Stock, one process."""


class PipelinedMp(TimedExecutor, PhotonMultiprocExecutor):
    """Ours, worker process."""


class PipelinedUni(TimedExecutor, PhotonUniProcExecutor):
    """Ours, one process."""


@dataclass(frozen=True)
class Setting:
    """One loop on one executor."""

    name: str
    executor: type
    worker: type


SETTINGS = (
    Setting("blocking mp", BlockingMp, TimedWorker),
    Setting("pipelined mp", PipelinedMp, TimedPhotonWorker),
    Setting("blocking uni", BlockingUni, TimedWorker),
    Setting("pipelined uni", PipelinedUni, TimedPhotonWorker),
)


def measure(setting: Setting, model: Path) -> list[dict[str, Any]]:
    """One row for each number of streams: wall time of a step and the medians, microseconds."""
    from vllm import LLM, SamplingParams

    def dotted(cls: type) -> str:
        return f"benchmarks.host_time.{cls.__name__}"

    blocking = setting.name.startswith("blocking")
    llm = LLM(
        model=str(model),
        worker_cls=dotted(setting.worker),
        distributed_executor_backend=dotted(setting.executor),
        async_scheduling=False if blocking else None,
        **_LLM,
    )
    rows = []
    for streams in STREAMS:
        draw = random.Random(streams)
        prompts: Any = [
            {"prompt_token_ids": draw.choices(range(3, 8192), k=PROMPT)} for _ in range(streams)
        ]
        params = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)
        llm.generate(prompts, params, use_tqdm=False)
        llm.collective_rpc(_TAKE)
        walls = []
        for _ in range(ROUNDS):
            began = time.perf_counter()
            llm.generate(prompts, params, use_tqdm=False)
            walls.append(1e6 * (time.perf_counter() - began) / TOKENS)
        medians = {k: v for part in llm.collective_rpc(_TAKE) for k, v in part.items()}
        rows.append(
            {
                "setting": setting.name,
                "streams": streams,
                "step_us": statistics.median(walls),
                **medians,
            }
        )
    llm.llm_engine.engine_core.shutdown()
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown: a line for each function, a column for each setting and number of streams."""
    heads = [f"{row['setting']} x{row['streams']}" for row in rows]
    lines = ["| µs | " + " | ".join(heads) + " |", "|---" * (len(rows) + 1) + "|"]
    for label in ("step_us", *ENGINE, *WORKER):
        cells = [f"{row[label]:.0f}" if label in row else "-" for row in rows]
        name = "step, wall" if label == "step_us" else label
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", type=Path, help="a text model (default: one made on the spot)")
    parser.add_argument("--out", type=Path, default=Path("out/host-time"))
    options = parser.parse_args()
    model = options.model or make_text_model(Path("out/models/tiny"))
    machine = describe_machine()
    rows = [row for setting in SETTINGS for row in measure(setting, model)]
    print(write_table({"machine": machine, "rows": rows}, table(rows), options.out))


if __name__ == "__main__":
    main()
