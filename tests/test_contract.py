"""What the plugin builds on in vLLM: every method that it overrides or calls, every field it reads.

A hook that moves or changes shape fails here, by name, before anything fails in an odd way. Each
supported vLLM runs this file (``make compat``).
"""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import pytest

from vllm_photon import compat

CALLS: dict[str, list[str]] = {
    # Scheduling: what PhotonScheduler overrides, and what it calls.
    "vllm.v1.core.sched.scheduler:Scheduler._update_after_schedule": ["self", "scheduler_output"],
    "vllm.v1.core.sched.async_scheduler:AsyncScheduler._update_after_schedule": [
        "self",
        "scheduler_output",
    ],
    "vllm.v1.core.sched.scheduler:Scheduler.update_from_output": [
        "self",
        "scheduler_output",
        "model_runner_output",
    ],
    "vllm.v1.core.sched.scheduler:Scheduler.get_grammar_bitmask": ["self", "scheduler_output"],
    "vllm.v1.core.sched.scheduler:Scheduler._request_blocks_can_be_freed": ["self", "request"],
    "vllm.v1.core.sched.scheduler:Scheduler._free_request_blocks": ["self", "request"],
    "vllm.v1.core.sched.scheduler:Scheduler.reset_prefix_cache": [
        "self",
        "reset_running_requests",
        "reset_connector",
    ],
    "vllm.v1.core.sched.scheduler:Scheduler._try_schedule_encoder_inputs": [
        "self",
        "request",
        "num_computed_tokens",
        "num_new_tokens",
        "encoder_compute_budget",
    ],
    "vllm.v1.core.sched.scheduler:Scheduler.has_unfinished_requests": ["self"],
    "vllm.v1.core.sched.scheduler:Scheduler.shutdown": ["self"],
    "vllm.v1.core.kv_cache_manager:KVCacheManager.free": ["self", "request"],
    "vllm.v1.core.kv_cache_manager:KVCacheManager.pop_blocks_for_free": ["self", "request"],
    "vllm.v1.core.block_pool:BlockPool.free_blocks": ["self", "ordered_blocks"],
    "vllm.v1.core.encoder_cache_manager:EncoderCacheManager.__init__": ["self", "cache_size"],
    "vllm.v1.core.encoder_cache_manager:EncoderCacheManager.free_encoder_input": [
        "self",
        "request",
        "input_id",
    ],
    "vllm.v1.core.encoder_cache_manager:EncoderCacheManager.reset": ["self"],
    # The loop.
    "vllm.v1.engine.core:EngineCore.step_with_batch_queue": ["self"],
    "vllm.v1.executor.abstract:Executor.supports_async_scheduling": [],
    "vllm.v1.executor.uniproc_executor:UniProcExecutor.execute_model": [
        "self",
        "scheduler_output",
        "non_block",
    ],
    "vllm.v1.executor.uniproc_executor:UniProcExecutor.sample_tokens": [
        "self",
        "grammar_output",
        "non_block",
    ],
    "vllm.v1.executor.uniproc_executor:UniProcExecutor.collective_rpc": ["self", "method"],
    "vllm.v1.executor.multiproc_executor:MultiprocExecutor.execute_model": [
        "self",
        "scheduler_output",
        "non_block",
    ],
    "vllm.v1.executor.multiproc_executor:MultiprocExecutor.sample_tokens": [
        "self",
        "grammar_output",
        "non_block",
    ],
    "vllm.v1.executor.multiproc_executor:MultiprocExecutor.collective_rpc": ["self", "method"],
    "vllm.v1.executor.multiproc_executor:MultiprocExecutor._init_executor": ["self"],
    "vllm.distributed.device_communicators.shm_broadcast:SpinCondition.wait": [
        "self",
        "timeout_ms",
    ],
    # Entry points.
    "vllm.v1.engine.input_processor:InputProcessor._validate_model_input": [
        "self",
        "prompt_input",
        "prompt_type",
    ],
    "vllm.multimodal.processing:BaseMultiModalProcessor._apply_hf_processor_main": [
        "self",
        "mm_items",
    ],
    # Workers and runners.
    "vllm.v1.worker.cpu_worker:CPUWorker.load_model": ["self"],
    "vllm.v1.worker.gpu_worker:Worker.sample_tokens": ["self", "grammar_output"],
    "vllm.v1.worker.gpu_worker:Worker.compile_or_warm_up_model": ["self"],
    "vllm.v1.worker.gpu_model_runner:GPUModelRunner.sample_tokens": ["self", "grammar_output"],
    "vllm.v1.worker.gpu_model_runner:GPUModelRunner._sample": [
        "self",
        "logits",
        "spec_decode_metadata",
    ],
    "vllm.v1.worker.gpu_model_runner:GPUModelRunner._model_forward": ["self", "input_ids"],
    "vllm.v1.worker.gpu_input_batch:InputBatch.update_async_output_token_ids": ["self"],
    "vllm.v1.worker.gpu_model_runner:GPUModelRunner._bookkeeping_sync": [
        "self",
        "scheduler_output",
        "sampler_output",
        "logits",
        "hidden_states",
        "num_scheduled_tokens",
    ],
    "vllm.v1.sample.sampler:Sampler.apply_penalties": [
        "logits",
        "sampling_metadata",
        "output_token_ids",
    ],
    "vllm.v1.sample.sampler:Sampler.gather_logprobs": ["logprobs", "num_logprobs", "token_ids"],
    "vllm.v1.sample.logits_processor:LogitsProcessor.apply": ["self", "logits"],
    "vllm.v1.sample.logits_processor:LogitsProcessor.update_state": ["self", "batch_update"],
    "vllm.v1.attention.backends.cpu_attn:CPUAttentionMetadataBuilder.build": [
        "self",
        "common_prefix_len",
        "common_attn_metadata",
        "fast_build",
    ],
    # The front end.
    "vllm.v1.engine.detokenizer:IncrementalDetokenizer.from_new_request": ["tokenizer", "request"],
    "vllm.v1.engine.input_processor:InputProcessor.process_inputs": [
        "self",
        "request_id",
        "prompt",
        "params",
    ],
    "vllm.v1.engine.async_llm:AsyncLLM.generate": ["self", "prompt", "sampling_params"],
    "vllm.plugins:load_endpoint_plugins": ["supported_tasks"],
    "vllm.platforms.interface:Platform.check_and_update_config": ["vllm_config"],
}
"""``module:function`` to its first parameters, by name and in order."""

