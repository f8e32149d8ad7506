"""The oracle's answers over HTTP: what was asked, what must come back."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from tests.serve.server import DATA

MAX_OBJECTS = 4
# Sizes are powers of two computed in single precision by the oracle and in double here.
TOLERANCE = 1e-6


@dataclass(frozen=True)
class Case:
    """One question of ``oracle_masked.json``."""

    image: int
    task: str
    object: str
    expected: dict[str, list[dict[str, float]]]

    def __str__(self) -> str:
        return f"{self.task}-{self.object.replace(' ', '_')}-{self.image}"

    def check(self, answer: dict[str, Any]) -> None:
        """Every value, with boxes clamped to the image as we serve them."""
        (key,) = self.expected
        got, want = answer[key], self.expected[key]
        assert len(got) == len(want), f"{self}: {len(got)} objects, expected {len(want)}"
        for mine, theirs in zip(got, want, strict=True):
            clamped = {k: min(max(v, 0.0), 1.0) for k, v in theirs.items()}
            assert mine == pytest.approx(clamped, abs=TOLERANCE), str(self)


def cases() -> list[Case]:
    """All point and detect questions of the Moondream 2 oracle."""
    found = []
    for entry in json.loads((DATA / "md2" / "oracle_masked.json").read_text()):
        for name, answer in entry.items():
            task, _, asked = name.partition(" ")
            if task in ("point", "detect"):
                found.append(Case(entry["image"], task, asked, answer["out"]))
    assert len(found) == 32
    return found
