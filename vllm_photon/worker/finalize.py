"""The finalize stage: placeholders become virtual ids, and vLLM's sampler learns to live with them.

A virtual id is at or above the vocabulary size V (:mod:`vllm_photon.spatial.tokens`), so no tensor
of width V may ever be indexed by one (I10). On model runner V1 that happens in three places of the
sampler; :class:`SpatialSampler` covers them. Model runner V2's places are in
:mod:`vllm_photon.worker.guards_v2`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

import torch
from vllm.v1.sample.sampler import Sampler

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vllm.v1.outputs import LogprobsTensors, SamplerOutput
    from vllm.v1.sample.metadata import SamplingMetadata
    from vllm.v1.worker.gpu.sample.output import SamplerOutput as SamplerOutputV2

    from vllm_photon.models.interfaces import SupportsSpatial

    AnyOutput: TypeAlias = SamplerOutput | SamplerOutputV2


def decode_rows(
    model: SupportsSpatial,
    hidden_states: torch.Tensor,
    output: AnyOutput,
    rows: Sequence[int],
) -> None:
    """Replace, in place, the placeholders sampled in ``rows`` by virtual ids.

    ``hidden_states`` is [n, dim], row by row what the sampled logits came from. The sampled
    column of the logprobs is renamed too, so that it still names the sampled token.
    """
    if not rows:
        return
    sampled = output.sampled_token_ids
    decoded = model.decode_spatial(hidden_states, sampled)
    if len(rows) == len(sampled):
        sampled.copy_(decoded)
    else:
        index = torch.tensor(rows, device=sampled.device)
        sampled[index] = decoded[index]
    _rename_sampled(output)


def decode_masked(
    model: SupportsSpatial,
    hidden_states: torch.Tensor,
    output: AnyOutput,
    mask: torch.Tensor,
    *,
    sizes: bool,
) -> None:
    """As :func:`decode_rows`, for the rows of a device mask, bool [n]; no host wait.

    ``sizes`` is False when the host knows that no row of the mask can have sampled a size.
    """
    sampled = output.sampled_token_ids
    decoded = model.decode_spatial(hidden_states, sampled, sizes=sizes)
    sampled.copy_(torch.where(mask[:, None], decoded, sampled))
    _rename_sampled(output)


def _rename_sampled(output: AnyOutput) -> None:
    logprobs = output.logprobs_tensors
    if logprobs is not None and logprobs.logprob_token_ids.numel():
        logprobs.logprob_token_ids[:, 0] = output.sampled_token_ids[:, 0]


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
