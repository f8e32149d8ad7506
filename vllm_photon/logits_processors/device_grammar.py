"""The grammar tables as tensors: every state of a batch moves at once, on the device.

The rules are :func:`vllm_photon.spatial.grammar.dense_tables`, with one state more: ``free``, for
requests without a skill, which allows everything. No method waits for the device.
"""

from __future__ import annotations

import torch

from vllm_photon.spatial.grammar import State, TokenClass, TokenClasses, dense_tables
from vllm_photon.spatial.tokens import COORD_BINS


class DeviceGrammar:
    """Tables of one model's grammar.

    A request's *place* is an int64 pair of the caller: its state, and how much may still be counted
    before it is at its cap.
    """

    free: int = len(State)

    def __init__(self, classes: TokenClasses, device: torch.device) -> None:
        dense, width = dense_tables(), len(TokenClass)

        def table(rows: list[list[int]], free: int, dtype: torch.dtype) -> torch.Tensor:
            return torch.tensor([*rows, [free] * width], dtype=dtype, device=device)

        self._next = table(dense.next_state, self.free, torch.int64)
        self._counts = table(dense.counts, 0, torch.int64)
        self._states = torch.arange(self.free + 1, device=device)
        self._moves = torch.stack((self._next - self._states[:, None], -self._counts), dim=-1)
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
        below_cap, at_cap = (table(rows, 1, torch.bool) for rows in dense.allowed)
        allowed = torch.stack((at_cap, below_cap))
        self._banned = ~allowed[:, :, self._class_of_id[:vocab_size]]

    def advance(self, place: torch.Tensor, ids: torch.Tensor, live: torch.Tensor) -> torch.Tensor:
        """Places [n, 2] after one more token; ``ids`` [n], ``live`` bool [n]: False stays."""
        return place + self._moves[place[:, 0], self._classes(ids)] * live[:, None]

    def replay(
        self, start: torch.Tensor, ids: torch.Tensor, lengths: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """States and counts, [n] each, after whole answers.

        ``start`` [n] states, ``ids`` [n, longest] of which the first ``lengths`` [n] count; longest
        is at least 1. Every token is a map of states to states; composing neighbours, then
        neighbours at twice the distance and so on, gives all prefixes of an answer in
        log2(longest) steps.
        """
        longest = ids.shape[1]
        live = torch.arange(longest, device=ids.device) < lengths[:, None]
        token_class = self._classes(torch.where(live, ids, 0))
        prefix = torch.where(live[:, :, None], self._next.t()[token_class], self._states)
        reach = 1
        while reach < longest:
            composed = prefix[:, reach:].gather(2, prefix[:, :-reach])
            prefix = torch.cat((prefix[:, :reach], composed), dim=1)
            reach *= 2
        after = prefix.gather(2, start[:, None, None].expand(-1, longest, 1)).squeeze(2)
        before = torch.cat((start[:, None], after[:, :-1]), dim=1)
        count = (self._counts[before, token_class] * live).sum(dim=1)
        return after[:, -1], count

    def banned(self, place: torch.Tensor) -> torch.Tensor:
        """Tokens not allowed next, bool [n, vocab], for places [n, 2]."""
        return self._banned[place[:, 1].clamp(0, 1), place[:, 0]]

    def decodes(self, place: torch.Tensor) -> torch.Tensor:
        """Whether a coordinate or size sampled next has a value; bool [n] for places [n, 2]."""
        return self._decodes[place[:, 0]]

    def _classes(self, ids: torch.Tensor) -> torch.Tensor:
        """Classes of ids, ordinary or virtual, any shape, int64."""
        return self._class_of_id[ids.clamp(max=self._last)]
