"""Outlines as SVG paths: read from single tokens of text, and turned into polygons.

Moondream 3 writes an outline as an SVG path, one command, sign or whole number to a token, on a
canvas of 960 x 960 that covers the object's box. A path leaves here in shares of that box.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

from vllm_photon.spatial.shapes import Box, Point

CANVAS = 960
DECIMALS = 3
CURVE_STEPS = 8

# Numbers that each command takes; a path may repeat them without repeating the command.
_ARITY = {"Z": 0, "H": 1, "V": 1, "M": 2, "L": 2, "T": 2, "S": 4, "Q": 4, "C": 6, "A": 7}
# Where an arc's numbers are lengths: its radii and its end, not its angle and flags.
_ARC_LENGTHS = (True, True, False, False, False, True, True)

_TOKEN = re.compile(r"[MmLlHhVvCcSsQqTtAaZz]|-?(?:\d+\.?\d*|\.\d+)")
_SEPARATORS = re.compile(r"[\s,]+")

Command = tuple[str, list[float]]


class PathReader:
    """Reads a path as its tokens come.

    A token that can't stand where it comes ends the path: the commands before it remain.
    """

    def __init__(self) -> None:
        self.path = ""
        self._letter = ""
        self._numbers: list[int] = []
        self._negative = False
        self._broken = False

    def push(self, token: str) -> str:
        """Take the text of the next token; what it adds to ``path``: a whole command or nothing.

        A command is whole when the next one begins; the last one is when :meth:`end` says so.
        """
        added = ""
        if self._broken:
            return added
        if token.upper() in _ARITY and not self._negative:
            added = self.end()
            self._letter = token
            self._broken |= not self.path and token not in "Mm"
        elif token == "-" and self._letter and not self._negative:
            self._negative = True
        elif token.isascii() and token.isdigit() and self._letter:
            self._numbers.append(-int(token) if self._negative else int(token))
            self._negative = False
        else:
            added = self.end()
            self._broken = True
        return added

    def end(self) -> str:
        """What the last command adds; one that lacks numbers is left out and ends the path."""
        letter, numbers = self._letter, self._numbers
        self._letter, self._numbers = "", []
        if not letter or self._broken:
            return ""
        arity = _ARITY[letter.upper()]
        if len(numbers) < arity:
            self._broken = True
            return ""
        kept = numbers[: len(numbers) // arity * arity] if arity else []
        is_length = _ARC_LENGTHS if letter in "Aa" else (True,)
        texts = [
            _short(number / CANVAS) if is_length[i % len(is_length)] else str(number)
            for i, number in enumerate(kept)
        ]
        added = (" " if self.path else "") + " ".join([letter, *texts])
        self.path += added
        return added


def polygons(path: str, box: Box) -> list[list[Point]]:
    """The closed outlines of a path over ``box``, curves in short straight steps.

    Arcs become straight lines: Moondream's outlines have none. ValueError for text that is no path.
    """
    width, height = box.x_max - box.x_min, box.y_max - box.y_min
    return [
        [Point(box.x_min + at.real * width, box.y_min + at.imag * height) for at in outline]
        for outline in _outlines(path)
        if len(outline) > 2
    ]


def _outlines(path: str) -> list[list[complex]]:
    outlines: list[list[complex]] = []
    here = start = control = 0j
    for letter, numbers in _commands(path):
        kind = letter.upper()
        if kind == "Z":
            here = control = start
            continue
        to = _ends(kind, numbers, here, relative=letter != kind)
        if kind == "M":
            here = start = control = to[-1]
            outlines.append([here])
            continue
        if not outlines:
            raise ValueError(f"path: it begins with {letter}, not with M")
        # The first control of a smooth curve mirrors the last one of the curve before.
        bend = [here, 2 * here - control, *to] if kind in "ST" else [here, *to]
        outlines[-1] += _curve(bend)
        here = to[-1]
        control = bend[-2] if len(bend) > 2 else here
    return outlines


def _commands(path: str) -> Iterator[Command]:
    """One command at a time; what follows a move without a letter is a line."""
    texts = _TOKEN.findall(path)
    if "".join(texts) != _SEPARATORS.sub("", path):
        raise ValueError(f"path: {path!r} is no SVG path")
    at, letter = 0, ""
    while at < len(texts):
        if texts[at].isalpha():
            letter, at = texts[at], at + 1
        elif not letter or letter in "Zz":
            raise ValueError(f"path: {texts[at]} follows no command")
        arity = _ARITY[letter.upper()]
        numbers = texts[at : at + arity]
        if len(numbers) < arity or any(text.isalpha() for text in numbers):
            raise ValueError(f"path: {letter} takes {arity} numbers")
        yield letter, [float(text) for text in numbers]
        at += arity
        letter = {"M": "L", "m": "l"}.get(letter, letter)


def _ends(kind: str, numbers: list[float], here: complex, *, relative: bool) -> list[complex]:
    """The points that a command names, the last of them where it ends."""
    base = here if relative else 0j
    if kind == "H":
        return [complex(base.real + numbers[0], here.imag)]
    if kind == "V":
        return [complex(here.real, base.imag + numbers[0])]
    pairs = numbers[5:] if kind == "A" else numbers
    return [base + complex(*pair) for pair in zip(pairs[::2], pairs[1::2], strict=True)]


def _curve(bend: Sequence[complex]) -> list[complex]:
    """Points along a Bezier curve with these controls, without its first point."""
    if len(bend) == 2:
        return [bend[1]]
    found = []
    for step in range(1, CURVE_STEPS + 1):
        share, row = step / CURVE_STEPS, list(bend)
        while len(row) > 1:
            row = [a + (b - a) * share for a, b in pairwise(row)]
        found += row
    return found


def _short(number: float) -> str:
    return f"{number:.{DECIMALS}f}".rstrip("0").rstrip(".")
