"""What Moondream 2 and 3 have in common as vLLM models: vision, text, region heads, weights."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

import torch
from torch import nn
from torch.nn import functional as F
from vllm.config import VllmConfig
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.vocab_parallel_embedding import (
    ParallelLMHead,
    UnquantizedEmbeddingMethod,
)
from vllm.model_executor.models.interfaces import (
    MultiModalEmbeddings,
    SupportsLoRA,
    SupportsMultiModal,
    SupportsPP,
)
from vllm.model_executor.models.module_mapping import MultiModelKeys
from vllm.model_executor.models.utils import AutoWeightsLoader, WeightsMapper, maybe_prefix
from vllm.sequence import IntermediateTensors

from vllm_photon.models.hf_config import Moondream2Config
from vllm_photon.models.linear import KernelLinear
from vllm_photon.models.region import RegionHeads
from vllm_photon.models.text import TextModel
from vllm_photon.models.vision import VisionTower
from vllm_photon.spatial.tokens import SpatialVocab


class MoondreamForCausalLM(nn.Module, SupportsMultiModal, SupportsLoRA, SupportsPP):
    """The published model; a SupportsSpatial. Subclasses say what differs by generation."""

    text_class: ClassVar[type[TextModel]] = TextModel
    single_layer_region: ClassVar[bool] = False
    # One projection in the checkpoint and in adapters: packed of nothing but itself.
    packed_modules_mapping = {"qkv": ["qkv"]}
    hf_to_vllm_mapper = WeightsMapper(
        orig_to_new_prefix={
            "model.text.wte": "text.wte.weight",
            "model.text.lm_head.": "lm_head.",
            "model.": "",
        }
    )

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        config: Moondream2Config = vllm_config.model_config.hf_config
        quant_config = vllm_config.quant_config
        self.config = config
        self.spatial_vocab: SpatialVocab = config.spatial_vocab()
        self.region = RegionHeads(
            config.region, self.spatial_vocab, single_layer=self.single_layer_region
        )
        with self._mark_tower_model(vllm_config, "image"):
            self.vision = VisionTower(config.vision, quant_config, maybe_prefix(prefix, "vision"))
        with self._mark_language_model(vllm_config):
            self.text = self.text_class(
                config.text_config, self.region, vllm_config, maybe_prefix(prefix, "text")
            )
        self.lm_head = ParallelLMHead(
            config.text_config.vocab_size,
            config.text_config.hidden_size,
            bias=True,
            quant_config=quant_config,
            prefix=maybe_prefix(prefix, "lm_head"),
        )
        self.logits_processor = LogitsProcessor(config.text_config.vocab_size)
        self.skip_logits = False
        # The ids that `score` was last asked for, and their rows of lm_head.
        self._scored: tuple[tuple[int, ...], KernelLinear] | None = None
        self.make_empty_intermediate_tensors = self.text.make_empty_intermediate_tensors

    @classmethod
    def get_placeholder_str(cls, modality: str, i: int) -> str | None:
        """None: images are placed by id, not by text."""
        return None

    def get_mm_mapping(self) -> MultiModelKeys:
        """Which part is which; adapters apply to the text model."""
        return MultiModelKeys.from_string_field(language_model="text", tower_model="vision")

    def embed_multimodal(self, **kwargs: object) -> MultiModalEmbeddings:
        """For each image [1 + grid * grid, dim]: BOS and the image, as the prefix wants them.

        ``crops`` and ``tilings`` as the processor made them.
        """
        crops, tilings = kwargs["crops"], kwargs["tilings"]
        assert isinstance(crops, torch.Tensor)
        assert isinstance(tilings, torch.Tensor)
        images = self.vision(crops, [(rows, columns) for rows, columns in tilings.tolist()])
        bos = self.text.wte(torch.full((1,), self.config.tokens.bos_id, device=crops.device))
        return [torch.cat((bos, image)) for image in images]

    def forward(
        self,
        input_ids: torch.Tensor | None,
        positions: torch.Tensor,
        intermediate_tensors: IntermediateTensors | None = None,
        inputs_embeds: torch.Tensor | None = None,
        **kwargs: object,
    ) -> torch.Tensor | IntermediateTensors:
        """Hidden states [n, dim] before the last norm, as the region heads read them."""
        return self.text(input_ids, positions, intermediate_tensors, inputs_embeds)

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor | None:
        """[n, dim] hidden states to [n, vocab] logits; the last norm is applied here.

        None while ``skip_logits`` is set.
        """
        if self.skip_logits:
            return None
        return self.logits_processor(
            self.lm_head, self.text.post_ln(hidden_states), self.lm_head.bias
        )

    @property
    def can_score(self) -> bool:
        """See SupportsSpatial: no adapters, nothing quantized, one rank, one dtype."""
        head, logits = self.lm_head, self.logits_processor
        return (
            type(logits) is LogitsProcessor
            and isinstance(head.quant_method, UnquantizedEmbeddingMethod)
            and head.tp_size == 1
            and logits.head_dtype in (None, head.weight.dtype)
        )

    def score(self, hidden_states: torch.Tensor, ids: tuple[int, ...]) -> torch.Tensor:
        """See SupportsSpatial."""
        hidden_states = self.text.post_ln(hidden_states)
        if not hidden_states.is_cpu:
            # Not kept: new weights may be written into the parameters without a call of ours.
            index = torch.tensor(ids, device=hidden_states.device)
            return F.linear(hidden_states, self.lm_head.weight[index], self.lm_head.bias[index])
        # On a CPU the head too is packed once it is loaded.
        if self._scored is None or self._scored[0] != ids:
            self._scored = ids, self._rows_of_head(ids)
        return self._scored[1](hidden_states)

    @torch.no_grad()
    def _rows_of_head(self, ids: tuple[int, ...]) -> KernelLinear:
        weight, bias = self.lm_head.weight, self.lm_head.bias
        index = torch.tensor(ids)
        with torch.random.fork_rng(devices=[]):  # Unseeded requests draw from this generator.
            rows = KernelLinear(weight.shape[1], len(ids)).to(weight.dtype)
        rows.weight.copy_(weight[index])
        rows.bias.copy_(bias[index])
        rows.quant_method.process_weights_after_loading(rows)
        return rows

    def decode_spatial(
        self, hidden_states: torch.Tensor, sampled_token_ids: torch.Tensor, *, sizes: bool = True
    ) -> torch.Tensor:
        """See SupportsSpatial."""
        return self.region.decode(hidden_states, sampled_token_ids, sizes=sizes)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Load published names; a name that has no place here is an error."""
        self._scored = None
        # The published code saves its key and value caches too when it has answered before.
        loader = AutoWeightsLoader(self, ignore_unexpected_suffixes=[".k_cache", ".v_cache"])
        return loader.load_weights(weights, mapper=self.hf_to_vllm_mapper)
