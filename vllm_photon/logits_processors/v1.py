"""The grammar on model runner V1, whose processors read each request's list of output ids."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from vllm import SamplingParams
from vllm.sampling_params import SamplingType
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor
from vllm.v1.sample.logits_processor.builtin import process_dict_updates

from vllm_photon.logits_processors.params import validate
from vllm_photon.spatial.grammar import CLOSED, Cursor, TokenClass, TokenClasses, is_closed
from vllm_photon.spatial.prompts import skills_of
from vllm_photon.spatial.skills import parse_extra_args

if TYPE_CHECKING:
    from vllm.config import VllmConfig

_SPECIAL = frozenset(TokenClass) - {TokenClass.TEXT}
_MINUS_INFINITY = float("-inf")


class SpatialLogitsProcessor(LogitsProcessor):
    """Lets each row sample only what its skill allows next.

    Output lists are read in :meth:`apply` and nowhere else: in the two-deep step the last id of a
    list is a placeholder until then. A placeholder in ``apply`` is a GrammarError (invariant I5).

    ``decode_rows`` holds, after each ``apply``, the batch rows in which a sampled coordinate or
    size has a value and so must become a virtual id.

    A request is *closed* when its answer is greedy and made of three tokens only, and nobody asks
    for the others' logprobs. A batch of such requests needs no logits of the vocabulary:
    :meth:`choose` takes the place of sampling.
    """

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        """VLLMValidationError for arguments that no spatial request can have."""
        validate(sampling_params)

    def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool) -> None:
        self._device = device
        self._on_host = device.type == "cpu"
        self.decode_rows: list[int] = []
        skills = skills_of(vllm_config.model_config.hf_config)
        if skills is None:
            raise ValueError("the spatial logits processor is for Moondream only")
        self._skills = skills
        self._classes = TokenClasses(skills.vocab, skills.eos_id, skills.answer_id)
        # Allowed classes -> whether text is among them, and the special tokens that are then
        # banned, or else kept.
        self._special_ids: dict[frozenset[TokenClass], tuple[bool, tuple[int, ...]]] = {}
        # Batch row -> the request's place in its grammar and its list of output ids.
        self._rows: dict[int, tuple[Cursor, list[int]]] = {}
        self._closed: dict[int, bool] = {}
        self._all_closed = False
        # In ascending order, so that the lowest id wins among equals, as in the whole vocabulary.
        self.closed_ids = tuple(sorted(self._classes.id_of(c) for c in CLOSED))
        self._allowed_columns: dict[frozenset[TokenClass], tuple[int, ...]] = {}

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        process_dict_updates(self._rows, batch_update, self._begin)
        process_dict_updates(self._closed, batch_update, self._is_closed)
        if batch_update is not None:
            self._all_closed = all(self._closed.values())

    def is_closed(self, num_reqs: int) -> bool:
        """Whether the batch, of so many rows, holds closed requests only."""
        return self._all_closed and len(self._closed) == num_reqs

    def _begin(
        self, params: SamplingParams, prompt_ids: list[int] | None, output_ids: list[int]
    ) -> tuple[Cursor, list[int]] | None:
        skill = parse_extra_args(params.extra_args)
        if skill is None:
            return None
        return Cursor(self._classes, self._skills.start(skill), skill.cap), output_ids

    def _is_closed(
        self, params: SamplingParams, prompt_ids: list[int] | None, output_ids: list[int]
    ) -> bool:
        skill = parse_extra_args(params.extra_args)
        return (
            skill is not None
            and is_closed(self._skills.start(skill))
            and params.sampling_type == SamplingType.GREEDY
            and params.logprobs is None
            and params.logprob_token_ids is None
            and params.thinking_token_budget is None
        )

    def choose(self, score: Callable[[], torch.Tensor]) -> torch.Tensor:
        """The likeliest token that each row of a closed batch may sample, int32 [n, 1].

        ``score`` gives the logits [n, 3] of ``closed_ids``; it isn't called when no row has a
        choice. Lists, since numpy and torch take longer for so few numbers.
        """
        columns: list[tuple[int, ...]] = [()] * len(self._rows)
        for row, (cursor, output_ids) in self._rows.items():
            cursor.advance(output_ids)
            columns[row] = self._columns_of(cursor.allowed)
        if all(len(allowed) == 1 for allowed in columns):
            chosen = [allowed[0] for allowed in columns]
        else:
            chosen = [
                max(allowed, key=scores.__getitem__)
                for allowed, scores in zip(columns, score().tolist(), strict=True)
            ]
        ids = [[self.closed_ids[column]] for column in chosen]
        return torch.tensor(ids, dtype=torch.int32, device=self._device)

    def _columns_of(self, allowed: frozenset[TokenClass]) -> tuple[int, ...]:
        found = self._allowed_columns.get(allowed)
        if found is None:
            ids = sorted(self._classes.id_of(token_class) for token_class in allowed)
            found = tuple(self.closed_ids.index(id_) for id_ in ids)
            self._allowed_columns[allowed] = found
        return found

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """Mask ``logits`` [batch, vocab] in place."""
        self.decode_rows = []
        if not self._rows:
            return logits
        # A row is either cleared but for a few tokens, or keeps all but a few.
        cleared: list[int] = []
        kept: tuple[list[int], list[int]] = ([], [])
        banned: tuple[list[int], list[int]] = ([], [])
        for row, (cursor, output_ids) in self._rows.items():
            cursor.advance(output_ids)
            if cursor.decodes:
                self.decode_rows.append(row)
            has_text, special_ids = self._special(cursor.allowed)
            if not has_text:
                cleared.append(row)
            rows, ids = banned if has_text else kept
            rows += [row] * len(special_ids)
            ids += special_ids
        # The host's own memory is written by numpy, which takes half of torch's time for it.
        scores: Any = logits.numpy() if self._on_host else logits
        if cleared:
            at = self._index(kept[0]), self._index(kept[1])
            values = scores[at]
            scores[... if len(cleared) == len(logits) else self._index(cleared)] = _MINUS_INFINITY
            scores[at] = values
        if banned[0]:
            scores[self._index(banned[0]), self._index(banned[1])] = _MINUS_INFINITY
        return logits

    def _special(self, allowed: frozenset[TokenClass]) -> tuple[bool, tuple[int, ...]]:
        found = self._special_ids.get(allowed)
        if found is None:
            has_text = TokenClass.TEXT in allowed
            classes = _SPECIAL - allowed if has_text else allowed
            found = has_text, tuple(self._classes.id_of(c) for c in classes)
            self._special_ids[allowed] = found
        return found

    def _index(self, places: list[int]) -> Any:
        return np.array(places) if self._on_host else torch.tensor(places, device=self._device)