FIELDS: dict[str, list[str]] = {
    "vllm.v1.core.sched.output:SchedulerOutput": [
        "num_scheduled_tokens",
        "scheduled_new_reqs",
        "has_structured_output_requests",
        "pending_structured_output_tokens",
    ],
    "vllm.v1.outputs:ModelRunnerOutput": ["req_id_to_index", "sampled_token_ids"],
    "vllm.v1.outputs:SamplerOutput": ["sampled_token_ids", "logprobs_tensors"],
    "vllm.v1.outputs:LogprobsTensors": ["logprob_token_ids", "logprobs"],
    "vllm.v1.sample.metadata:SamplingMetadata": ["no_penalties", "prompt_token_ids"],
    "vllm.config:VllmConfig": [
        "instance_id",
        "additional_config",
        "scheduler_config",
        "parallel_config",
        "speculative_config",
    ],
    "vllm.config:SchedulerConfig": ["async_scheduling", "scheduler_cls"],
    "vllm.config:ParallelConfig": [
        "worker_cls",
        "distributed_executor_backend",
        "pipeline_parallel_size",
    ],
    "vllm.config:ModelConfig": ["logits_processors"],
    "vllm.sampling_params:SamplingParams": ["extra_args"],
}
"""``module:class`` to the fields that are read or set."""

