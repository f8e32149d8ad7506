"""The grammar on model runner V1, whose processors read each request's list of output ids."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from vllm import SamplingParams
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor
from vllm.v1.sample.logits_processor.builtin import process_dict_updates

from vllm_photon.logits_processors.params import validate
from vllm_photon.spatial.grammar import Cursor, TokenClass, TokenClasses
from vllm_photon.spatial.prompts import skills_of
from vllm_photon.spatial.skills import parse_extra_args

if TYPE_CHECKING:
    from vllm.config import VllmConfig

_SPECIAL = frozenset(TokenClass) - {TokenClass.TEXT}


class SpatialLogitsProcessor(LogitsProcessor):
    """Lets each row sample only what its skill allows next.

    Output lists are read in :meth:`apply` and nowhere else: in the two-deep step the last id of a
    list is a placeholder until then. A placeholder in ``apply`` is a GrammarError (invariant I5).

    ``decode_rows`` holds, after each ``apply``, the batch rows in which a sampled coordinate or
    size has a value and so must become a virtual id.
    """

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        """VLLMValidationError for arguments that no spatial request can have."""
        validate(sampling_params)

    def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool) -> None:
        self.device = device
        self.decode_rows: list[int] = []
        skills = skills_of(vllm_config.model_config.hf_config)
        if skills is None:
            raise ValueError("the spatial logits processor is for Moondream only")
        self._skills = skills
        self._classes = TokenClasses(skills.vocab, skills.eos_id, skills.answer_id)
        # Batch row -> the request's place in its grammar and its list of output ids.
        self._rows: dict[int, tuple[Cursor, list[int]]] = {}

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        process_dict_updates(self._rows, batch_update, self._begin)

    def _begin(
        self, params: SamplingParams, prompt_ids: list[int] | None, output_ids: list[int]
    ) -> tuple[Cursor, list[int]] | None:
        skill = parse_extra_args(params.extra_args)
        if skill is None:
            return None
        return Cursor(self._classes, self._skills.start(skill), skill.cap), output_ids

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """Mask ``logits`` [batch, vocab] in place."""
        self.decode_rows = []
        if not self._rows:
            return logits
        # A row is either cleared but for a few tokens, or keeps all but a few.
        cleared: list[int] = []
        kept: list[tuple[int, int]] = []
        banned: list[tuple[int, int]] = []
        for row, (cursor, output_ids) in self._rows.items():
            cursor.advance(output_ids)
            if cursor.decodes:
                self.decode_rows.append(row)
            allowed = cursor.allowed
            if TokenClass.TEXT in allowed:
                banned += [(row, self._classes.id_of(c)) for c in _SPECIAL - allowed]
            else:
                cleared.append(row)
                kept += [(row, self._classes.id_of(c)) for c in allowed]
        minus_infinity = float("-inf")
        if cleared:
            at = self._index(kept)
            values = logits[at]
            logits.index_fill_(0, torch.tensor(cleared, device=self.device), minus_infinity)
            logits[at] = values
        if banned:
            logits[self._index(banned)] = minus_infinity
        return logits

    def _index(self, cells: list[tuple[int, int]]) -> tuple[torch.Tensor, torch.Tensor]:
        rows, columns = torch.tensor(cells, device=self.device).unbind(1)
        return rows, columns
