"""Prefix-LM attention on vLLM's CPU backend.

Moondream's image prefix attends to all of itself, everything after it only to the past. The CPU
kernel knows causal and full attention, one per row of the batch, so a request whose new tokens
cover a prefix is handed to it as up to three rows over one block table: what lies before the
prefix (causal), the prefix (full, its keys end with it), and the rest (causal). Keys and values of
all new tokens are in the cache before the kernel runs, so this is exact. On GPUs vLLM's own
backends do it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.attention.backends.cpu_attn import (
    CPUAttentionBackend,
    CPUAttentionMetadata,
    CPUAttentionMetadataBuilder,
)

from vllm_photon.compat import causal_dtype


class PrefixSplitError(RuntimeError):
    """Invariant I11: a step holds only a part of what is left of an image prefix."""


class Row(NamedTuple):
    """One attention row: its request, its first query, how many keys it sees, how it sees them."""

    request: int
    query_start: int
    seq_len: int
    causal: bool


def split_rows(
    query_starts: Sequence[int],
    seq_lens: Sequence[int],
    prefixes: Mapping[int, Sequence[tuple[int, int]]],
) -> list[Row]:
    """Rows of a batch, in order of their queries.

    ``query_starts`` [n + 1] are offsets into the step's tokens, ``seq_lens`` [n] count the keys of
    each request including the new ones, ``prefixes`` gives the full-attention ranges of a request
    as inclusive positions. Raises PrefixSplitError when a range reaches beyond the new tokens.
    """
    rows = []
    for request, seq_len in enumerate(seq_lens):
        start, stop = query_starts[request], query_starts[request + 1]
        computed = seq_len - (stop - start)
        done = computed
        for first, last in sorted(prefixes.get(request) or ()):
            if last < computed or first >= seq_len:
                continue
            if last >= seq_len:
                raise PrefixSplitError(
                    f"invariant I11: positions {first} to {last} of request row {request} attend "
                    f"to each other, but this step ends at {seq_len - 1}"
                )
            first = max(first, computed)
            if first > done:
                rows.append(Row(request, start + done - computed, first, True))
            rows.append(Row(request, start + first - computed, last + 1, False))
            done = last + 1
        if done < seq_len or start == stop:
            rows.append(Row(request, start + done - computed, seq_len, True))
    return rows


class PrefixAttentionMetadataBuilder(CPUAttentionMetadataBuilder):
    """The CPU backend's builder, given more rows than there are requests."""

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,
    ) -> CPUAttentionMetadata:
        """See the base class; raises PrefixSplitError."""
        meta = common_attn_metadata
        prefixes = meta.mm_req_doc_ranges
        if prefixes and any(prefixes.values()):
            n = meta.num_reqs
            starts = meta.query_start_loc[: n + 1].tolist()
            rows = split_rows(starts, meta.seq_lens[:n].tolist(), prefixes)
            if len(rows) > n or not all(row.causal for row in rows):
                meta = _as_rows(meta, rows, starts[n])
        return super().build(common_prefix_len, meta, fast_build)


class PrefixAttentionBackend(CPUAttentionBackend):
    """For ``Attention(..., attn_backend=...)`` of one model; the name stays the CPU backend's."""

    @classmethod
    def supports_mm_prefix(cls) -> bool:
        """True: ranges of multimodal positions attend in both directions."""
        return True

    @staticmethod
    def get_builder_cls() -> type[PrefixAttentionMetadataBuilder]:
        """The builder that splits rows."""
        return PrefixAttentionMetadataBuilder


def _as_rows(
    meta: CommonAttentionMetadata, rows: Sequence[Row], num_tokens: int
) -> CommonAttentionMetadata:
    requests, starts, seq_lens, causal = zip(*rows, strict=True)
    bounds = torch.tensor([*starts, num_tokens], dtype=meta.query_start_loc.dtype)
    return meta.replace(
        num_reqs=len(rows),
        query_start_loc=bounds,
        query_start_loc_cpu=bounds,
        seq_lens=torch.tensor(seq_lens, dtype=meta.seq_lens.dtype),
        block_table_tensor=meta.block_table_tensor[list(requests)].contiguous(),
        max_query_len=int(bounds.diff().max()),
        causal=torch.tensor(causal, dtype=causal_dtype()),
    )
