"""What serving a Moondream sets in vLLM's configuration, so that no flag is needed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from huggingface_hub.errors import OfflineModeIsEnabled
from vllm.model_executor.models.config import VerifyAndUpdateConfig
from vllm.transformers_utils.repo_utils import file_or_path_exists

from vllm_photon.config import WORKER_CLS, PhotonConfig
from vllm_photon.entrypoints import REASONING_PARSER

if TYPE_CHECKING:
    from vllm.config import ModelConfig, VllmConfig

PUBLISHED_TOKENIZER = "moondream/starmie-v1"


class MoondreamServingConfig(VerifyAndUpdateConfig):
    """Hook of ``MODELS_CONFIG_MAP`` for both generations."""

    @staticmethod
    def verify_and_update_model_config(model_config: ModelConfig) -> None:
        """Tokenizer with virtual ids; images reach us in their own mode, not clipped to RGB.

        A checkpoint without a tokenizer takes the published one, as the published code does.
        """
        if model_config.tokenizer == model_config.model and not _has_tokenizer(model_config):
            model_config.tokenizer = PUBLISHED_TOKENIZER
        if model_config.tokenizer_mode in ("auto", "hf"):
            model_config.tokenizer_mode = "photon"
        multimodal = model_config.multimodal_config
        if multimodal is not None:
            multimodal.media_io_kwargs.setdefault("image", {}).setdefault("image_mode", None)

    @staticmethod
    def verify_and_update_config(vllm_config: VllmConfig) -> None:
        """Our worker and reasoning parser; the chosen rules; one step for an image; no speculation.

        Speculative decoding drops every id above the vocabulary, and a request would wait for
        tokens that never come.
        """
        if vllm_config.speculative_config is not None:
            raise ValueError(
                "speculative_config: Moondream does not support speculative decoding, "
                "which drops coordinate ids"
            )
        if vllm_config.scheduler_config.long_prefill_token_threshold:
            raise ValueError(
                "long_prefill_token_threshold: Moondream computes an image in one step, "
                "which a smaller threshold would never allow; leave it at 0"
            )
        vllm_config.model_config.hf_config.rules = PhotonConfig.of(vllm_config).rules
        if vllm_config.parallel_config.worker_cls == "auto":
            vllm_config.parallel_config.worker_cls = WORKER_CLS
        vllm_config.scheduler_config.disable_chunked_mm_input = True
        # The server reads its parser's name from this same object.
        structured = vllm_config.structured_outputs_config
        structured.reasoning_parser = structured.reasoning_parser or REASONING_PARSER


def _has_tokenizer(model_config: ModelConfig) -> bool:
    try:
        return file_or_path_exists(model_config.model, "tokenizer.json", model_config.revision)
    except OfflineModeIsEnabled:  # Not in the cache, and nobody may ask the hub.
        return False
