"""Points and boxes, as shares of the image sides."""

from __future__ import annotations

from typing import NamedTuple


class Point(NamedTuple):
    """A point of the image; (0, 0) is its upper left corner, (1, 1) the lower right one."""

    x: float
    y: float

    def pixels(self, width: float, height: float) -> Point:
        """The same point of an image of that size, in pixels."""
        return Point(self.x * width, self.y * height)


class Box(NamedTuple):
    """A box by two of its corners."""

    x_min: float
    y_min: float
    x_max: float
    y_max: float

    def pixels(self, width: float, height: float) -> Box:
        """The same box of an image of that size, in pixels."""
        return Box(self.x_min * width, self.y_min * height, self.x_max * width, self.y_max * height)
