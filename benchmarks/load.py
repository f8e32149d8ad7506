"""What is asked of a server, and one run of it: text through vLLM's own `vllm bench serve`.

A run's result is one flat record, the same for text and for spatial loads: `req_per_s`,
`output_tok_per_s`, `{ttft,tpot,itl,e2e}_{mean,p50,p99}_ms`, `goodput_req_per_s`, `completed`,
`failed`, `duration_s`. A load that is not streamed has only the `e2e` times.
"""

import argparse
import asyncio
import contextlib
import io
import math
from dataclasses import dataclass
from typing import Any

from vllm.utils.argparse_utils import FlexibleArgumentParser

PROMPT_TOKENS = 32
_KINDS = {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2e": "e2el"}


@dataclass(frozen=True)
class Load:
    """One column of the comparison.

    kind: `text`, or a spatial skill (`point`, `detect`, `query`) or `mixed`.
    tokens: output tokens of a text request.
    concurrency: requests kept running; with a rate, the most that may run.
    rate: requests per second of a Poisson process; None is a closed loop.
    """

    name: str
    kind: str
    tokens: int
    concurrency: int
    requests: int
    rate: float | None = None


@dataclass(frozen=True)
class Objectives:
    """Service level for goodput, in milliseconds."""

    ttft_ms: float
    tpot_ms: float


def run_text(url: str, model: str, load: Load, goals: Objectives, seed: int) -> dict[str, float]:
    """One run of vLLM's serving benchmark with random prompts; needs the model's tokenizer."""
    from vllm.benchmarks.serve import add_cli_args, main_async

    parser = FlexibleArgumentParser()
    add_cli_args(parser)
    options = [
        *("--base-url", url, "--endpoint", "/v1/completions", "--model", model),
        *("--dataset-name", "random", "--random-range-ratio", "0"),
        *("--random-input-len", str(PROMPT_TOKENS), "--random-output-len", str(load.tokens)),
        *("--num-prompts", str(load.requests), "--max-concurrency", str(load.concurrency)),
        *("--temperature", "0", "--seed", str(seed), "--disable-tqdm"),
        *("--percentile-metrics", ",".join(_KINDS.values()), "--metric-percentiles", "50,99"),
        *("--goodput", f"ttft:{goals.ttft_ms:g}", f"tpot:{goals.tpot_ms:g}"),
    ]
    if load.rate is not None:
        options += ["--request-rate", f"{load.rate:g}"]
    arguments: argparse.Namespace = parser.parse_args(options)
    with contextlib.redirect_stdout(io.StringIO()):
        result = asyncio.run(main_async(arguments))
    return _record(result)


def _record(result: dict[str, Any]) -> dict[str, float]:
    record = {
        "req_per_s": result["request_throughput"],
        "output_tok_per_s": result["output_throughput"],
        "goodput_req_per_s": result["request_goodput"],
        "completed": result["completed"],
        "failed": result["failed"],
        "duration_s": result["duration"],
    }
    for ours, theirs in _KINDS.items():
        for stat in ("mean", "p50", "p99"):
            value = result.get(f"{stat}_{theirs}_ms")
            if value is not None and math.isfinite(value):
                record[f"{ours}_{stat}_ms"] = float(value)
    return record
