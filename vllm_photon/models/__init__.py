"""Moondream's models for vLLM, with their region heads."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm.config import ModelConfig

SPATIAL_MODEL_TYPES = frozenset({"moondream1", "moondream3"})


def is_spatial(model_config: ModelConfig) -> bool:
    """Whether a model is one of ours, with spatial skills."""
    return model_config.hf_config.model_type in SPATIAL_MODEL_TYPES


def register() -> None:
    """Register with vLLM; called from the general plugin."""
