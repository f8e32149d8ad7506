"""Points, boxes and outlines drawn on a picture. Pillow is imported when something is drawn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vllm_photon.spatial.answers import Answer, parse
from vllm_photon.spatial.shapes import Point

if TYPE_CHECKING:
    from PIL import ImageDraw
    from PIL.Image import Image

RED = "#e6194b"


def draw(
    image: Image, answer: Answer | str | Mapping[str, Any], label: str = "", color: str = RED
) -> Image:
    """A copy of ``image`` as it is displayed, in RGB, with what ``answer`` shows.

    ``answer`` may be anything that :func:`vllm_photon.spatial.answers.parse` reads. Points and
    boxes are numbered when there are several, after ``label`` if one is given. ``color`` is any
    that Pillow knows. Drawn sizes follow the picture's.
    """
    from PIL import ImageDraw, ImageOps

    found = answer if isinstance(answer, Answer) else parse(answer)
    picture = ImageOps.exif_transpose(image).convert("RGB")
    pen = _Pen(ImageDraw.Draw(picture, "RGBA"), picture.size, color)
    for outline in found.outlines:
        pen.outline(outline)
    shapes = [*found.boxes, *found.points]
    for number, shape in enumerate(shapes, start=1):
        x, y = pen.point(shape) if isinstance(shape, Point) else pen.box(shape)
        words = [label, str(number)] if len(shapes) > 1 else [label]
        pen.text(x, y, " ".join(filter(None, words)))
    return picture


class _Pen:
    """Draws in one colour, in widths that suit the picture."""

    def __init__(self, canvas: ImageDraw.ImageDraw, size: tuple[int, int], color: str) -> None:
        from PIL import ImageColor, ImageFont

        self._canvas = canvas
        self._size = size
        self._line = max(1, round(min(size) / 150))
        self._color = ImageColor.getrgb(color)[:3]
        self._font = ImageFont.load_default(max(9, round(min(size) / 30)))

    def outline(self, outline: list[Point]) -> None:
        """A closed outline, filled lightly."""
        corners = [point.pixels(*self._size) for point in outline]
        self._canvas.polygon(corners, (*self._color, 80), self._color, self._line)

    def point(self, point: Point) -> tuple[float, float]:
        """A dot with a light rim; returns where its label may begin."""
        x, y = point.pixels(*self._size)
        radius = 3 * self._line
        self._canvas.circle((x, y), radius, self._color, "white", self._line)
        return x + radius, y - radius

    def box(self, box: Any) -> tuple[float, float]:
        """A frame; returns where its label may begin."""
        x_min, y_min, x_max, y_max = box.pixels(*self._size)
        self._canvas.rectangle((x_min, y_min, x_max, y_max), None, self._color, self._line)
        return x_min, y_min

    def text(self, x: float, y: float, text: str) -> None:
        """A label whose lower left corner is at (x, y), moved so that the picture holds it."""
        if not text:
            return
        left, top, right, bottom = self._canvas.textbbox((0, 0), text, self._font)
        margin = self._line
        width, height = right - left + 2 * margin, bottom - top + 2 * margin
        x = max(0, min(x, self._size[0] - width))
        y = max(0, min(y - height, self._size[1] - height))
        self._canvas.rectangle((x, y, x + width, y + height), self._color)
        self._canvas.text((x + margin - left, y + margin - top), text, "white", self._font)
