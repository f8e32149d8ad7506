"""The grammar on model runner V1, whose processors read each request's list of output ids."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

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


class _Row(NamedTuple):
    """A request's place in its grammar, its list of output ids, and whether it is closed."""

    cursor: Cursor
    output_ids: list[int]
    closed: bool


class SpatialLogitsProcessor(LogitsProcessor):
    """Lets each row sample only what its skill allows next.

    Output lists are read in :meth:`apply` and :meth:`choose` and nowhere else: in the two-deep step
    the last id of a list is a placeholder until then. A placeholder there is a GrammarError
    (invariant I5).

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
        # By batch row; a request without a skill has none.
        self._rows: dict[int, _Row] = {}
        self._all_closed = False
        self.closed_ids = tuple(self._classes.id_of(c) for c in CLOSED)

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        process_dict_updates(self._rows, batch_update, self._begin)
        if batch_update is not None:
            self._all_closed = all(row.closed for row in self._rows.values())

    def is_closed(self, num_reqs: int) -> bool:
        """Whether the batch, of so many rows, holds closed requests only."""
        return self._all_closed and 0 < len(self._rows) == num_reqs

    def _begin(
        self, params: SamplingParams, prompt_ids: list[int] | None, output_ids: list[int]
    ) -> _Row | None:
        skill = parse_extra_args(params.extra_args)
        if skill is None:
            return None
        start = self._skills.start(skill)
        closed = (
            is_closed(start)
            and params.sampling_type == SamplingType.GREEDY
            and params.logprobs is None
            and params.logprob_token_ids is None
            and params.thinking_token_budget is None
        )
        return _Row(Cursor(self._classes, start, skill.cap), output_ids, closed)

    def choose(self, score: Callable[[], torch.Tensor]) -> torch.Tensor:
        """The likeliest token that each row of a closed batch may sample, int32 [n, 1].

        ``score`` gives the logits [n, 3] of ``closed_ids``; it isn't called when no row has a
        choice. Lists, since numpy and torch take longer for so few numbers.
        """
        choices: list[tuple[int, ...]] = [()] * len(self._rows)
        for row, (cursor, output_ids, _) in self._rows.items():
            cursor.advance(output_ids)
            _, choices[row] = self._special(cursor.allowed)
        if all(len(ids) == 1 for ids in choices):
            chosen = choices
        else:
            chosen = [
                (max(ids, key=dict(zip(self.closed_ids, scores, strict=True)).__getitem__),)
                for ids, scores in zip(choices, score().tolist(), strict=True)
            ]
        return torch.tensor(chosen, dtype=torch.int32, device=self._device)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """Mask ``logits`` [batch, vocab] in place."""
        self.decode_rows = []
        if not self._rows:
            return logits
        # A row is either cleared but for a few tokens, or keeps all but a few.
        cleared: list[int] = []
        kept: tuple[list[int], list[int]] = ([], [])
        banned: tuple[list[int], list[int]] = ([], [])
        for row, (cursor, output_ids, _) in self._rows.items():
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
            # In ascending order: the first of equals wins, as in the whole vocabulary.
            found = has_text, tuple(sorted(self._classes.id_of(c) for c in classes))
            self._special_ids[allowed] = found
        return found

    def _index(self, places: list[int]) -> Any:
        return np.array(places) if self._on_host else torch.tensor(places, device=self._device)
