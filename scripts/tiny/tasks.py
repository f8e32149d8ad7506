"""Questions about a scene, as the exact token sequences that the served model will see.

A `Sequence` is one question with its answer: what is fed after the image, and what must come out
at each position. Prompts follow the published Moondream 2 rules: objects are encoded with a
leading space, a query ends with the answer token twice.
"""

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from tokenizers import Tokenizer

from benchmarks.questions import Wanted, wanted_in
from benchmarks.scenes import COLOURS, KINDS, Scene, Shape, object_name
from scripts.tiny.bins import BINS, coord_bin, size_bin, size_value

EOS, ANSWER, COORD, SIZE = 0, 3, 5, 6
NOWHERE = -1
# How much a wrong token costs: starting or ending an object decides an answer, while the grammar
# leaves no other choice inside one.
CHOICE_WEIGHT, FORCED_WEIGHT, TEXT_WEIGHT = 1.5, 0.1, 0.7


@dataclass
class Sequence:
    """Parallel lists over positions: fed kind (0 id, 1 coordinate, 2 size) and value, and the
    target token (-1 none) with its weight, its coordinate or size bins (-1 none), and where in the
    picture the answer is (a shape's index + 1, NOWHERE, or 0: no one place)."""

    ids: list[int] = field(default_factory=list)
    kind: list[int] = field(default_factory=list)
    coord: list[float] = field(default_factory=list)
    size: list[tuple[float, float]] = field(default_factory=list)
    target: list[int] = field(default_factory=list)
    weight: list[float] = field(default_factory=list)
    coord_target: list[int] = field(default_factory=list)
    size_target: list[tuple[int, int]] = field(default_factory=list)
    source: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.ids)

    def feed(
        self, token: int, coord: float | None = None, size: tuple[float, float] | None = None
    ) -> None:
        """Append one input position; a target for it may be set afterwards by `expect`."""
        self.ids.append(token)
        self.kind.append(1 if coord is not None else 2 if size is not None else 0)
        self.coord.append(coord or 0.0)
        self.size.append(size or (0.0, 0.0))
        self.target.append(-1)
        self.weight.append(0.0)
        self.coord_target.append(-1)
        self.size_target.append((-1, -1))
        self.source.append(0)

    def expect(
        self,
        token: int,
        weight: float,
        source: int = 0,
        coord: int = -1,
        size: tuple[int, int] = (-1, -1),
    ) -> None:
        """Say what must come out at the last position."""
        self.target[-1], self.weight[-1], self.source[-1] = token, weight, source
        self.coord_target[-1], self.size_target[-1] = coord, size


class Asker:
    """Makes sequences from scenes, over one tokenizer and its templates."""

    def __init__(self, tokenizer: Tokenizer, templates: dict[str, Any]) -> None:
        self.templates = templates
        self._encode: Callable[[str], list[int]] = lambda text: tokenizer.encode(text).ids
        self._cache: dict[str, list[int]] = {}
        words = (*COLOURS, *KINDS)
        self._naming = {t for w in words for f in (w, " " + w) for t in self.encode(f)}

    def encode(self, text: str) -> list[int]:
        if text not in self._cache:
            self._cache[text] = self._encode(text)
        return self._cache[text]

    def prompt(self, skill: str, text: str) -> list[int]:
        """Everything fed between the image and the first sampled token."""
        if skill == "caption":
            return list(self.templates["caption"][text])
        template = self.templates[skill]
        if skill == "query":
            return [*template["prefix"], *self.encode(text), *template["suffix"], ANSWER]
        return [*template["prefix"], *self.encode(" " + text), *template["suffix"]]

    def locate(
        self, skill: str, name: str, scene: Scene, want: Wanted, jitter: Callable[[], float]
    ) -> Sequence:
        """Point at or detect what is wanted; fed values carry `jitter`, as decoded ones will."""
        seq = Sequence()
        for token in self.prompt(skill, name):
            seq.feed(token)
        for s in scene.matching(*want):
            source = 1 + scene.shapes.index(s)
            for i, value in enumerate((s.x, s.y)):
                index = coord_bin(value, i)
                seq.expect(COORD, FORCED_WEIGHT if i else CHOICE_WEIGHT, source, coord=index)
                seq.feed(COORD, coord=coord_bin(index / BINS + jitter(), i) / BINS)
            if skill == "detect":
                bins = (size_bin(s.w), size_bin(s.h))
                seq.expect(SIZE, FORCED_WEIGHT, source, size=bins)
                w, h = (size_value(b) * (1 + 4 * jitter()) for b in bins)
                seq.feed(SIZE, size=(w, h))
        seq.expect(EOS, CHOICE_WEIGHT, NOWHERE)
        return seq

    def text(self, skill: str, question: str, answer: str, sources: Iterable[int] = ()) -> Sequence:
        """A query with its answer, or a caption (`question` is the length).

        `sources` says where each colour or kind word of the answer, in turn, is seen.
        """
        seq = Sequence()
        for token in self.prompt(skill, question):
            seq.feed(token)
        places = iter(sources)
        for token in self.encode(answer):
            seen = token in self._naming
            seq.expect(token, TEXT_WEIGHT, next(places, 0) if seen else 0)
            seq.feed(token)
        seq.expect(EOS, TEXT_WEIGHT)
        return seq


