"""What this package overrides and builds on in vLLM's model runner V2."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
import torch
from vllm.v1.outputs import AsyncModelRunnerOutput
from vllm.v1.worker.gpu.input_batch import InputBatch
from vllm.v1.worker.gpu.model_runner import GPUModelRunner
from vllm.v1.worker.gpu.sample.logits_processor import (
    LogitsContext,
    LogitsProcessor,
    LogitsProcRequestState,
)
from vllm.v1.worker.gpu.sample.output import SamplerOutput
from vllm.v1.worker.gpu.sample.penalties import PenaltiesState
from vllm.v1.worker.gpu.sample.prompt_logprob import PromptLogprobsWorker

SIGNATURES: dict[Callable[..., Any], list[str]] = {
    GPUModelRunner.sample: ["self", "hidden_states", "input_batch", "grammar_output"],
    GPUModelRunner.postprocess_sampled: [
        "self",
        "idx_mapping",
        "sampled_tokens",
        "num_sampled",
        "num_rejected",
        "query_start_loc",
    ],
    GPUModelRunner.sample_tokens: ["self", "grammar_output"],
    LogitsProcessor.__init__: ["self", "vllm_config", "req_states"],
    LogitsProcessor.add_request: ["self", "req_idx", "sampling_params"],
    LogitsProcessor.apply_staged_writes: ["self"],
    LogitsProcessor.apply: ["self", "logits", "ctx"],
    PenaltiesState.apply_staged_writes: ["self"],
    PromptLogprobsWorker.compute_prompt_logprobs: [
        "self",
        "logits_fn",
        "hidden_states",
        "input_batch",
        "all_token_ids",
        "num_computed_tokens",
        "prompt_lens",
    ],
    AsyncModelRunnerOutput.get_output: ["self"],
}

FIELDS: dict[type, set[str]] = {
    LogitsContext: {"expanded_idx_mapping", "idx_mapping_np", "input_ids", "pos"},
    LogitsProcRequestState: {
        "device",
        "max_num_reqs",
        "vocab_size",
        "all_token_ids",
        "prompt_len",
        "prefill_len",
    },
    InputBatch: {"logits_indices", "req_ids", "idx_mapping_np", "has_prefill"},
    SamplerOutput: {"sampled_token_ids", "logprobs_tensors"},
}


@pytest.mark.parametrize("function", SIGNATURES, ids=lambda function: function.__qualname__)
def test_signature(function: Callable[..., Any]) -> None:
    assert list(inspect.signature(function).parameters) == SIGNATURES[function]


@pytest.mark.parametrize("record", FIELDS, ids=lambda record: record.__name__)
def test_fields(record: type) -> None:
    assert FIELDS[record] <= {field.name for field in fields(record)}


def test_attributes_that_the_guards_use() -> None:
    source = inspect.getsource(PenaltiesState)
    for name in ("self._new_penalties_reqs.clear()", "self.req_states.all_token_ids.gpu"):
        assert name in source
    assert "self.use_penalty = np.zeros(" in source
    # The histogram of answers is hidden from vLLM's kernel by taking this attribute away.
    taken = inspect.getsource(GPUModelRunner.postprocess_sampled)
    assert "self.sampler.penalties_state.output_bin_counts\n" in taken
    kernel = inspect.getsource(inspect.getmodule(InputBatch))
    assert "if output_bin_counts_ptr is not None:" in kernel
    worker = PromptLogprobsWorker(2, torch.device("cpu"))
    assert isinstance(worker.uses_prompt_logprobs, np.ndarray)
