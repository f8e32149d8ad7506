"""What serving sets by itself, and images on their way from bytes to the processor."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from vllm.multimodal.media.image import ImageMediaIO

from vllm_photon import models
from vllm_photon.models.config import PUBLISHED_TOKENIZER, MoondreamServingConfig
from vllm_photon.models.processing import MoondreamDataParser

MD2 = Path(__file__).parents[1] / "data" / "oracle" / "md2"


def model_config(folder: Path = MD2, **settings: Any) -> Any:
    from vllm.config import ModelConfig

    models.register()
    return ModelConfig(model=str(folder), dtype="float32", skip_tokenizer_init=True, **settings)


def png(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def test_serving_needs_no_flag() -> None:
    config = model_config()
    assert config.architecture == "Moondream2ForCausalLM"
    assert config.tokenizer_mode == "photon"
    assert config.max_model_len == 2048
    assert config.is_mm_prefix_lm
    assert config.multimodal_config.media_io_kwargs == {"image": {"image_mode": None}}


def test_what_the_user_says_stays() -> None:
    config = model_config(tokenizer_mode="slow", media_io_kwargs={"image": {"image_mode": "RGB"}})
    assert config.tokenizer_mode == "slow"
    assert config.multimodal_config.media_io_kwargs == {"image": {"image_mode": "RGB"}}


def test_a_checkpoint_without_tokenizer_takes_the_published_one(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((MD2 / "config.json").read_text())
    assert model_config(tmp_path).tokenizer == PUBLISHED_TOKENIZER
    assert model_config(MD2).tokenizer == str(MD2)


def test_speculative_decoding_is_refused() -> None:
    config = SimpleNamespace(speculative_config=object())
    with pytest.raises(ValueError, match="speculative_config: Moondream does not support"):
        MoondreamServingConfig.verify_and_update_config(config)


def parsed(data: Any) -> Any:
    return MoondreamDataParser().parse_mm_data({"image": data})["image"]


def test_sixteen_bits_reach_us_over_http() -> None:
    ramp = Image.fromarray(np.arange(0, 65536, 256, dtype=np.uint16)[None])
    media = ImageMediaIO(image_mode=None).load_bytes(png(ramp))
    item = parsed(media).get(0)
    assert item.mode == "RGB"
    assert np.asarray(item)[0, :, 0].tolist() == list(range(256))


def test_bytes_stay_the_identity_of_an_image() -> None:
    """So that an image asked twice is recognised without looking at its pixels."""
    data = png(Image.new("RGBA", (5, 5), (1, 2, 3, 0)))
    items = parsed(ImageMediaIO(image_mode=None).load_bytes(data))
    assert items.get_item_for_hash(0).original_bytes == data
    assert items.get(0).getpixel((0, 0)) == (255, 255, 255)


def test_an_image_known_by_its_id_has_no_data() -> None:
    assert parsed([None]).get(0) is None


@pytest.mark.parametrize("data", [torch.zeros(3, 4, 4), [torch.zeros(7, 128)]])
def test_tensors_are_refused(data: Any) -> None:
    with pytest.raises(ValueError, match="image: tensors and image embeddings"):
        parsed(data)
