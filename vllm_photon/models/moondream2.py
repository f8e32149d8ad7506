"""Moondream 2."""

from __future__ import annotations

from vllm.multimodal import MULTIMODAL_REGISTRY

from vllm_photon.models.moondream import MoondreamForCausalLM
from vllm_photon.models.processing import (
    MoondreamDummyInputs,
    MoondreamProcessingInfo,
    MoondreamProcessor,
)


@MULTIMODAL_REGISTRY.register_processor(
    MoondreamProcessor, info=MoondreamProcessingInfo, dummy_inputs=MoondreamDummyInputs
)
class Moondream2ForCausalLM(MoondreamForCausalLM):
    """Dense blocks, two-layer region decoders: the shared model as it is."""
