"""From produced ids to points, boxes and outlines, as they come, and their JSON in pieces."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Protocol

from vllm_photon.spatial.paths import PathReader
from vllm_photon.spatial.shapes import Box, Point
from vllm_photon.spatial.skills import Task
from vllm_photon.spatial.tokens import Coord, Size, SpatialVocab, size_value

KEYS = {Task.POINT: "points", Task.DETECT: "objects"}
# Ids up to this one never spell a part of an outline, as in Moondream's engine.
_LAST_RESERVED = 20


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


class Assembler(Protocol):
    """Makes an answer's JSON of its produced ids; head, pieces and tail join to the text."""

    def head(self) -> str:
        """The text before the first piece."""
        ...

    def push(self, token_id: int) -> str:
        """Take the next produced id; the text that it completes, or nothing."""
        ...

    def tail(self) -> str:
        """The text after the last piece, wherever the answer was cut."""
        ...


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


class SegmentAssembler:
    """Collects the box and the outline of one segment answer.

    The text is ``{"bbox": {"x_min": …, …}, "path": "M 0 0.5 …"}``, the box first if it came first
    and left out if it never came. The path is in shares of the box
    (:class:`vllm_photon.spatial.paths.PathReader`). ``text_of`` gives the text of one ordinary id.
    """

    def __init__(self, vocab: SpatialVocab, text_of: Callable[[int], str]) -> None:
        self.bbox: Box | None = None
        self._vocab = vocab
        self._text_of = text_of
        self._reader = PathReader()
        self._coords: list[Coord] = []
        self._bbox_told = False
        self._path_told = False

    @property
    def path(self) -> str:
        """The outline so far."""
        return self._reader.path

    def head(self) -> str:
        """The opening brace."""
        return "{"

    def push(self, token_id: int) -> str:
        """Take the next produced id; the text of the box or the command that it completes."""
        match self._vocab.decode(token_id):
            case Coord() as coord:
                self._coords.append(coord)
            case Size() as size if self.bbox is None and len(self._coords) > 1:
                self.bbox = box_from(self._vocab, self._coords[0], self._coords[1], size)
                return "" if self._path_told else self._tell_bbox()
            case None if token_id > _LAST_RESERVED and (text := self._text_of(token_id).strip()):
                return self._tell(self._reader.push(text))
        return ""

    def tail(self) -> str:
        """The last command, the box if it came late, the closing brace."""
        text = self._tell(self._reader.end())
        if not self._path_told:
            text += self._open_path()
        text += '"'
        if self.bbox is not None and not self._bbox_told:
            text += ", " + self._tell_bbox()
        return text + "}"

    def _tell(self, added: str) -> str:
        return added if self._path_told or not added else self._open_path() + added

    def _open_path(self) -> str:
        self._path_told = True
        return (", " if self._bbox_told else "") + '"path": "'

    def _tell_bbox(self) -> str:
        assert self.bbox is not None
        self._bbox_told = True
        return f'"bbox": {json_of(self.bbox)}'
