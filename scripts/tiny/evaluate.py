"""Greedy decoding of the tiny model in torch, by the serving rules, and its scores."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from benchmarks.questions import held_out
from benchmarks.score import Box, Score
from scripts.tiny.bins import BINS, size_value
from scripts.tiny.data import resized
from scripts.tiny.model import KeyValue, TinyMoondream
from scripts.tiny.tasks import ANSWER, COORD, EOS, SIZE, Asker

MAX_OBJECTS, MAX_TEXT = 10, 80

T = TypeVar("T")


@dataclass
class Row:
    """One question being decoded: what was fed so far, and what came out."""

    skill: str
    ids: list[int]
    kind: list[int]
    coord: list[float]
    size: list[tuple[float, float]]
    values: list[float]
    done: bool = False

    def feed(self, token: int, kind: int, coord: float, size: tuple[float, float]) -> None:
        self.ids.append(token)
        self.kind.append(kind)
        self.coord.append(coord)
        self.size.append(size)


@torch.no_grad()
def decode(model: TinyMoondream, pixels: Tensor, prompts: list[tuple[str, list[int]]]) -> list[Row]:
    """Answer one (skill, prompt ids) per picture of `pixels` (B, H, W, 3)."""
    cache = model.prefix(model.vision.project(model.vision.encode(pixels)))
    rows = [
        Row(s, list(p), [0] * len(p), [0.0] * len(p), [(0.0, 0.0)] * len(p), []) for s, p in prompts
    ]
    while live := [i for i, r in enumerate(rows) if not r.done]:
        hidden = _last_hidden(model, cache, [rows[i] for i in live], live)
        logits = model.text.logits(hidden).float()
        logits[:, ANSWER] = -math.inf
        coords = model.region.coord_decoder(hidden).argmax(-1)
        sizes = model.region.size_decoder(hidden).view(-1, 2, BINS).argmax(-1)
        for n, i in enumerate(live):
            _step(rows[i], logits[n], int(coords[n]), sizes[n].tolist())
    return rows


def _last_hidden(
    model: TinyMoondream, cache: list[KeyValue], rows: list[Row], index: list[int]
) -> Tensor:
    """Hidden state at the last fed position of each row, (rows, dim)."""
    t, prefix = max(len(r.ids) for r in rows), cache[0][0].shape[2]
    pad = [t - len(r.ids) for r in rows]
    ids = torch.tensor([r.ids + [0] * p for r, p in zip(rows, pad, strict=True)])
    kind = torch.tensor([r.kind + [0] * p for r, p in zip(rows, pad, strict=True)])
    coord = torch.tensor([r.coord + [0.0] * p for r, p in zip(rows, pad, strict=True)])
    size = torch.tensor([r.size + [(0.0, 0.0)] * p for r, p in zip(rows, pad, strict=True)])
    mask = torch.ones(t, prefix + t, dtype=torch.bool).tril(prefix)[None, None]
    positions = torch.arange(prefix, prefix + t)[None]
    kept = [(k[index], v[index]) for k, v in cache]
    hidden, _ = model.text.tail(model.embed(ids, kind, coord, size), positions, mask, kept)
    return hidden[torch.arange(len(rows)), torch.tensor([len(r.ids) - 1 for r in rows])]


def _step(row: Row, logits: Tensor, coord: int, size: list[int]) -> None:
    """Advance one row by one token, under the grammar of its skill."""
    if row.skill in ("query", "caption"):
        token = int(logits.argmax())
        row.done = token == EOS or len(row.values) >= MAX_TEXT
        if not row.done:
            row.values.append(token)
            row.feed(token, 0, 0.0, (0.0, 0.0))
        return
    period = 2 if row.skill == "point" else 4
    phase = len(row.values) % period
    if phase == 0 and (logits[EOS] > logits[COORD] or len(row.values) >= MAX_OBJECTS * period):
        row.done = True
    elif phase < 2:
        row.values.append(coord / BINS)
        row.feed(COORD, 1, coord / BINS, (0.0, 0.0))
    else:
        pair = (size_value(size[0]), size_value(size[1]))
        row.values += pair
        row.feed(SIZE, 2, 0.0, pair)


def _box(values: list[float]) -> Box:
    x, y, w, h = values
    return (x - w / 2, y - h / 2, x + w / 2, y + h / 2)


def evaluate(model: TinyMoondream, asker: Asker, crop: int, count: int, seed: int) -> Score:
    """Score the held-out questions that the accuracy benchmark asks a server."""
    score = Score()
    for part in batched(held_out(seed, count, crop), 128):
        pictures = [np.asarray(resized(image, crop), np.float32) for _, _, image in part]
        prompts = [(q.skill, asker.prompt(q.skill, q.text)) for q, _, _ in part]
        rows = decode(model, torch.from_numpy(np.stack(pictures)) / 127.5 - 1, prompts)
        for (question, _, _), row in zip(part, rows, strict=True):
            v = row.values
            if row.skill == "query":
                score.add_count(v == asker.encode(question.answer))
            elif row.skill == "point":
                score.add_points(list(zip(v[0::2], v[1::2], strict=True)), question.boxes)
            else:
                boxes = [_box(v[i : i + 4]) for i in range(0, len(v), 4)]
                score.add_boxes(boxes, question.boxes)
    return score


def batched(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Lists of `size` items; the last may be shorter."""
    rest = iter(items)
    while part := list(islice(rest, size)):
        yield part
