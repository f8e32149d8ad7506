"""From produced ids to points and boxes, as they come, and their JSON text in pieces."""

from __future__ import annotations

import json

from vllm_photon.spatial.shapes import Box, Point
from vllm_photon.spatial.skills import Task
from vllm_photon.spatial.tokens import Coord, Size, SpatialVocab, size_value

KEYS = {Task.POINT: "points", Task.DETECT: "objects"}


def box_from(vocab: SpatialVocab, x: Coord, y: Coord, size: Size) -> Box:
    """The corners of a box from its centre and size, clamped to the image."""
    x_centre, y_centre = vocab.coord_value(x.bin), vocab.coord_value(y.bin)
    width, height = size_value(size.width_bin), size_value(size.height_bin)
    return Box(
        x_min=_clamped(x_centre - width / 2),
        y_min=_clamped(y_centre - height / 2),
        x_max=_clamped(x_centre + width / 2),
        y_max=_clamped(y_centre + height / 2),
    )


def point_from(vocab: SpatialVocab, x: Coord, y: Coord) -> Point:
    """A point from its two coordinates."""
    return Point(vocab.coord_value(x.bin), vocab.coord_value(y.bin))


def json_of(shape: Point | Box) -> str:
    """A point or box as its JSON object."""
    return json.dumps(shape._asdict())


def _clamped(value: float) -> float:
    return min(max(value, 0.0), 1.0)


class ObjectAssembler:
    """Collects the objects of one point or detect answer.

    The pieces of text join to ``{"points": [{"x": …, "y": …}, …]}`` or
    ``{"objects": [{"x_min": …, …}, …]}``: first :meth:`head`, then a piece for each object as
    :meth:`push` completes it, last :meth:`tail`. An object that was cut short is left out.
    """

    def __init__(self, task: Task, vocab: SpatialVocab) -> None:
        self.objects: list[Point | Box] = []
        self._task = task
        self._vocab = vocab
        self._parts: list[Coord | Size] = []

    def head(self) -> str:
        """The text before the first object."""
        return f'{{"{KEYS[self._task]}": ['

    def push(self, token_id: int) -> str:
        """Take the next produced id; the text of the object that it completes, or nothing."""
        token = self._vocab.decode(token_id)
        if token is None:
            return ""
        self._parts.append(token)
        found: Point | Box
        match self._task, self._parts:
            case Task.POINT, [Coord() as x, Coord() as y]:
                found = point_from(self._vocab, x, y)
            case Task.DETECT, [Coord() as x, Coord() as y, Size() as size]:
                found = box_from(self._vocab, x, y, size)
            case _:
                return ""
        self._parts = []
        self.objects.append(found)
        return (", " if len(self.objects) > 1 else "") + json_of(found)

    def tail(self) -> str:
        """The text after the last object."""
        return "]}"
