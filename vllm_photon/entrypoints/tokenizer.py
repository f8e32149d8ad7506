"""Tokenizer mode ``photon``: the checkpoint's own fast tokenizer, aware of virtual ids.

Virtual ids lie above the vocabulary. The tokenizer reports them as valid (``max_token_id``) and
shows them as ``<|coord_512|>``, ``<|size_300_700|>`` and ``<|image|>``; it never produces them.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from vllm.tokenizers.hf import CachedHfTokenizer

from vllm_photon.spatial.prompts import ModelSkills
from vllm_photon.spatial.tokens import Coord, Size, SpatialVocab


def token_text(vocab: SpatialVocab, token_id: int) -> str:
    """How a virtual id is shown."""
    match vocab.decode(token_id):
        case Coord(bin_):
            return f"<|coord_{bin_}|>"
        case Size(width_bin, height_bin):
            return f"<|size_{width_bin}_{height_bin}|>"
        case _:
            return "<|image|>"


def with_virtual_ids(tokenizer: Any, skills: ModelSkills) -> Any:
    """A copy of a fast tokenizer that knows a model's virtual ids, and its skills.

    The class is made here since vLLM's own wrappers derive from the class of the tokenizer that
    they are given, and so must we.
    """
    base = type(tokenizer)
    vocab = skills.vocab
    size = vocab.vocab_size

    class PhotonTokenizer(base):  # type: ignore[misc, valid-type]
        spatial_skills = skills

        @property
        def max_token_id(self) -> int:
            return vocab.end - 1

        def convert_ids_to_tokens(self, ids: Any, skip_special_tokens: bool = False) -> Any:
            if isinstance(ids, int):
                if ids >= size:
                    return token_text(vocab, ids)
                return super().convert_ids_to_tokens(ids, skip_special_tokens)
            ids = list(ids)
            if max(ids, default=0) < size:
                return super().convert_ids_to_tokens(ids, skip_special_tokens)
            tokens: list[str] = []
            for virtual, run in _runs(ids, size):
                if virtual:
                    tokens += [token_text(vocab, i) for i in run]
                else:
                    tokens += super().convert_ids_to_tokens(run, skip_special_tokens)
            return tokens

        def decode(self, token_ids: Any, skip_special_tokens: bool = False, **kwargs: Any) -> Any:
            ids = [token_ids] if isinstance(token_ids, int) else list(token_ids)
            plain = not ids or not isinstance(ids[0], int) or max(ids) < size
            if plain:
                return super().decode(token_ids, skip_special_tokens=skip_special_tokens, **kwargs)
            return "".join(
                "".join(token_text(vocab, i) for i in run)
                if virtual
                else super(PhotonTokenizer, self).decode(
                    run, skip_special_tokens=skip_special_tokens, **kwargs
                )
                for virtual, run in _runs(ids, size)
            )

        def __reduce__(self) -> Any:
            return with_virtual_ids, (tokenizer, skills)

    PhotonTokenizer.__name__ = f"Photon{base.__name__}"
    wrapped = copy.copy(tokenizer)
    wrapped.__class__ = PhotonTokenizer
    return wrapped


def _runs(ids: Iterable[int], size: int) -> list[tuple[bool, list[int]]]:
    """Stretches of ids that are all virtual (True) or all ordinary (False), in order."""
    runs: list[tuple[bool, list[int]]] = []
    for token_id in ids:
        virtual = token_id >= size
        if not runs or runs[-1][0] != virtual:
            runs.append((virtual, []))
        runs[-1][1].append(token_id)
    return runs


class PhotonTokenizer:
    """What vLLM's tokenizer registry loads for the mode ``photon``.

    It loads an ordinary fast tokenizer, from the checkpoint or from elsewhere; the renderer, which
    knows the model, wraps it with :func:`with_virtual_ids`.
    """

    @classmethod
    def from_pretrained(cls, path_or_repo_id: str | Path, *args: Any, **kwargs: Any) -> Any:
        """Load the tokenizer; ValueError when it isn't a fast one."""
        tokenizer = CachedHfTokenizer.from_pretrained(path_or_repo_id, *args, **kwargs)
        if not tokenizer.is_fast:
            raise ValueError("tokenizer mode photon needs a fast tokenizer (tokenizer.json)")
        return tokenizer
