"""Synthetic pictures of coloured shapes, and what is true about them.

One source for training the tiny model, for the demo and for the accuracy benchmark: a `Scene` is
drawn from a seeded `random.Random`, painted with Pillow at any size, and asked for the shapes that
match a colour, a kind, or both. Coordinates are fractions of the picture, boxes are
(x_min, y_min, x_max, y_max), and a shape that is partly covered keeps its whole box.
"""

import random
from dataclasses import dataclass

from PIL import Image, ImageDraw

COLOURS: dict[str, tuple[int, int, int]] = {
    "red": (220, 40, 40),
    "green": (40, 170, 70),
    "blue": (50, 80, 220),
    "yellow": (235, 205, 40),
    "purple": (150, 60, 180),
}
KINDS = ("circle", "square", "triangle")
MAX_SHAPES = 6

Size = tuple[int, int]


@dataclass(frozen=True)
class Shape:
    """One painted shape; x, y, w, h are fractions of the picture, rgb is the painted colour."""

    colour: str
    kind: str
    x: float
    y: float
    w: float
    h: float
    rgb: tuple[int, int, int]

    @property
    def name(self) -> str:
        return f"{self.colour} {self.kind}"

    @property
    def box(self) -> tuple[float, float, float, float]:
        return (
            self.x - self.w / 2,
            self.y - self.h / 2,
            self.x + self.w / 2,
            self.y + self.h / 2,
        )


@dataclass(frozen=True)
class Scene:
    """A picture's background and its shapes, in painting order (later covers earlier)."""

    background: tuple[int, int, int]
    shapes: tuple[Shape, ...]

    def matching(self, colour: str | None, kind: str | None) -> list[Shape]:
        """The shapes of that colour and kind (None is any), left to right, then top to bottom."""
        found = (s for s in self.shapes if colour in (None, s.colour) and kind in (None, s.kind))
        return sorted(found, key=lambda s: (s.x, s.y))


def object_name(colour: str | None, kind: str | None, plural: bool = False) -> str:
    """How one asks for such shapes: "red circle", "circles", "blue shape"."""
    noun = (kind or "shape") + ("s" if plural else "")
    return f"{colour} {noun}" if colour else noun


def sample_scene(rng: random.Random, aspect: float = 1.0) -> Scene:
    """One to six shapes of varied size, some overlapping a little.

    `aspect` is width / height of the picture that it will be painted on: squares and circles
    stay square and round there.
    """
    shapes: list[Shape] = []
    wanted = rng.choice((1, 2, 2, 3, 3, 4, 4, 5, 6))
    largest = 0.42 - 0.03 * wanted
    crowded = rng.choice((0.0, 0.0, 0.25))
    for _ in range(wanted):
        colour, kind = rng.choice(tuple(COLOURS)), rng.choice(KINDS)
        if shapes and rng.random() < 0.3:
            twin = rng.choice(shapes)
            colour, kind = twin.colour, twin.kind
        for _attempt in range(20):
            side = rng.uniform(0.13, largest)
            stretch = rng.uniform(0.75, 1.3) if kind == "triangle" else 1.0
            w, h = side / max(1.0, aspect), side * stretch * min(1.0, aspect)
            x, y = rng.uniform(w / 2, 1 - w / 2), rng.uniform(h / 2, 1 - h / 2)
            if all(_overlap((x, y, w, h), s) <= crowded for s in shapes):
                rgb = tuple(min(255, max(0, c + rng.randint(-18, 18))) for c in COLOURS[colour])
                shapes.append(Shape(colour, kind, x, y, w, h, rgb))  # type: ignore[arg-type]
                break
    base = rng.randint(205, 255) if rng.random() < 0.75 else rng.randint(0, 50)
    background = tuple(min(255, max(0, base + rng.randint(-8, 8))) for _ in range(3))
    return Scene(background, tuple(shapes))  # type: ignore[arg-type]


def _overlap(box: tuple[float, float, float, float], shape: Shape) -> float:
    """Shared area as a fraction of the smaller box; `box` is (x, y, w, h) by its centre."""
    x, y, w, h = box
    dx = min(x + w / 2, shape.x + shape.w / 2) - max(x - w / 2, shape.x - shape.w / 2)
    dy = min(y + h / 2, shape.y + shape.h / 2) - max(y - h / 2, shape.y - shape.h / 2)
    if dx <= 0 or dy <= 0:
        return 0.0
    return dx * dy / min(w * h, shape.w * shape.h)


def paint(scene: Scene, size: Size) -> Image.Image:
    """The scene as an RGB picture of (width, height) pixels."""
    image = Image.new("RGB", size, scene.background)
    draw = ImageDraw.Draw(image)
    for shape in scene.shapes:
        _draw(draw, shape, size, shape.rgb)
    return image


def paint_owners(scene: Scene, size: Size) -> Image.Image:
    """Which shape shows at each pixel: 0 is background, i + 1 is `scene.shapes[i]` (mode L)."""
    image = Image.new("L", size, 0)
    draw = ImageDraw.Draw(image)
    for i, shape in enumerate(scene.shapes):
        _draw(draw, shape, size, i + 1)
    return image


def _draw(
    draw: ImageDraw.ImageDraw, shape: Shape, size: Size, fill: tuple[int, int, int] | int
) -> None:
    width, height = size
    x_min, y_min, x_max, y_max = shape.box
    left, top = x_min * width, y_min * height
    right, bottom = x_max * width - 1, y_max * height - 1
    if shape.kind == "circle":
        draw.ellipse((left, top, right, bottom), fill=fill)
    elif shape.kind == "square":
        draw.rectangle((left, top, right, bottom), fill=fill)
    else:
        draw.polygon([(left, bottom), (right, bottom), ((left + right) / 2, top)], fill=fill)
