"""Images through the whole model: formats that mean the same picture, caching, bad prompts."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from vllm.exceptions import VLLMValidationError

from tests.oracle.teacher import DATA, Teacher

MD2 = DATA / "md2"
CAPTION = [1, 300, 2, 301, 3]


@pytest.fixture
def teacher(moondream2: Teacher) -> Teacher:
    return moondream2


@pytest.fixture
def picture() -> Image.Image:
    return Image.open(MD2 / "image0.png").convert("RGB")


def exif_rotated(image: Image.Image) -> Image.Image:
    exif = Image.Exif()
    exif[Image.ExifTags.Base.Orientation] = 6
    file = io.BytesIO()
    image.rotate(90, expand=True).save(file, "PNG", exif=exif)
    return Image.open(io.BytesIO(file.getvalue()))


def test_same_picture_in_other_clothes(teacher: Teacher, picture: Image.Image) -> None:
    expected = teacher.follow(CAPTION, picture)
    opaque = picture.copy()
    opaque.putalpha(255)
    for same in (opaque, exif_rotated(picture), np.asarray(picture)):
        assert torch.equal(teacher.follow(CAPTION, same), expected)


def test_rotation_is_part_of_what_is_cached(teacher: Teacher, picture: Image.Image) -> None:
    """Equal pixels, other EXIF: another picture."""
    upright = exif_rotated(picture)
    sideways = Image.fromarray(np.asarray(upright))
    assert not torch.equal(teacher.follow(CAPTION, upright), teacher.follow(CAPTION, sideways))


@pytest.mark.parametrize("mode", ["L", "P", "1", "LA", "CMYK", "I;16"])
@pytest.mark.parametrize("size", [(1, 1), (8000, 40), (30, 2000)])
def test_any_mode_and_shape(teacher: Teacher, mode: str, size: tuple[int, int]) -> None:
    grey = Image.new("L", size, 90)
    image = Image.fromarray(np.asarray(grey).astype(np.uint16) * 257)
    if mode != "I;16":
        image = grey.convert("RGB").convert(mode) if mode == "CMYK" else grey.convert(mode)
    assert teacher.follow(CAPTION, image).isfinite().all()


def test_sixteen_bit_is_not_clipped(teacher: Teacher) -> None:
    ramp = np.linspace(0, 255, 400, dtype=np.uint8)[None].repeat(300, axis=0)
    eight = teacher.follow(CAPTION, Image.fromarray(ramp))
    sixteen = teacher.follow(CAPTION, Image.fromarray(ramp.astype(np.uint16) * 256))
    assert torch.equal(eight, sixteen)


def test_an_image_asked_twice_is_encoded_once(teacher: Teacher) -> None:
    image = Image.effect_mandelbrot((500, 400), (-2, -1, 1, 1), 50)
    before = teacher.encoded
    first = teacher.follow(CAPTION, image)
    assert teacher.encoded == before + 1
    second = teacher.follow([1, 307, 2, 408, 3], image)
    assert teacher.encoded == before + 1
    assert len(first) == len(second)


def test_images_of_a_step_share_one_batch(teacher: Teacher) -> None:
    from vllm import SamplingParams

    calls = []
    hook = teacher.model.vision.register_forward_pre_hook(
        lambda module, args: calls.append((len(args[0]), args[1]))
    )
    images = [Image.new("RGB", size, colour) for size, colour in IMAGES]
    try:
        teacher.llm.generate(
            [prompt(teacher, image) for image in images],
            SamplingParams(temperature=0, max_tokens=1, detokenize=False),
            use_tqdm=False,
        )
    finally:
        hook.remove()
    assert calls == [(2 + 9 + 2, [(1, 1), (2, 4), (1, 1)])]


IMAGES = [((300, 200), "red"), ((1200, 900), "green"), ((90, 500), "blue")]


def prompt(teacher: Teacher, image: Image.Image, **extra: Any) -> dict[str, Any]:
    ids = [0, teacher.vocab.image_id, *CAPTION]
    return {"prompt_token_ids": ids, "multi_modal_data": {"image": image}, **extra}


def test_batch_and_alone_agree(teacher: Teacher) -> None:
    """Crops of several pictures in one batch don't leak into each other."""
    small = Image.new("RGB", (300, 200), "red")
    large = Image.effect_mandelbrot((1200, 900), (-2, -1, 1, 1), 50).convert("RGB")
    crops, tilings = [], []
    from vllm_photon.models.images import cut

    for image in (small, large):
        cuts, tiling = cut(image, teacher.model.config.vision)
        crops.append(torch.from_numpy(cuts))
        tilings.append(tiling)
    with torch.inference_mode():
        together = teacher.model.vision(torch.cat(crops), tilings)
        for i in range(2):
            (alone,) = teacher.model.vision(crops[i], [tilings[i]])
            assert torch.allclose(alone, together[i], atol=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prompt_token_ids": [0, *CAPTION]}, "must start with BOS and the image id"),
        ({"multi_modal_data": {"image": torch.zeros(3, 8, 8)}}, "tensors"),
        ({"multi_modal_data": {"image": np.zeros((4, 4, 7), np.uint8)}}, "array must be"),
        ({"mm_processor_kwargs": {"crop_size": 7}}, "mm_processor_kwargs"),
    ],
)
def test_bad_prompts(
    teacher: Teacher, picture: Image.Image, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        teacher.llm.generate(prompt(teacher, picture, **change), use_tqdm=False)
    assert teacher.follow(CAPTION, picture).isfinite().all()


def test_two_images(teacher: Teacher, picture: Image.Image) -> None:
    with pytest.raises(VLLMValidationError, match="At most 1 image"):
        teacher.llm.generate(
            prompt(teacher, picture, multi_modal_data={"image": [picture, picture]}),
            use_tqdm=False,
        )
