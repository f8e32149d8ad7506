"""Moondream 2 and 3 for vLLM: what is registered, and how to tell them from other models."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm.config import ModelConfig

SPATIAL_MODEL_TYPES = frozenset({"moondream1", "moondream3"})


def is_spatial(model_config: ModelConfig) -> bool:
    """Whether a model is one of ours, with spatial skills."""
    return model_config.hf_config.model_type in SPATIAL_MODEL_TYPES


def register() -> None:
    """Register configuration classes, architectures and their configuration hook; idempotent."""
    from vllm import ModelRegistry
    from vllm.model_executor.models.config import MODELS_CONFIG_MAP
    from vllm.transformers_utils import config as vllm_hf_config

    from vllm_photon.models import hf_config
    from vllm_photon.models.config import MoondreamServingConfig

    for config_class in (hf_config.Moondream2Config, hf_config.Moondream3Config):
        # Entries here win over remote code of the checkpoint, whatever --trust-remote-code says.
        vllm_hf_config._CONFIG_REGISTRY[config_class.model_type] = config_class
    for architecture, path in (
        (hf_config.MOONDREAM2, "vllm_photon.models.moondream2:Moondream2ForCausalLM"),
        (hf_config.MOONDREAM3, "vllm_photon.models.moondream3:Moondream3ForCausalLM"),
    ):
        ModelRegistry.register_model(architecture, path)
        MODELS_CONFIG_MAP[architecture] = MoondreamServingConfig
