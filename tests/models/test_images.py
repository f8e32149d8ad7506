"""Pictures as users have them, and how they are cut."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from PIL import Image

from vllm_photon.models.hf_config import Vision
from vllm_photon.models.images import cut, displayed, tiling
from vllm_photon.models.vision import patches, stitch

PUBLISHED = Vision()
SMALL = Vision(crop_size=112, overlap_margin=1, max_crops=6)


def reopened(image: Image.Image, suffix: str, **options: object) -> Image.Image:
    """The image as it comes back from a file."""
    file = io.BytesIO()
    image.save(file, suffix, **options)
    return Image.open(io.BytesIO(file.getvalue()))


def halves(width: int, height: int) -> Image.Image:
    """Red above, blue below."""
    image = Image.new("RGB", (width, height), (0, 0, 255))
    image.paste((255, 0, 0), (0, 0, width, height // 2))
    return image


def test_exif_rotation() -> None:
    exif = Image.Exif()
    exif[Image.ExifTags.Base.Orientation] = 6  # The displayed top is the stored left side.
    stored = halves(64, 32).rotate(90, expand=True)
    shown = displayed(reopened(stored, "PNG", exif=exif))
    assert shown.size == (64, 32)
    assert np.array_equal(np.asarray(shown), np.asarray(halves(64, 32)))


def test_transparency_is_on_white() -> None:
    image = Image.new("RGBA", (2, 1), (0, 0, 0, 0))
    image.putpixel((1, 0), (10, 20, 30, 255))
    assert np.asarray(displayed(image)).tolist() == [[[255, 255, 255], [10, 20, 30]]]
    grey = Image.new("LA", (1, 1), (0, 0))
    assert displayed(grey).getpixel((0, 0)) == (255, 255, 255)


def test_palette_with_and_without_transparency() -> None:
    image = halves(4, 4).convert("P")
    assert displayed(reopened(image, "PNG")).getpixel((0, 0)) == (255, 0, 0)
    index = image.getpixel((0, 0))
    shown = displayed(reopened(image, "PNG", transparency=index))
    assert shown.getpixel((0, 0)) == (255, 255, 255)
    assert shown.getpixel((0, 3)) == (0, 0, 255)


@pytest.mark.parametrize("mode", ["1", "L", "CMYK", "YCbCr", "HSV"])
def test_other_modes_become_rgb(mode: str) -> None:
    assert displayed(halves(4, 4).convert(mode)).mode == "RGB"


def test_sixteen_bit_grey_keeps_its_range() -> None:
    levels = np.array([[0, 255, 256, 32768, 65535]], dtype=np.uint16)
    expected = [0, 0, 1, 128, 255]
    for image in (Image.fromarray(levels), reopened(Image.fromarray(levels), "PNG"), levels):
        assert np.asarray(displayed(image))[0, :, 0].tolist() == expected


def test_32_bit_grey() -> None:
    eight = Image.fromarray(np.array([[0, 7, 255]], dtype=np.int32))
    assert np.asarray(displayed(eight))[0, :, 0].tolist() == [0, 7, 255]
    real = Image.fromarray(np.array([[-1.0, 7.0, 255.0]], dtype=np.float32))
    assert np.asarray(displayed(real))[0, :, 0].tolist() == [0, 7, 255]


@pytest.mark.parametrize(
    "array",
    [np.zeros((4, 4), np.float32), np.zeros((4, 4, 2), np.uint8), np.zeros((0, 4, 3), np.uint8)],
)
def test_arrays_that_are_no_picture(array: np.ndarray) -> None:
    with pytest.raises(ValueError, match="image: an array must be"):
        displayed(array)


def test_arrays() -> None:
    array = np.asarray(halves(4, 4))
    assert np.array_equal(np.asarray(displayed(array)), array)
    assert displayed(array[:, :, :1]).mode == "RGB"


@pytest.mark.parametrize(
    ("width", "height", "expected"),
    [
        (378, 378, (1, 1)),
        (400, 300, (1, 1)),
        (1200, 900, (2, 4)),
        (800, 800, (3, 3)),
        (4000, 3000, (2, 4)),
        (2000, 500, (1, 6)),
        (1, 1, (1, 1)),
        (8000, 20, (1, 1)),
    ],
)
def test_tiling_as_published(width: int, height: int, expected: tuple[int, int]) -> None:
    assert tiling(width, height, PUBLISHED) == expected


@pytest.mark.parametrize("vision", [PUBLISHED, SMALL, Vision(max_crops=1)])
def test_never_more_crops_than_allowed(vision: Vision) -> None:
    sides = (1, 113, 400, 401, 700, 2000, 8000, 60000)
    for width in sides:
        for height in sides:
            rows, columns = tiling(width, height, vision)
            assert rows >= 1
            assert columns >= 1
            assert rows * columns <= vision.max_crops


@pytest.mark.parametrize("size", [(1, 1), (8000, 400), (3, 5000), (700, 650)])
@pytest.mark.parametrize("vision", [PUBLISHED, SMALL])
def test_cut_sizes(size: tuple[int, int], vision: Vision) -> None:
    crops, (rows, columns) = cut(halves(*size), vision)
    assert crops.shape == (1 + rows * columns, vision.crop_size, vision.crop_size, 3)
    assert crops.dtype == np.uint8


def test_neighbours_overlap_by_twice_the_margin() -> None:
    rng = np.random.default_rng(0)
    image = Image.fromarray(rng.integers(0, 255, (900, 1200, 3), dtype=np.uint8))
    crops, (rows, columns) = cut(image, PUBLISHED)
    shared = PUBLISHED.crop_size - PUBLISHED.window
    grid = crops[1:].reshape(rows, columns, *crops.shape[1:])
    assert np.array_equal(grid[0, 0][:, -shared:], grid[0, 1][:, :shared])
    assert np.array_equal(grid[0, 0][-shared:], grid[1, 0][:shared])


@pytest.mark.parametrize("tiles", [(1, 1), (2, 3), (3, 1)])
def test_stitch_restores_the_whole(tiles: tuple[int, int]) -> None:
    rows, columns = tiles
    grid, margin = 8, 2
    window = grid - 2 * margin
    whole = torch.randn(rows * window + 2 * margin, columns * window + 2 * margin, 5)
    cuts = torch.stack(
        [
            whole[row * window :, column * window :][:grid, :grid]
            for row in range(rows)
            for column in range(columns)
        ]
    )
    assert torch.equal(stitch(cuts, tiles, margin), whole)


def test_patches_are_channel_first_and_row_by_row() -> None:
    pixels = torch.arange(2 * 4 * 6 * 3).view(2, 4, 6, 3)
    got = patches(pixels, 2)
    assert got.shape == (2, 6, 12)
    assert torch.equal(got[1, 4], pixels[1, 2:4, 2:4].permute(2, 0, 1).flatten())
