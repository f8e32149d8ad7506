"""Moondream's multimodal processor: one image, its crops, and its place in the prompt.

A prompt with an image starts with BOS and ``image_id``. Both are replaced by BOS and one
``image_id`` for each patch of a crop, all of it one placeholder: its embeddings, BOS's included,
come from the vision tower, and it is the bidirectional prefix.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image
from transformers import BatchFeature
from vllm.inputs import MultiModalDataDict
from vllm.multimodal.inputs import MultiModalFieldConfig, MultiModalKwargsItems
from vllm.multimodal.media import MediaWithBytes
from vllm.multimodal.parse import (
    ImageProcessorItems,
    ModalityDataItems,
    MultiModalDataItems,
    MultiModalDataParser,
)
from vllm.multimodal.processing import (
    BaseDummyInputsBuilder,
    BaseMultiModalProcessor,
    BaseProcessingInfo,
    ProcessorInputs,
    PromptReplacement,
    PromptUpdate,
)
from vllm.multimodal.processing.processor import (
    MultiModalPromptUpdates,
    PlaceholderFeaturesInfo,
)

from vllm_photon.models.hf_config import Moondream2Config, Vision
from vllm_photon.models.images import cut, displayed

if TYPE_CHECKING:
    from vllm.config.multimodal import MultiModalDummyOptions


class MoondreamDataParser(MultiModalDataParser):
    """Turns every image into what is displayed before anything is hashed or measured."""

    def _parse_image_data(self, data: Any) -> ModalityDataItems[Any, Any] | None:
        if data is None:
            return None
        if isinstance(data, torch.Tensor) or (
            isinstance(data, Sequence) and any(isinstance(item, torch.Tensor) for item in data)
        ):
            raise ValueError("image: tensors and image embeddings are not supported")
        single = isinstance(data, (Image.Image, MediaWithBytes, np.ndarray))
        items = [data] if single else list(data)
        return ImageProcessorItems([_displayed_item(item) for item in items])


class MoondreamProcessingInfo(BaseProcessingInfo):
    """Sizes and limits, all from the checkpoint's configuration."""

    @property
    def config(self) -> Moondream2Config:
        """The checkpoint's configuration."""
        return self.ctx.get_hf_config(Moondream2Config)

    @property
    def vision(self) -> Vision:
        """Settings of the vision tower."""
        return self.config.vision

    @property
    def placeholder(self) -> list[int]:
        """BOS and the image id, as a prompt with an image starts."""
        return [self.config.tokens.bos_id, self.config.spatial_vocab().image_id]

    def get_data_parser(self) -> MultiModalDataParser:
        """Our parser."""
        return MoondreamDataParser()

    def get_supported_mm_limits(self) -> Mapping[str, int | None]:
        """One image in a prompt."""
        return {"image": 1}

    def get_mm_max_tokens_per_item(
        self, seq_len: int, mm_counts: Mapping[str, int]
    ) -> Mapping[str, int]:
        """Prompt positions of an image; the same for every picture."""
        return {"image": self.vision.prefix_len}


class MoondreamDummyInputs(BaseDummyInputsBuilder[MoondreamProcessingInfo]):
    """The costliest image, for profiling."""

    def get_dummy_text(self, mm_counts: Mapping[str, int]) -> str:
        """Nothing: the processor builds the dummy prompt from ids."""
        return ""

    def get_dummy_mm_data(
        self,
        seq_len: int,
        mm_counts: Mapping[str, int],
        mm_options: MultiModalDummyOptions,
    ) -> MultiModalDataDict:
        """Images that are cut into as many crops as the configuration allows."""
        vision = self.info.vision
        rows = min(2, vision.max_crops)
        columns = vision.max_crops // rows
        margins = vision.crop_size - vision.window
        return {
            "image": self._get_dummy_images(
                width=columns * vision.window + margins,
                height=rows * vision.window + margins,
                num_images=mm_counts.get("image", 0),
            )
        }


class MoondreamProcessor(BaseMultiModalProcessor[MoondreamProcessingInfo]):
    """Works on token ids alone and needs no tokenizer."""

    requires_tokenizer = False

    def get_dummy_inputs(
        self,
        seq_len: int,
        mm_counts: Mapping[str, int],
        mm_options: MultiModalDummyOptions,
    ) -> ProcessorInputs:
        """The dummy image behind the start of a prompt with an image."""
        data = self.dummy_inputs.get_dummy_mm_data(seq_len, mm_counts, mm_options)
        return ProcessorInputs(
            prompt=self.info.placeholder,
            mm_data_items=self.info.parse_mm_data(data, validate=False),
        )

    def _apply_hf_processor_main(
        self, mm_items: MultiModalDataItems, **processor_kwargs: Mapping[str, object]
    ) -> BatchFeature:
        """Crops of the images; vLLM 0.31 renamed the one keyword argument."""
        (hf_kwargs,) = processor_kwargs.values()
        if hf_kwargs:
            raise ValueError(f"mm_processor_kwargs: Moondream takes none, got {sorted(hf_kwargs)}")
        if not mm_items.get("image"):
            return BatchFeature()
        images: Any = mm_items["image"].get_processor_data()["images"]
        cuts = [cut(image, self.info.vision) for image in images]
        return BatchFeature(
            {
                "crops": torch.from_numpy(np.concatenate([crops for crops, _ in cuts])),
                "tilings": torch.tensor([tiling for _, tiling in cuts]),
            }
        )

    def _get_mm_fields_config(
        self, hf_inputs: BatchFeature, hf_processor_mm_kwargs: Mapping[str, object]
    ) -> Mapping[str, MultiModalFieldConfig]:
        tilings = hf_inputs.get("tilings", torch.empty((0, 2), dtype=torch.long))
        return {
            "crops": MultiModalFieldConfig.flat_from_sizes("image", 1 + tilings.prod(dim=-1)),
            "tilings": MultiModalFieldConfig.batched("image", keep_on_cpu=True),
        }

    def _get_prompt_updates(
        self,
        mm_items: MultiModalDataItems,
        hf_processor_mm_kwargs: Mapping[str, object],
        out_mm_kwargs: MultiModalKwargsItems,
    ) -> Sequence[PromptUpdate]:
        bos_id, image_id = self.info.placeholder
        prefix = [bos_id] + [image_id] * (self.info.vision.prefix_len - 1)
        return [PromptReplacement("image", [bos_id, image_id], prefix)]

    def _apply_prompt_updates(
        self, token_ids: list[int], mm_prompt_updates: MultiModalPromptUpdates
    ) -> tuple[list[int], Mapping[str, list[PlaceholderFeaturesInfo]]]:
        has_image = any(mm_prompt_updates.values())
        if has_image and token_ids[:2] != self.info.placeholder:
            raise ValueError(
                "prompt: with an image it must start with BOS and the image id, "
                f"{self.info.placeholder}, got {token_ids[:2]}"
            )
        return super()._apply_prompt_updates(token_ids, mm_prompt_updates)


def _displayed_item(item: Any) -> Any:
    """``item`` with its picture as displayed; None (an image known by its hash) stays."""
    if item is None:
        return None
    if isinstance(item, MediaWithBytes):
        return MediaWithBytes(displayed(item.media), item.original_bytes, item.io_config)
    return displayed(item)
