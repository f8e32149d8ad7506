"""Batches for training: batch i of a seed is always the same, so a run can stop and go on."""

import math
import random

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from benchmarks.questions import photograph
from benchmarks.scenes import COLOURS, KINDS, Scene, paint_owners
from scripts.tiny.tasks import Asker, Sequence, ask

Batch = dict[str, Tensor]
SHARE_SHOWN = 0.08  # a patch shows the shape with most of its pixels, if that is at least this part


def resized(image: Image.Image, crop: int) -> Image.Image:
    """What the served model's image processor makes of a picture: one crop shows all of it."""
    if image.size == (crop, crop):
        return image
    return image.resize((crop, crop), Image.Resampling.LANCZOS)


class Batches(Dataset[Batch]):
    """Item i is a whole batch: pictures, patch labels and packed questions."""

    def __init__(
        self, asker: Asker, seed: int, count: int, batch: int, tokens: int, crop: int, patch: int
    ) -> None:
        self.asker, self.seed, self.count, self.batch = asker, seed, count, batch
        self.tokens, self.crop, self.grid = tokens, crop, crop // patch

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Batch:
        rng = random.Random(f"{self.seed}/{index}")
        pixels = np.empty((self.batch, self.crop, self.crop, 3), np.uint8)
        patches = np.zeros((self.batch, self.grid**2, 8), np.float32)
        rows = []
        for b in range(self.batch):
            scene, image = photograph(rng, self.crop)
            pixels[b] = np.asarray(resized(image, self.crop))
            patches[b] = self._patches(scene)
            if self.tokens:
                rows.append(self._pack(rng, scene))
        out = {"pixels": torch.from_numpy(pixels), "patches": torch.from_numpy(patches)}
        for key in rows[0] if rows else ():
            out[key] = torch.from_numpy(np.stack([row[key] for row in rows]))
        return out

    def _pack(self, rng: random.Random, scene: Scene) -> dict[str, np.ndarray]:
        """Questions end to end until the budget is full; segment -1 is padding."""
        t = self.tokens
        row: dict[str, np.ndarray] = {
            "segment": np.full(t, -1, np.int64),
            "position": np.zeros(t, np.int64),
            "ids": np.zeros(t, np.int64),
            "kind": np.zeros(t, np.int64),
            "coord": np.zeros(t, np.float32),
            "size": np.zeros((t, 2), np.float32),
            "target": np.full(t, -1, np.int64),
            "weight": np.zeros(t, np.float32),
            "coord_target": np.full(t, -1, np.int64),
            "size_target": np.full((t, 2), -1, np.int64),
            "source": np.zeros(t, np.int64),
        }
        start = misses = segment = 0
        while misses < 3:
            seq: Sequence = ask(rng, self.asker, scene)
            end = start + len(seq)
            if end > t:
                misses += 1
                continue
            row["segment"][start:end] = segment
            row["position"][start:end] = np.arange(len(seq))
            for key, values in vars(seq).items():
                row[key][start:end] = values
            start, segment = end, segment + 1
        return row

    def _patches(self, scene: Scene) -> np.ndarray:
        """Per patch: colour + 1 and kind + 1 (0 none), holds a centre, dx, dy, log2 w, log2 h,
        and which shape + 1 it shows (0 none)."""
        g, p = self.grid, self.crop // self.grid
        owners = np.asarray(paint_owners(scene, (self.crop, self.crop)))
        out = np.zeros((g * g, 8), np.float32)
        best = np.full(g * g, SHARE_SHOWN * p * p)
        centre = (np.arange(g) + 0.5) / g
        xs, ys = np.tile(centre, g), np.repeat(centre, g)
        for i, s in enumerate(scene.shapes):
            shown = (owners == i + 1).reshape(g, p, g, p).sum((1, 3)).ravel()
            mine = shown > best
            best = np.maximum(best, shown)
            out[mine, 0] = 1 + list(COLOURS).index(s.colour)
            out[mine, 1] = 1 + KINDS.index(s.kind)
            out[mine, 3], out[mine, 4] = s.x - xs[mine], s.y - ys[mine]
            out[mine, 5:] = math.log2(s.w), math.log2(s.h), i + 1
            out[min(int(s.y * g), g - 1) * g + min(int(s.x * g), g - 1), 2] = 1
        return out