SOURCES: dict[str, list[str]] = {
    "vllm.entrypoints.openai.responses.protocol:ResponsesRequest": [
        "def build_chat_params",
        "vllm_xargs",
        "temperature",
    ],
    "vllm.distributed.device_communicators.shm_broadcast:SpinCondition.wait": ["self.busy_loop_s"],
    "vllm.distributed.device_communicators.shm_broadcast:MessageQueue": ["self._spin_condition"],
    "vllm.v1.executor.multiproc_executor:MultiprocExecutor._init_executor": ["self.response_mqs"],
    # Read inside functions that offer no signature for it.
    "vllm.v1.engine.core:EngineCore.step_with_batch_queue": [
        "pending_structured_output_tokens",
        "get_grammar_bitmask",
        "non_block=True",
    ],
    "vllm.v1.core.sched.scheduler:Scheduler.__init__": ["self.encoder_cache_manager ="],
    "vllm.v1.core.sched.scheduler:Scheduler.schedule": ["_request_blocks_can_be_freed"],
    "vllm.v1.core.encoder_cache_manager:EncoderCacheManager": [
        "self.cached:",
        "get_num_encoder_embeds",
        "self.freeable",
        "self.num_freeable_slots",
    ],
    "vllm.v1.worker.gpu_model_runner:GPUModelRunner": [
        "execute_model_state",
        "sample_hidden_states",
        "self.broadcast_pp_output",
        "self.model.compute_logits(sample_hidden_states)",
        "discard_request_mask",
        "self.input_batch.generators",
    ],
    "vllm.v1.worker.gpu_input_batch:InputBatch": ["self.logitsprocs", "self.generators"],
    "vllm.v1.request:Request.__init__": ["self.mm_features", "self.request_id"],
    "vllm.config:VllmConfig": ["def max_concurrent_batches", "def use_v2_model_runner"],
}
"""``module:object`` to words that its source must hold."""


def find(place: str) -> Any:
    module, _, path = place.partition(":")
    found: Any = importlib.import_module(module)
    for name in path.split("."):
        found = getattr(found, name)
    return found


@pytest.mark.parametrize("place", CALLS)
def test_signature(place: str) -> None:
    names = [name for name in inspect.signature(find(place)).parameters if name != "cls"]
    assert names[: len(CALLS[place])] == CALLS[place]


@pytest.mark.parametrize("place", FIELDS)
def test_fields(place: str) -> None:
    owner = find(place)
    known = {name for base in owner.__mro__ for name in getattr(base, "__annotations__", {})}
    known |= set(getattr(owner, "__struct_fields__", ()))
    assert set(FIELDS[place]) - known == set()


@pytest.mark.parametrize("place", SOURCES)
def test_source(place: str) -> None:
    source = inspect.getsource(find(place))
    assert [word for word in SOURCES[place] if word not in source] == []


def test_this_vllm_is_supported() -> None:
    compat.check_version()


@pytest.mark.parametrize("version", ["0.30.0", "0.31.2", "0.32.0", "0.32.1.dev3+gabc"])
def test_supported(version: str) -> None:
    compat.check_version(version)


@pytest.mark.parametrize("version", ["0.29.1", "0.33.0", "1.0.0", "dev"])
def test_an_unsupported_version_is_one_sentence(version: str) -> None:
    with pytest.raises(
        RuntimeError, match=rf"works with vLLM 0.30, .* and not with {version}: "
    ) as e:
        compat.check_version(version)
    assert "\n" not in str(e.value)


def test_the_plugin_refuses_before_it_touches_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    import vllm

    import vllm_photon

    monkeypatch.setattr(vllm, "__version__", "0.33.0")
    monkeypatch.setattr(compat, "apply", lambda: pytest.fail("a patch was installed"))
    with pytest.raises(RuntimeError, match=r"not with 0\.33\.0"):
        vllm_photon.register()
