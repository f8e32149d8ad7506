"""The grammar tables as tensors: every state of a batch moves at once, on the device.

The rules are :func:`vllm_photon.spatial.grammar.dense_tables`, with one state more: ``free``, for
requests without a skill, which allows everything. No method waits for the device.
"""

from __future__ import annotations

import torch

from vllm_photon.spatial.grammar import State, TokenClass, TokenClasses, dense_tables
from vllm_photon.spatial.tokens import COORD_BINS


class DeviceGrammar:
    """Tables of one model's grammar; states and counts are int64 tensors of the caller."""

    free: int = len(State)

    def __init__(self, classes: TokenClasses, device: torch.device) -> None:
        dense, width = dense_tables(), len(TokenClass)

        def table(rows: list[list[int]], free: int, dtype: torch.dtype) -> torch.Tensor:
            return torch.tensor([*rows, [free] * width], dtype=dtype, device=device)

        self._next = table(dense.next_state, self.free, torch.int64)
        self._counts = table(dense.counts, 0, torch.int64)
        self._decodes = torch.tensor([*dense.decodes, 0], dtype=torch.bool, device=device)
        # One entry for each ordinary id, each coordinate, and all sizes together.
        vocab_size = classes.vocab.vocab_size
        self._last = vocab_size + COORD_BINS
        class_of_id = torch.full((self._last + 1,), TokenClass.TEXT, dtype=torch.int64)
        for token_class in set(TokenClass) - {TokenClass.TEXT}:
            class_of_id[classes.id_of(token_class)] = token_class
        class_of_id[vocab_size:] = TokenClass.COORD
        class_of_id[-1] = TokenClass.SIZE
        self._class_of_id = class_of_id.to(device)
        allowed = torch.stack([table(rows, 1, torch.bool) for rows in dense.allowed])
        self._banned = ~allowed[:, :, self._class_of_id[:vocab_size]]

    def advance(
        self, state: torch.Tensor, count: torch.Tensor, ids: torch.Tensor, live: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """State and count after one more token; all [n], ``live`` bool: False stays as it was."""
        token_class = self._classes(ids)
        count = count + self._counts[state, token_class] * live
        return torch.where(live, self._next[state, token_class], state), count

    def replay(
        self, start: torch.Tensor, ids: torch.Tensor, lengths: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """State and count after whole answers.

        ``start`` [n] states, ``ids`` [n, longest] of which the first ``lengths`` [n] count; longest
        is at least 1. Every token is a map of states to states; composing neighbours, then
        neighbours at twice the distance and so on, gives all prefixes of an answer in
        log2(longest) steps.
        """
        longest = ids.shape[1]
        live = torch.arange(longest, device=ids.device) < lengths[:, None]
        token_class = self._classes(torch.where(live, ids, 0))
        stay = torch.arange(self.free + 1, device=ids.device)
        prefix = torch.where(live[:, :, None], self._next.t()[token_class], stay)
        reach = 1
        while reach < longest:
            composed = prefix[:, reach:].gather(2, prefix[:, :-reach])
            prefix = torch.cat((prefix[:, :reach], composed), dim=1)
            reach *= 2
        after = prefix.gather(2, start[:, None, None].expand(-1, longest, 1)).squeeze(2)
        before = torch.cat((start[:, None], after[:, :-1]), dim=1)
        count = (self._counts[before, token_class] * live).sum(dim=1)
        return after[:, -1], count

    def banned(self, state: torch.Tensor, at_cap: torch.Tensor) -> torch.Tensor:
        """Tokens not allowed next, bool [n, vocab]; ``state`` [n], ``at_cap`` bool [n]."""
        return self._banned[at_cap.long(), state]

    def decodes(self, state: torch.Tensor) -> torch.Tensor:
        """Whether a coordinate or size sampled next has a value; bool [n] for ``state`` [n]."""
        return self._decodes[state]

    def _classes(self, ids: torch.Tensor) -> torch.Tensor:
        """Classes of ids, ordinary or virtual, any shape, int64."""
        return self._class_of_id[ids.clamp(max=self._last)]
