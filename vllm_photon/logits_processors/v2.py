"""The grammar on model runner V2, whose processors see a step's rows as device tensors.

A request's place in its grammar lives on the device, by request slot. A decode step moves it by the
token that the step was fed, which no one has to wait for; what a resumed request brings along is
replayed when it enters its slot.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from vllm import SamplingParams
from vllm.utils.torch_utils import async_tensor_h2d
from vllm.v1.worker.gpu.sample.logits_processor import (
    LogitsContext,
    LogitsProcessor,
    LogitsProcRequestState,
)

from vllm_photon.logits_processors.device_grammar import DeviceGrammar
from vllm_photon.logits_processors.params import validate
from vllm_photon.spatial.grammar import UNCAPPED, TokenClasses, decodes_sizes
from vllm_photon.spatial.prompts import skills_of
from vllm_photon.spatial.skills import parse_extra_args

if TYPE_CHECKING:
    from vllm.config import VllmConfig


class SpatialLogitsProcessor(LogitsProcessor):
    """Lets each row sample only what its skill allows next; no host wait anywhere.

    ``decode_mask`` is, after each ``apply``, a device mask [rows] of the rows in which a sampled
    coordinate or size has a value and so must become a virtual id; None when there is no such row.
    ``decode_sizes`` says whether a size can be among them.
    """

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        """VLLMValidationError for arguments that no spatial request can have."""
        validate(sampling_params)

    def __init__(self, vllm_config: VllmConfig, req_states: LogitsProcRequestState) -> None:
        skills = skills_of(vllm_config.model_config.hf_config)
        if skills is None:
            raise ValueError(f"{vllm_config.model_config.model} has no spatial skills")
        self._skills = skills
        self._requests = req_states
        device, slots = req_states.device, req_states.max_num_reqs
        self._grammar = DeviceGrammar(
            TokenClasses(skills.vocab, skills.eos_id, skills.answer_id), device
        )
        self._places = torch.tensor([DeviceGrammar.free, UNCAPPED], device=device).repeat(slots, 1)
        # What the host knows of each slot, to skip work without asking the device.
        self._has_skill = np.zeros(slots, dtype=bool)
        self._may_decode = np.zeros(slots, dtype=bool)
        self._may_size = np.zeros(slots, dtype=bool)
        # Slot -> start state and cap of the request that enters it.
        self._entering: dict[int, tuple[int, int]] = {}
        self.decode_mask: torch.Tensor | None = None
        self.decode_sizes = False

    def add_request(self, req_idx: int, sampling_params: SamplingParams) -> bool:
        """True when the request has a skill; a slot without one is set free all the same."""
        skill = parse_extra_args(sampling_params.extra_args)
        if skill is not None or self._has_skill[req_idx]:
            self._entering[req_idx] = (
                (DeviceGrammar.free, UNCAPPED)
                if skill is None
                else (self._skills.start(skill), skill.cap)
            )
        self._has_skill[req_idx] = skill is not None
        self._may_decode[req_idx] = skill is not None and skill.is_spatial
        self._may_size[req_idx] = skill is not None and decodes_sizes(self._skills.start(skill))
        return skill is not None

    def apply_staged_writes(self) -> None:
        """Put entering requests into their slots, moved along the answer that they bring."""
        if not self._entering:
            return
        index = np.array(list(self._entering))
        table = [(slot, *fresh) for slot, fresh in self._entering.items()]
        self._entering = {}
        device = self._requests.device
        slots, state, cap = async_tensor_h2d(table, device, torch.int64).unbind(dim=1)
        prompt_len = self._requests.prompt_len.np[index]
        longest = int((self._requests.prefill_len.np[index] - prompt_len).max())
        if longest > 0:
            first = self._requests.prompt_len.gpu[slots]
            history = self._requests.all_token_ids.gpu
            at = first[:, None] + torch.arange(longest, device=device)
            ids = history[slots[:, None], at.clamp(max=history.shape[1] - 1)].long()
            lengths = self._requests.prefill_len.gpu[slots] - first
            state, count = self._grammar.replay(state, ids, lengths)
            cap = cap - count
        self._places[slots] = torch.stack((state, cap), dim=1)

    def apply(self, logits: torch.Tensor, ctx: LogitsContext) -> torch.Tensor:
        """Mask ``logits`` [rows, vocab] in place."""
        self.decode_mask = None
        if not self._has_skill[ctx.idx_mapping_np].any():
            return logits
        slots = ctx.expanded_idx_mapping.long()
        # Prompt and refill end at prefill_len; a later position was fed a token of the answer.
        live = ctx.pos >= self._requests.prefill_len.gpu[slots]
        places = self._grammar.advance(self._places[slots], ctx.input_ids, live)
        self._places[slots] = places
        if self._may_decode[ctx.idx_mapping_np].any():
            self.decode_mask = self._grammar.decodes(places)
            self.decode_sizes = bool(self._may_size[ctx.idx_mapping_np].any())
        return logits.masked_fill_(self._grammar.banned(places), float("-inf"))
