"""The engines that the workloads run on: how each is configured, and in which forms it runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from vllm import __version__

from tests.identity.workload import Result, Workload

WORKER = "vllm_photon.worker.PhotonWorker"
ROOT = Path(__file__).parents[2]
CACHE = Path(tempfile.gettempdir()) / "vllm-photon-tests"
ENVIRONMENT = dict(os.environ)
"""As it was at the start: pytest changes its own from test to test, engines start in threads."""

FORMS: dict[str, dict[str, Any]] = {
    "stock": {"distributed_executor_backend": "uni"},
    # Stock vLLM has no spatial answers: for those the reference is its loop around our worker.
    "blocking": {
        "distributed_executor_backend": "uni",
        "worker_cls": WORKER,
        "additional_config": {"photon": {"pipeline": False}},
    },
    "photon-mp": {"distributed_executor_backend": "mp", "worker_cls": WORKER},
    "photon-uni": {"distributed_executor_backend": "uni", "worker_cls": WORKER},
}

BASE: dict[str, Any] = {
    "dtype": "float32",
    "max_model_len": 512,
    "max_num_seqs": 32,
    "max_num_batched_tokens": 8192,  # 32 requests of the longest prompts here: no chunks
    "enforce_eager": True,
    "kv_cache_memory_bytes": 128 << 20,
    "enable_prefix_caching": False,
    "seed": 7,
    "disable_log_stats": True,
}


@dataclass(frozen=True)
class Setup:
    """One engine configuration.

    ``arguments`` go to every form, ``stock`` to the stock form only: what stock vLLM can't do in
    this configuration it is asked to do in another. The first form is the reference.
    """

    arguments: dict[str, Any] = field(default_factory=dict)
    stock: dict[str, Any] = field(default_factory=dict)
    forms: tuple[str, ...] = ("stock", "photon-mp")
    model: str = "text"
    loras: int = 0
    processor_entry_point: bool = False
    plugin_in_stock: bool = False
    """Load the plugin's patches in the stock form too: its own bug is not the subject."""


CHUNKED = {"max_num_batched_tokens": 64}
WHOLE = {"max_num_batched_tokens": 8192}
"""For stock: seeded sampling beside a chunked prefill kills its engine on a CPU."""
SPATIAL = {"max_model_len": 1024, "max_num_batched_tokens": 1024, "enable_prefix_caching": True}
HISTORY = "tests.identity.processors:History"

SETUPS: dict[str, Setup] = {
    "plain": Setup(forms=("stock", "photon-mp", "photon-uni")),
    "chunked": Setup(CHUNKED, WHOLE),
    "cached": Setup({**CHUNKED, "enable_prefix_caching": True, "block_size": 32}, WHOLE),
    "starved": Setup(
        {
            "max_num_batched_tokens": 96,
            "enable_prefix_caching": True,
            "block_size": 32,
            "num_gpu_blocks_override": 40,
        },
        WHOLE,
        forms=("stock", "photon-mp", "photon-uni"),
    ),
    "priority": Setup(
        {"scheduling_policy": "priority", "block_size": 32, "num_gpu_blocks_override": 40}
    ),
    "processors": Setup({"logits_processors": [HISTORY]}),
    "entry-point": Setup(processor_entry_point=True),
    "lora": Setup(
        {"enable_lora": True, "max_lora_rank": 8, "max_loras": 2, "max_cpu_loras": 4},
        loras=3,
        plugin_in_stock=True,
    ),
    "spatial": Setup(SPATIAL, forms=("blocking", "photon-mp"), model="moondream2"),
    "spatial-starved": Setup(
        {**SPATIAL, "block_size": 32, "num_gpu_blocks_override": 60},
        forms=("blocking", "photon-mp"),
        model="moondream2",
    ),
}


def run(
    setup: Setup, form: str, workloads: list[Workload], model: Path, loras: list[Path]
) -> list[Result]:
    """Run ``workloads`` one after another on one engine, in a process of its own.

    Raises RuntimeError with the tail of its log when the process fails.
    """
    arguments = {**BASE, **setup.arguments, **FORMS[form], "model": str(model)}
    if form == "stock":
        arguments |= setup.stock
    with tempfile.TemporaryDirectory(prefix="photon-identity-") as scratch:
        out = Path(scratch) / "results.json"
        job = {
            "engine": arguments,
            "loras": [str(path) for path in loras],
            "workloads": [asdict(workload) for workload in workloads],
            "out": str(out),
        }
        environment = _environment()
        path = [str(ROOT)]
        if setup.processor_entry_point:
            path.append(_entry_point(Path(scratch)))
        environment["PYTHONPATH"] = os.pathsep.join(path)
        # vLLM 0.30 gives one request the allowed ids of another (compat.allowed_ids_hook).
        plugin_in_stock = setup.plugin_in_stock or __version__.startswith("0.30")
        if form == "stock" and not plugin_in_stock:
            environment["VLLM_PLUGINS"] = "none"
        process = subprocess.run(
            [sys.executable, "-m", "tests.identity.engine_process"],
            input=json.dumps(job),
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            env=environment,
            check=False,
        )
        if process.returncode or not out.exists():
            tail = "\n".join(process.stdout.splitlines()[-60:])
            raise RuntimeError(f"the {form} engine failed ({process.returncode}):\n{tail}")
        return [Result.from_json(result) for result in json.loads(out.read_text())]


def _environment() -> dict[str, str]:
    return {
        **ENVIRONMENT,
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "HF_HUB_OFFLINE": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
        # One thread each: the models are tiny, and threads that wait for each other crawl when
        # other processes want the cores.
        "OMP_NUM_THREADS": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    }


def _entry_point(scratch: Path) -> str:
    """A distribution that only says: vLLM, load this logits processor."""
    info = scratch / "site" / "history_processor-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: history-processor\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[vllm.logits_processors]\nhistory = {HISTORY}\n")
    return str(info.parent)
