"""Pictures to crops: what a viewer would see, in 8-bit RGB, cut as the published code cuts it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from PIL import Image
from vllm.multimodal.image import convert_image_mode, normalize_image

from vllm_photon.models.hf_config import Vision


def displayed(image: Any) -> Image.Image:
    """The picture as it is displayed: upright, on white, 8-bit RGB.

    Takes a PIL image of any mode, or an array of uint8 or uint16 that is [height, width],
    [height, width, 1 or 3 or 4]. Raises ValueError for anything else.
    """
    if not isinstance(image, Image.Image):
        image = _from_array(np.asarray(image))
    image = normalize_image(image)
    if image.mode.startswith("I") or image.mode == "F":
        image = _narrowed(image)
    return convert_image_mode(image, "RGB")


def tiling(width: int, height: int, vision: Vision) -> tuple[int, int]:
    """Rows and columns of local crops for a picture of this size in pixels.

    As in the published code, except that a very long picture stays within ``max_crops``, which
    that code exceeds when its shorter side needs two crops.
    """
    margins = 2 * vision.overlap_margin * vision.enc_patch_size
    window, most = vision.window, vision.max_crops
    inner_width, inner_height = width - margins, height - margins
    if inner_width <= window or inner_height <= window:
        return 1, 1
    least_rows, least_columns = math.ceil(inner_height / window), math.ceil(inner_width / window)
    if least_rows * least_columns > most:
        share = math.sqrt(most / (least_rows * least_columns))
        rows, columns = math.floor(least_rows * share), math.floor(least_columns * share)
    else:
        rows = max(math.floor(math.sqrt(most * inner_height / inner_width)), least_rows)
        columns = max(math.floor(math.sqrt(most * inner_width / inner_height)), least_columns)
    rows, columns = max(rows, 1), max(columns, 1)
    if rows * columns > most:
        if columns > rows:
            columns = most // rows
        else:
            rows = most // columns
    return max(rows, 1), max(columns, 1)


def cut(image: Image.Image, vision: Vision) -> tuple[np.ndarray, tuple[int, int]]:
    """Crops of an RGB picture and their tiling.

    The crops are [1 + rows * columns, crop_size, crop_size, 3] uint8: first the whole picture,
    then the local ones row by row, each overlapping its neighbours by twice the margin.
    """
    rows, columns = tiling(image.width, image.height, vision)
    size, window = vision.crop_size, vision.window
    margins = size - window
    whole = image.resize((size, size), Image.Resampling.LANCZOS)
    large = np.asarray(
        image.resize(
            (columns * window + margins, rows * window + margins), Image.Resampling.LANCZOS
        )
    )
    local = [
        large[row * window : row * window + size, column * window : column * window + size]
        for row in range(rows)
        for column in range(columns)
    ]
    return np.stack([np.asarray(whole), *local]), (rows, columns)


def _from_array(array: np.ndarray) -> Image.Image:
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    if array.dtype == np.uint16 and array.ndim == 3:
        array = (array >> 8).astype(np.uint8)
    known = array.ndim == 2 or (array.ndim == 3 and array.shape[2] in (3, 4))
    if not known or array.dtype not in (np.uint8, np.uint16) or array.size == 0:
        raise ValueError(
            f"image: an array must be uint8 or uint16, [height, width] or [height, width, 1, 3 "
            f"or 4], got {array.dtype} {list(array.shape)}"
        )
    return Image.fromarray(array)


def _narrowed(image: Image.Image) -> Image.Image:
    """Greyscale of more than 8 bits to 8; Pillow's own conversion would clip at 255.

    16-bit modes keep their upper byte. Modes of 32 bits say nothing of their range: values up to
    255 are taken as they are, larger ones as 16-bit.
    """
    values = np.asarray(image).astype(np.float64)
    if image.mode.startswith("I;16") or values.max(initial=0.0) > 255:
        values = values / 256
    return Image.fromarray(np.clip(values, 0, 255).astype(np.uint8))