def caption(scene: Scene, length: str) -> str:
    """The caption of a scene, shapes left to right."""
    shapes = scene.matching(None, None)
    if length != "long":
        listed = _listed([f"a {s.name}" for s in shapes])
        return listed if length == "short" else f"The picture shows {listed}."
    plural = "shapes" if len(shapes) > 1 else "shape"
    listed = _listed([_placed(s) for s in shapes])
    return f"The picture shows {len(shapes)} {plural}. From left to right: {listed}."


def _listed(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1]


def _placed(s: Shape) -> str:
    size = "small" if s.w * s.h < 0.045 else "large"
    place = "at the top" if s.y < 0.36 else "at the bottom" if s.y > 0.64 else "in the middle"
    return f"a {size} {s.name} {place}"


_COUNT = (
    "How many {} are there?",
    "How many {} are there?",
    "How many {} are there in the picture?",
    "How many {} are in the picture?",
    "How many {} are in the image?",
    "how many {} are there?",
    "How many {}?",
    "how many {}?",
    "Count the {}.",
)


def ask(rng: random.Random, asker: Asker, scene: Scene) -> Sequence:
    """One random question about the scene, with its true answer."""

    def jitter() -> float:
        return rng.gauss(0.0, 0.012)

    roll = rng.random()
    if roll < 0.54:
        skill = "point" if roll < 0.24 else "detect"
        if rng.random() < 0.02:
            word = "".join(rng.choice("abcdefghijklmnoprstuvwy") for _ in range(rng.randint(3, 7)))
            return asker.locate(skill, word, scene, (word, None), jitter)
        colour, kind = wanted_in(rng, scene, rng.random() < 0.33)
        name = object_name(colour, kind, plural=rng.random() < 0.2)
        return asker.locate(skill, name, scene, (colour, kind), jitter)
    if roll < 0.84:
        colour, kind = wanted_in(rng, scene, rng.random() < 0.2)
        question = rng.choice(_COUNT).format(object_name(colour, kind, plural=True))
        return asker.text("query", question, str(len(scene.matching(colour, kind))))
    if roll < 0.93:
        return _describe(rng, asker, scene)
    length = rng.choice(("short", "normal", "long"))
    order = [1 + scene.shapes.index(s) for s in scene.matching(None, None)]
    places = [place for place in order for _word in ("colour", "kind")]
    return asker.text("caption", length, caption(scene, length), places)


def _describe(rng: random.Random, asker: Asker, scene: Scene) -> Sequence:
    """What colour, what shape (of something unique), or is there one."""
    single_kinds = [k for k in KINDS if len(scene.matching(None, k)) == 1]
    single_colours = [c for c in COLOURS if len(scene.matching(c, None)) == 1]
    roll = rng.random()
    if roll < 0.4 and single_kinds:
        kind = rng.choice(single_kinds)
        question = f"What {rng.choice(('colour', 'color'))} is the {kind}?"
        seen = scene.matching(None, kind)[0]
        return asker.text("query", question, seen.colour, [1 + scene.shapes.index(seen)])
    if roll < 0.65 and single_colours:
        colour = rng.choice(single_colours)
        seen = scene.matching(colour, None)[0]
        question = f"What shape is the {colour} shape?"
        return asker.text("query", question, seen.kind, [1 + scene.shapes.index(seen)])
    found, kind_wanted = wanted_in(rng, scene, rng.random() < 0.5)
    name = object_name(found, kind_wanted)
    ending = rng.choice(("?", "?", " in the picture?"))
    answer = "yes" if scene.matching(found, kind_wanted) else "no"
    return asker.text("query", f"Is there a {name}{ending}", answer)
