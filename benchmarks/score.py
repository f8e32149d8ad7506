"""Scores of pointing, detecting and counting; pure, in fractions of the picture."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

Point = tuple[float, float]
Box = tuple[float, float, float, float]


def iou(a: Box, b: Box) -> float:
    """Intersection over union of two (x_min, y_min, x_max, y_max) boxes."""
    dx = min(a[2], b[2]) - max(a[0], b[0])
    dy = min(a[3], b[3]) - max(a[1], b[1])
    if dx <= 0 or dy <= 0:
        return 0.0
    shared = dx * dy
    return shared / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - shared)


def centre(box: Box) -> Point:
    return (box[0] + box[2]) / 2, (box[1] + box[3]) / 2


@dataclass
class Tally:
    """Matched, spurious and missed answers."""

    hit: int = 0
    spurious: int = 0
    missed: int = 0

    @property
    def f1(self) -> float:
        total = 2 * self.hit + self.spurious + self.missed
        return 2 * self.hit / total if total else math.nan


@dataclass
class Score:
    """Sums over the questions of one run.

    A point matches the nearest unmatched object whose box holds it; a box matches an object at
    IoU 0.5 or more; matching is greedy, best pair first. Point error is the mean distance to the
    centre over matched points.
    """

    points: Tally = field(default_factory=Tally)
    boxes: Tally = field(default_factory=Tally)
    distances: list[float] = field(default_factory=list)
    absent: int = 0
    absent_empty: int = 0
    counts: int = 0
    counts_right: int = 0

    def add_points(self, found: Sequence[Point], truth: Sequence[Box]) -> None:
        self._absent(found, truth)
        pairs = []
        for i, (x, y) in enumerate(found):
            for j, box in enumerate(truth):
                if box[0] <= x <= box[2] and box[1] <= y <= box[3]:
                    pairs.append((math.dist((x, y), centre(box)), i, j))
        matched = _greedy(sorted(pairs))
        self.distances += [d for d, _, _ in matched]
        _count(self.points, len(matched), len(found), len(truth))

    def add_boxes(self, found: Sequence[Box], truth: Sequence[Box]) -> None:
        self._absent(found, truth)
        pairs = [(-iou(a, b), i, j) for i, a in enumerate(found) for j, b in enumerate(truth)]
        matched = _greedy(sorted(p for p in pairs if p[0] <= -0.5))
        _count(self.boxes, len(matched), len(found), len(truth))

    def add_count(self, right: bool) -> None:
        self.counts += 1
        self.counts_right += right

    def _absent(self, found: Sequence[Point] | Sequence[Box], truth: Sequence[Box]) -> None:
        if not truth:
            self.absent += 1
            self.absent_empty += not found

    def summary(self) -> dict[str, float]:
        """The figures, rounded; nan where nothing was asked."""

        def share(part: int, whole: int) -> float:
            return round(part / whole, 4) if whole else math.nan

        error = sum(self.distances) / len(self.distances) if self.distances else math.nan
        return {
            "point_error": round(error, 4),
            "point_f1": round(self.points.f1, 4),
            "detect_f1": round(self.boxes.f1, 4),
            "absent_empty": share(self.absent_empty, self.absent),
            "count_accuracy": share(self.counts_right, self.counts),
        }


def _greedy(pairs: list[tuple[float, int, int]]) -> list[tuple[float, int, int]]:
    """Keep each answer and each object once, in the order given."""
    kept: list[tuple[float, int, int]] = []
    answers: set[int] = set()
    objects: set[int] = set()
    for pair in pairs:
        if pair[1] not in answers and pair[2] not in objects:
            kept.append(pair)
            answers.add(pair[1])
            objects.add(pair[2])
    return kept


def _count(tally: Tally, matched: int, found: int, truth: int) -> None:
    tally.hit += matched
    tally.spurious += found - matched
    tally.missed += truth - matched
