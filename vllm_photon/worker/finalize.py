"""The finalize stage: placeholders become virtual ids, and vLLM's sampler learns to live with them.

A virtual id is at or above the vocabulary size V (:mod:`vllm_photon.spatial.tokens`), so no tensor
of width V may ever be indexed by one (I10). On model runner V1 that happens in three places of the
sampler; :class:`SpatialSampler` covers them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from vllm.v1.sample.sampler import Sampler

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vllm.v1.outputs import LogprobsTensors, SamplerOutput
    from vllm.v1.sample.metadata import SamplingMetadata

    from vllm_photon.models.interfaces import SupportsSpatial


def decode_rows(
    model: SupportsSpatial,
    hidden_states: torch.Tensor,
    output: SamplerOutput,
    rows: Sequence[int],
) -> None:
    """Replace, in place, the placeholders sampled in ``rows`` by virtual ids.

    ``hidden_states`` is [n, dim], row by row what the sampled logits came from. The sampled
    column of the logprobs is renamed too, so that it still names the sampled token.
    """
    if not rows:
        return
    index = torch.tensor(rows, device=hidden_states.device)
    sampled = output.sampled_token_ids
    sampled[index] = model.decode_spatial(hidden_states[index], sampled[index])
    logprobs = output.logprobs_tensors
    if logprobs is not None and logprobs.logprob_token_ids.numel():
        ids = logprobs.logprob_token_ids
        ids[index, 0] = sampled[index, 0].to(ids.dtype)


class SpatialSampler(Sampler):
    """vLLM's sampler (``v1/sample/sampler.py``), safe beside requests that hold virtual ids.

    A spatial request counts nothing and is counted by nobody: its ids go to the padding column
    of the penalties' histogram, and a virtual id has no logprob of its own (-inf).
    """

    @staticmethod
    def apply_penalties(
        logits: torch.Tensor,
        sampling_metadata: SamplingMetadata,
        output_token_ids: list[list[int]],
    ) -> torch.Tensor:
        if sampling_metadata.no_penalties:
            return logits
        padding = logits.shape[-1]
        prompts = sampling_metadata.prompt_token_ids
        assert prompts is not None
        return Sampler.apply_penalties(
            logits,
            replace(sampling_metadata, prompt_token_ids=prompts.clamp(max=padding)),
            [[min(token, padding) for token in row] for row in output_token_ids],
        )

    @staticmethod
    def gather_logprobs(
        logprobs: torch.Tensor, num_logprobs: int, token_ids: torch.Tensor
    ) -> LogprobsTensors:
        width = logprobs.shape[-1]
        gathered = Sampler.gather_logprobs(logprobs, num_logprobs, token_ids.clamp(max=width - 1))
        virtual = token_ids >= width
        ids = gathered.logprob_token_ids
        ids[:, 0] = torch.where(virtual, token_ids.to(ids.dtype), ids[:, 0])
        gathered.logprobs[:, 0].masked_fill_(virtual, float("-inf"))
        return gathered
