"""An engine in this process, small enough that its KV cache is always in demand."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from vllm import envs

from tests.executor.engine import Engine
from tests.identity.models import text_model

SETTINGS = {
    "dtype": "float32",
    "max_model_len": 256,
    "max_num_seqs": 24,
    "max_num_batched_tokens": 96,
    "kv_cache_memory_bytes": 64 << 20,
    "block_size": 32,
    "num_gpu_blocks_override": 30,
    "enable_prefix_caching": True,
    "enforce_eager": True,
    "seed": 7,
}


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """vLLM remembers environment variables once an engine runs; forget them before and after."""
    envs.disable_envs_cache()
    yield
    envs.disable_envs_cache()


@pytest.fixture(scope="module")
def starved() -> Iterator[Engine]:
    """A pipelined engine with 29 blocks of 32 tokens; each test leaves it idle."""
    with pytest.MonkeyPatch.context() as patch:
        envs.disable_envs_cache()
        patch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        patch.setenv("VLLM_CPU_OMP_THREADS_BIND", "nobind")
        patch.setenv("HF_HUB_OFFLINE", "1")
        # Threads that wait for each other crawl when other processes want the cores.
        torch.set_num_threads(1)
        engine = Engine(model=str(text_model()), **SETTINGS)
        yield engine
        engine.close()
    envs.disable_envs_cache()
