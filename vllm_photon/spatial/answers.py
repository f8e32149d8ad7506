"""Answers read back: points, boxes and an outline from ids, JSON text or a decoded reply."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from vllm_photon.spatial.paths import polygons
from vllm_photon.spatial.results import box_from, point_from
from vllm_photon.spatial.shapes import Box, Point
from vllm_photon.spatial.tokens import Coord, Size, SpatialVocab


@dataclass(frozen=True, slots=True)
class Answer:
    """What an answer shows on the image; coordinates as shares of the image sides.

    ``path`` outlines what the last box holds, in shares of that box.
    """

    points: tuple[Point, ...] = ()
    boxes: tuple[Box, ...] = ()
    path: str = ""

    @property
    def outlines(self) -> list[list[Point]]:
        """``path`` as closed polygons over the image. ValueError when it is no path."""
        return polygons(self.path, self.boxes[-1]) if self.path and self.boxes else []


def parse(answer: str | Mapping[str, Any]) -> Answer:
    """Read the JSON of any skill's answer, as text or decoded.

    Takes the content of a chat message, the text of ``LLM.chat`` and ``LLM.generate`` and the
    replies of Moondream's endpoints and client; a query shows the points of its reasoning.
    ValueError for anything else.
    """
    reply = json.loads(answer) if isinstance(answer, str) else answer
    if not isinstance(reply, Mapping):
        raise ValueError(f"answer: expected an object, got {reply!r}")
    try:
        reasoning = reply.get("reasoning") or {}
        grounded = [pair for part in reasoning.get("grounding") or [] for pair in part["points"]]
        points = [Point(**point) for point in reply.get("points") or []]
        boxes = [*(reply.get("objects") or []), *filter(None, [reply.get("bbox")])]
        return Answer(
            points=(*points, *(Point(*pair) for pair in grounded)),
            boxes=tuple(Box(**box) for box in boxes),
            path=reply.get("path") or "",
        )
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"answer: {error}") from None


def parse_ids(token_ids: Iterable[int], vocab: SpatialVocab) -> Answer:
    """Read the produced ids of any skill: two coordinates are a point, with a size a box.

    ``vocab`` is the model's, ``hf_config.spatial_vocab()``. Ordinary tokens between the values
    don't matter; a coordinate that is left alone, or a size without its two, is left out.
    """
    shapes: list[Point | Box] = []
    waiting: Coord | None = None
    centre: tuple[Coord, Coord] | None = None
    for token_id in token_ids:
        match vocab.decode(token_id):
            case Coord() as y if waiting is not None:
                centre, waiting = (waiting, y), None
                shapes.append(point_from(vocab, *centre))
            case Coord() as x:
                waiting = x
            case Size() as size if centre is not None and waiting is None:
                shapes[-1] = box_from(vocab, *centre, size)
                centre = None
    return Answer(
        points=tuple(shape for shape in shapes if isinstance(shape, Point)),
        boxes=tuple(shape for shape in shapes if isinstance(shape, Box)),
    )
