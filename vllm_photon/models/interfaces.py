"""What a model offers to the rest of the plugin."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch

from vllm_photon.spatial.tokens import SpatialVocab


@runtime_checkable
class SupportsSpatial(Protocol):
    """A model with region heads.

    Its ``forward`` returns the hidden states that the region heads read (before the last norm);
    ``compute_logits`` applies the norm itself. ``embed_input_ids`` accepts virtual ids.
    """

    spatial_vocab: SpatialVocab
    # While set, ``compute_logits`` returns None: the caller asks `score` instead.
    skip_logits: bool

    @property
    def can_score(self) -> bool:
        """Whether `score` works: it needs the rows of lm_head whole and as they were loaded."""
        ...

    def score(self, hidden_states: torch.Tensor, ids: tuple[int, ...]) -> torch.Tensor:
        """Logits of a few tokens: [n, dim] and k ids to [n, k]."""
        ...

    def decode_spatial(
        self, hidden_states: torch.Tensor, sampled_token_ids: torch.Tensor, *, sizes: bool = True
    ) -> torch.Tensor:
        """Read the values behind sampled placeholders.

        ``hidden_states`` is [n, dim], ``sampled_token_ids`` [n, 1]; returns [n, 1] of the same
        dtype in which coord and size ids are virtual ids and every other id is unchanged.
        Without ``sizes`` a sampled size may stay as it is: the caller wants none. Stays on the
        device; no host synchronisation.
        """
        ...
