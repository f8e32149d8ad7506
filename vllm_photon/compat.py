"""Which vLLM this works with, and every patch of it: what, why, and what would remove it.

A patch is here only where vLLM offers no hook. Each is idempotent, since vLLM loads general
plugins once per process and may load them again in a child.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from vllm.config import VllmConfig


_MARK = "_vllm_photon"
SUPPORTED = ("0.30", "0.31", "0.32")
"""The releases whose hooks ``tests/test_contract.py`` pins and ``make compat`` runs."""


def check_version(version: str | None = None) -> None:
    """RuntimeError, one sentence, when this vLLM (or ``version``) is not supported."""
    from vllm import __version__ as installed

    from vllm_photon import __version__

    version = version or installed
    if _release(version) not in SUPPORTED:
        raise RuntimeError(
            f"vllm-photon {__version__} works with vLLM {', '.join(SUPPORTED)} and not with "
            f"{version}: install one of those, or leave the plugin out with VLLM_PLUGINS"
        )


def causal_dtype() -> torch.dtype:
    """What the CPU attention kernel takes the causality of a row as: bool before vLLM 0.32."""
    return torch.int32 if _release() == "0.32" else torch.bool


def chat_utils() -> ModuleType:
    """The module of ``parse_chat_messages``, which vLLM 0.32 moved."""
    moved = _release() == "0.32"
    return import_module("vllm.renderers.chat_utils" if moved else "vllm.entrypoints.chat_utils")


def send_whole_images(renderer: Any) -> None:
    """Have this renderer send each image whole, whatever its engine was sent before.

    vLLM's default cache sends an image once and its hash from then on. It takes a rendered image
    for sent; after a refusal, a client that left or a count of tokens it was not, and the next
    request with it would fail.
    """
    if _release() == "0.30":
        from vllm.multimodal.cache import MultiModalProcessorSenderCache

        if isinstance(renderer.mm_processor_cache, MultiModalProcessorSenderCache):
            renderer.mm_processor = renderer._readonly_mm_processor
        return
    from vllm.multimodal.cache import LruKeyReplicatedSenderCache

    if isinstance(renderer._mm_processor_cache, LruKeyReplicatedSenderCache):
        renderer._mm_processor_cache = renderer._mm_processor_only_cache


def _release(version: str | None = None) -> str:
    """The first two numbers of ``version``, or of the installed vLLM."""
    from vllm import __version__ as installed

    return ".".join((version or installed).split(".")[:2])


def apply() -> None:
    """Install every patch but :func:`chat_hook`; called from the general plugin."""
    config_hook()
    detokenizer_hook()
    admission_hook()
    endpoints_hook()
    adapterless_rows_hook()
    allowed_ids_hook()


def applied() -> bool:
    """Whether the plugin was loaded in this process."""
    from vllm.platforms import current_platform

    return hasattr(type(current_platform), _MARK)


def config_hook() -> None:
    """Run :func:`vllm_photon.config.enable` after the platform's last word on a configuration.

    What: wraps ``check_and_update_config`` of the current platform's class.
    Why: the CPU platform turns asynchronous scheduling off there, and every earlier hook is
    overruled; the engine core's process runs it again after its handshake.
    Removed by: a hook for out-of-tree workers that runs after the platform's.
    """
    from vllm.platforms import current_platform

    platform = type(current_platform)
    if hasattr(platform, _MARK):
        return
    stock = platform.check_and_update_config.__func__

    def check_and_update_config(cls: type, vllm_config: VllmConfig) -> None:
        from vllm_photon.config import enable, is_photon

        ours = is_photon(vllm_config)
        user_disabled = vllm_config.scheduler_config.async_scheduling is False
        stock(cls, vllm_config)
        if ours:
            enable(vllm_config, user_disabled=user_disabled)

    platform.check_and_update_config = classmethod(check_and_update_config)
    setattr(platform, _MARK, True)


def detokenizer_hook() -> None:
    """Give requests to Moondream a detokenizer that knows virtual ids.

    What: wraps ``IncrementalDetokenizer.from_new_request``.
    Why: vLLM chooses between two detokenizers of its own by the tokenizer's class; both show an id
    above the vocabulary as nothing, and neither can close the JSON of an answer cut short.
    Removed by: a registry of detokenizers, or a method of the tokenizer that makes one.
    """
    from vllm.v1.engine.detokenizer import IncrementalDetokenizer

    if hasattr(IncrementalDetokenizer, _MARK):
        return
    stock = IncrementalDetokenizer.from_new_request.__func__

    def from_new_request(cls: type, tokenizer: Any, request: Any) -> Any:
        skills = getattr(tokenizer, "spatial_skills", None)
        if skills is None:
            return stock(cls, tokenizer, request)
        from vllm_photon.entrypoints.detokenizer import detokenizer_for

        return detokenizer_for(skills, tokenizer, request)

    IncrementalDetokenizer.from_new_request = classmethod(from_new_request)
    setattr(IncrementalDetokenizer, _MARK, True)


def chat_hook() -> None:
    """Let the chat renderer see the skill that a request asks for.

    What: wraps ``build_chat_params`` of ``ChatCompletionRequest`` and ``ResponsesRequest``;
    installed by Moondream's renderer, so that requests to other models are never touched.
    Why: a renderer sees the messages and ``chat_template_kwargs`` only, but Moondream's prompt
    depends on the skill, which belongs to the sampling parameters.
    Removed by: a renderer that is given the request, or its ``vllm_xargs``.
    """
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.entrypoints.openai.responses.protocol import ResponsesRequest

    from vllm_photon.entrypoints.chat import with_skill, with_skill_of_response

    wrap_chat_params(ChatCompletionRequest, with_skill)
    wrap_chat_params(ResponsesRequest, with_skill_of_response)


def wrap_chat_params(request_class: type, adapt: Callable[[Any, Any], Any]) -> None:
    """Pass the chat parameters of this class of requests through ``adapt``."""
    if hasattr(request_class, _MARK):
        return
    stock = request_class.build_chat_params  # type: ignore[attr-defined]

    def build_chat_params(self: Any, *args: Any, **kwargs: Any) -> Any:
        return adapt(self, stock(self, *args, **kwargs))

    request_class.build_chat_params = build_chat_params  # type: ignore[attr-defined]
    setattr(request_class, _MARK, True)


def admission_hook() -> None:
    """Check each request against its model and prompt, before a response to it begins.

    What: wraps ``InputProcessor.process_inputs``, where prompt and sampling parameters meet, and
    ``AsyncLLM.generate``, which so checks when it is called and not when it is first awaited.
    Why: the processors' ``validate_params`` sees neither the model nor the prompt, and runs after
    a streaming response was opened with status 200.
    Removed by: a ``validate_params`` that is given both, called before the stream is opened.
    """
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.engine.input_processor import InputProcessor

    from vllm_photon.entrypoints.admission import admitted

    if hasattr(InputProcessor, _MARK):
        return
    stock_process, stock_generate = InputProcessor.process_inputs, AsyncLLM.generate

    def process_inputs(
        self: Any, request_id: str, prompt: Any, params: Any, *args: Any, **kwargs: Any
    ) -> Any:
        params = admitted(self.model_config, prompt, params)
        return stock_process(self, request_id, prompt, params, *args, **kwargs)

    def generate(self: Any, prompt: Any, sampling_params: Any, *args: Any, **kwargs: Any) -> Any:
        params = admitted(self.model_config, prompt, sampling_params)
        self.input_processor._validate_params(params, ("generate",))
        if isinstance(prompt, dict) and prompt.get("type") not in (None, "enc_dec"):
            self.input_processor._validate_model_input(prompt, prompt_type="decoder")
        return stock_generate(self, prompt, params, *args, **kwargs)

    InputProcessor.process_inputs = process_inputs
    AsyncLLM.generate = generate
    setattr(InputProcessor, _MARK, True)


def endpoints_hook() -> None:
    """Serve Moondream's endpoints whenever Moondream is served, without an environment variable.

    What: wraps ``vllm.plugins.load_endpoint_plugins``; when ``VLLM_PLUGINS`` is unset, which means
    that no choice was made, our own endpoint plugin is loaded and nobody else's.
    Why: vLLM loads endpoint plugins only if ``VLLM_PLUGINS`` names them, and then that variable
    also decides which general plugins of other packages are loaded. ``VLLM_PLUGINS=photon`` works
    as documented by vLLM, and any value without ``photon`` keeps all of this plugin out.
    Removed by: an option of ``vllm serve`` that allows one endpoint plugin by name.
    """
    from vllm import plugins

    if hasattr(plugins.load_endpoint_plugins, _MARK):
        return
    stock = plugins.load_endpoint_plugins

    def load_endpoint_plugins(supported_tasks: Any = None) -> list[Any]:
        from vllm import envs

        if envs.VLLM_PLUGINS is not None:
            return stock(supported_tasks)
        from vllm_photon.entrypoints.moondream_api import PhotonEndpoints

        return [PhotonEndpoints()] if "generate" in (supported_tasks or ()) else []

    setattr(load_endpoint_plugins, _MARK, True)
    plugins.load_endpoint_plugins = load_endpoint_plugins


def adapterless_rows_hook() -> None:
    """Keep a LoRA adapter off the rows of a batch that asked for none, on the CPU.

    What: wraps the torch form of ``bgmv_shrink``, where such rows then give zeros.
    Why: their adapter index is -1, which indexes the last adapter, so a request to the base model
    beside one with an adapter is answered wrongly; the kernels of other platforms skip them.
    Removed by: vLLM pull request 48421 or 49656.
    """
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    from vllm.lora.ops.torch_ops import lora_ops
    from vllm.lora.punica_wrapper import punica_cpu

    stock = lora_ops.bgmv_shrink
    if hasattr(stock, _MARK):
        return

    def bgmv_shrink(
        inputs: Any, weights: Any, output: Any, indices: Any, scaling: float = 1.0
    ) -> None:
        stock(inputs, weights, output, indices, scaling)
        output[indices < 0] = 0

    setattr(bgmv_shrink, _MARK, True)
    for module in (lora_ops, punica_cpu):
        module.bgmv_shrink = bgmv_shrink


def allowed_ids_hook() -> None:
    """Keep ``allowed_token_ids`` to the request that asked for them, on vLLM 0.30.

    What: wraps ``InputBatch.condense`` and ``InputBatch.swap_states``.
    Why: there the mask of a row that moves stays behind in its old place, where the next request
    inherits it, and two rows that change places both end with one mask.
    Removed by: dropping vLLM 0.30; later releases do both right.
    """
    if _release() != "0.30":
        return
    from vllm.v1.worker.gpu_input_batch import InputBatch

    if hasattr(InputBatch, _MARK):
        return
    stock_condense, stock_swap = InputBatch.condense, InputBatch.swap_states

    def condense(self: Any) -> None:
        stock_condense(self)
        mask = self.allowed_token_ids_mask_cpu_tensor
        if mask is not None:
            mask[self.num_reqs :] = False

    def swap_states(self: Any, i1: int, i2: int) -> None:
        mask = self.allowed_token_ids_mask_cpu_tensor
        moved = None if mask is None else mask[[i2, i1]]
        stock_swap(self, i1, i2)
        if mask is not None:
            mask[[i1, i2]] = moved

    InputBatch.condense = condense
    InputBatch.swap_states = swap_states
    setattr(InputBatch, _MARK, True)
