"""Questions with known answers: drawn from synthetic scenes, or read from a folder.

A folder holds `questions.jsonl`, one object a line: `image` (a file in the folder), `skill`
(`point`, `detect` or `query`), then `object` and `boxes` ([x_min, y_min, x_max, y_max] of every
such object, as fractions of the picture; none if it is absent) for the first two, `question` and
`answer` for a query.
"""

import io
import json
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from benchmarks.scenes import COLOURS, KINDS, Scene, object_name, paint, sample_scene
from benchmarks.score import Box

SKILLS = ("point", "detect", "query")
ABSENT_SHARE = 0.33

Wanted = tuple[str | None, str | None]


@dataclass(frozen=True)
class Question:
    """`text` is the object or the question; `boxes` is the truth of point and detect, `answer`
    that of query; `image` is an encoded picture."""

    skill: str
    text: str
    image: bytes
    boxes: tuple[Box, ...] = ()
    answer: str = ""


def photograph(rng: random.Random, crop: int) -> tuple[Scene, Image.Image]:
    """A scene and a picture of it as users have them: `crop` pixels square or up to four times
    as large, square or not, some with the marks of JPEG."""
    if rng.random() < 0.6:
        scene = sample_scene(rng)
        image = paint(scene, (crop, crop))
    else:
        aspect = rng.choice((1.0, math.exp(rng.uniform(-0.35, 0.35))))
        side = crop * math.exp(rng.uniform(0.0, 1.4))
        scene = sample_scene(rng, aspect)
        image = paint(scene, (round(side * aspect**0.5), round(side / aspect**0.5)))
    if rng.random() < 0.15:
        buffer = io.BytesIO()
        image.save(buffer, "JPEG", quality=rng.randint(70, 95))
        image = Image.open(buffer).convert("RGB")
    return scene, image


def wanted_in(rng: random.Random, scene: Scene, absent: bool) -> Wanted:
    """A colour and kind to ask for (None is any); absent ones are mostly hard: a colour and a
    kind that the scene has, but not together."""
    if not absent:
        shape = rng.choice(scene.shapes)
        roll = rng.random()
        if roll < 0.62:
            return shape.colour, shape.kind
        if roll < 0.78:
            return shape.colour, None
        return (None, shape.kind) if roll < 0.94 else (None, None)
    every: list[Wanted] = [(c, k) for c in COLOURS for k in KINDS]
    choices = every
    if rng.random() < 0.6:
        choices = [(a.colour, b.kind) for a in scene.shapes for b in scene.shapes]
    elif rng.random() < 0.4:
        choices = [*((c, None) for c in COLOURS), *((None, k) for k in KINDS)]
    missing = [w for w in choices if not scene.matching(*w)]
    return rng.choice(missing or [w for w in every if not scene.matching(*w)])


def held_out(seed: int, count: int, crop: int) -> Iterator[tuple[Question, Scene, Image.Image]]:
    """`count` questions about as many pictures: point, detect and how many, in turn."""
    rng = random.Random(f"held-out/{seed}")
    for i in range(count):
        scene, image = photograph(rng, crop)
        skill = SKILLS[i % len(SKILLS)]
        want = wanted_in(rng, scene, rng.random() < ABSENT_SHARE)
        found = scene.matching(*want)
        buffer = io.BytesIO()
        image.save(buffer, "PNG")
        if skill == "query":
            text = f"How many {object_name(*want, plural=True)} are there?"
            yield Question(skill, text, buffer.getvalue(), answer=str(len(found))), scene, image
        else:
            boxes = tuple(s.box for s in found)
            yield Question(skill, object_name(*want), buffer.getvalue(), boxes), scene, image


def read_folder(folder: Path) -> list[Question]:
    """The questions of a folder; ValueError names the line that is wrong."""
    questions = []
    for number, line in enumerate((folder / "questions.jsonl").read_text().splitlines(), 1):
        if not line.strip():
            continue
        try:
            questions.append(_parse(json.loads(line), folder))
        except (ValueError, KeyError, TypeError, OSError) as error:
            raise ValueError(
                f"questions.jsonl line {number}: {type(error).__name__}: {error}"
            ) from error
    return questions


def _parse(entry: dict[str, Any], folder: Path) -> Question:
    skill = entry["skill"]
    if skill not in SKILLS:
        raise ValueError(f"skill is {skill!r}, not one of {', '.join(SKILLS)}")
    image = (folder / entry["image"]).read_bytes()
    if skill == "query":
        return Question(skill, entry["question"], image, answer=str(entry["answer"]))
    boxes: list[Box] = []
    for x_min, y_min, x_max, y_max in entry["boxes"]:
        if not 0 <= x_min < x_max <= 1 or not 0 <= y_min < y_max <= 1:
            raise ValueError("a box is x_min < x_max and y_min < y_max within 0 and 1")
        boxes.append((x_min, y_min, x_max, y_max))
    return Question(skill, entry["object"], image, tuple(boxes))


def write_folder(folder: Path, questions: list[Question]) -> None:
    """The inverse of `read_folder`, with PNG pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = []
    for i, q in enumerate(questions):
        name = f"{i:05}.png"
        (folder / name).write_bytes(q.image)
        truth: dict[str, Any] = (
            {"question": q.text, "answer": q.answer}
            if q.skill == "query"
            else {"object": q.text, "boxes": q.boxes}
        )
        lines.append(json.dumps({"image": name, "skill": q.skill, **truth}))
    (folder / "questions.jsonl").write_text("\n".join(lines) + "\n")
