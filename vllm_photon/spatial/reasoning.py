"""Reasoning with its points: which part of the text speaks of which places."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from vllm_photon.spatial.prompts import ModelSkills
from vllm_photon.spatial.tokens import Coord


def read_reasoning(
    token_ids: Sequence[int], skills: ModelSkills, decode: Callable[[list[int]], str]
) -> dict[str, Any]:
    """The reasoning at the start of a query's produced ids.

    Returns ``{"text": …, "grounding": [{"start_idx": …, "end_idx": …, "points": [[x, y], …]}]}``
    in the form of Moondream's API: a part of the text, by its characters, and the points that
    came with it. Parts are what the grounding tokens divide; a coordinate without its other half
    is left out. ``decode`` gives the text of ordinary ids without special tokens.
    """
    parts: list[tuple[list[int], list[float]]] = [([], [])]
    for token_id in token_ids:
        if token_id == skills.answer_id:
            break
        if token_id in skills.ground_ids:
            parts.append(([], []))
        words, values = parts[-1]
        match skills.vocab.decode(token_id):
            case Coord(bin_):
                values.append(skills.vocab.coord_value(bin_))
            case None:
                words.append(token_id)
    text = ""
    grounding = []
    for words, values in parts:
        start = len(text)
        text += decode(words) if words else ""
        points = [list(pair) for pair in zip(values[::2], values[1::2], strict=False)]
        if points:
            grounding.append({"start_idx": start, "end_idx": len(text), "points": points})
    return {"text": text, "grounding": grounding}
