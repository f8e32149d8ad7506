"""A request's allowed ids stay its own when rows of vLLM's batch move (``allowed_ids_hook``)."""

from __future__ import annotations

from inspect import signature
from typing import Any

import pytest
import torch
from vllm import SamplingParams
from vllm.v1.worker.gpu_input_batch import CachedRequestState, InputBatch

from vllm_photon import compat

VOCAB = 16


@pytest.fixture
def batch() -> InputBatch:
    compat.allowed_ids_hook()
    arguments: dict[str, Any] = {
        "max_num_reqs": 4,
        "max_model_len": 32,
        "max_num_batched_tokens": 64,
        "device": torch.device("cpu"),
        "pin_memory": False,
        "vocab_size": VOCAB,
        "block_sizes": [16],
        "kernel_block_sizes": [16],
        "max_num_blocks_per_req": [2],
    }
    accepted = signature(InputBatch).parameters
    return InputBatch(**{name: value for name, value in arguments.items() if name in accepted})


def add(batch: InputBatch, name: str, allowed: list[int] | None) -> None:
    params = SamplingParams(allowed_token_ids=allowed)
    batch.add_request(CachedRequestState(name, [1, 2], [], params, None, ([0],), 0, []))


def allowed(batch: InputBatch, name: str) -> list[int]:
    mask = batch.allowed_token_ids_mask_cpu_tensor
    assert mask is not None
    return (~mask[batch.req_id_to_index[name]]).nonzero().flatten().tolist()


def test_nothing_stays_where_a_row_was(batch: InputBatch) -> None:
    add(batch, "first", None)
    add(batch, "second", [3])
    batch.remove_request("first")
    batch.condense()
    assert allowed(batch, "second") == [3]
    add(batch, "third", None)
    assert allowed(batch, "third") == list(range(VOCAB))


def test_rows_change_places(batch: InputBatch) -> None:
    add(batch, "first", [3])
    add(batch, "second", [4, 5])
    batch.swap_states(0, 1)
    assert (allowed(batch, "first"), allowed(batch, "second")) == ([3], [4, 5])
