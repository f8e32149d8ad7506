"""Prefix-LM attention on the CPU backend against torch with an explicit mask."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch.nn import functional as F

from vllm_photon import models
from vllm_photon.models.prefix_attention import (
    PrefixAttentionBackend,
    PrefixSplitError,
    Row,
    split_rows,
)

MD2 = Path(__file__).parents[1] / "data" / "oracle" / "md2"
IMAGE = [(0, 729)]


class Request(NamedTuple):
    seq_len: int
    new: int
    prefixes: list[tuple[int, int]]


CASES = {
    "image prefill": [Request(743, 743, IMAGE)],
    "text prefill beside a decode": [Request(40, 40, []), Request(300, 1, [])],
    "mixed": [
        Request(800, 1, IMAGE),
        Request(760, 1, IMAGE),
        Request(57, 57, []),
        Request(743, 743, IMAGE),
        Request(1, 1, []),
        Request(751, 751, IMAGE),
    ],
    "nothing after the prefix": [Request(730, 730, IMAGE), Request(9, 9, [])],
    "cached up to inside the prefix": [Request(750, 110, IMAGE), Request(12, 12, [])],
    "cached beyond the prefix": [Request(790, 22, IMAGE), Request(745, 745, IMAGE)],
    "prefix all cached": [Request(740, 10, IMAGE)],
    "text first, two ranges": [Request(500, 500, [(17, 200), (230, 400)])],
    "tiny prefix": [Request(9, 9, [(0, 4)]), Request(9, 2, [(0, 4)])],
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(2, 2, 64), (4, 1, 32)])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-5), (torch.bfloat16, 3e-2)])
def test_equals_masked_attention(
    case: str, heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype, tolerance: float
) -> None:
    requests = CASES[case]
    torch.manual_seed(0)
    keys = [torch.randn(r.seq_len, kv_heads, head_dim, dtype=dtype) for r in requests]
    values = [torch.randn_like(k) for k in keys]
    queries = [torch.randn(r.new, heads, head_dim, dtype=dtype) for r in requests]
    got = run_backend(requests, queries, keys, values)
    for request, q, k, v, out in zip(requests, queries, keys, values, got, strict=True):
        at = torch.arange(request.seq_len - request.new, request.seq_len)[:, None]
        seen = torch.arange(request.seq_len)[None]
        mask = seen <= at
        for first, last in request.prefixes:
            mask |= (at >= first) & (at <= last) & (seen >= first) & (seen <= last)
        expected = F.scaled_dot_product_attention(
            *(x.double().transpose(0, 1)[None] for x in (q, k, v)),
            attn_mask=mask,
            enable_gqa=heads != kv_heads,
        )[0].transpose(0, 1)
        assert (out.double() - expected).abs().max() <= tolerance


def run_backend(
    requests: list[Request],
    queries: list[torch.Tensor],
    keys: list[torch.Tensor],
    values: list[torch.Tensor],
    block_size: int = 32,
) -> list[torch.Tensor]:
    """One attention layer over a paged cache filled with garbage and scattered blocks."""
    from vllm.config import CacheConfig, ModelConfig, VllmConfig, set_current_vllm_config
    from vllm.model_executor.layers.attention import Attention
    from vllm.v1.attention.backend import CommonAttentionMetadata
    from vllm.v1.kv_cache_interface import FullAttentionSpec

    models.register()
    torch.cpu._init_amx()  # In a worker oneDNN has asked the kernel for AMX long before.
    heads, head_dim = queries[0].shape[1:]
    kv_heads, dtype = keys[0].shape[1], keys[0].dtype
    model = ModelConfig(model=str(MD2), dtype=dtype, skip_tokenizer_init=True)
    config = VllmConfig(model_config=model, cache_config=CacheConfig(block_size=block_size))
    previous = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with set_current_vllm_config(config):
            layer = Attention(
                heads,
                head_dim,
                head_dim**-0.5,
                num_kv_heads=kv_heads,
                cache_config=config.cache_config,
                prefix="layer.0.attn",
                attn_backend=PrefixAttentionBackend,
            )
            layer._k_scale_float = layer._v_scale_float = 1.0
            builder = PrefixAttentionBackend.get_builder_cls()(
                FullAttentionSpec(
                    block_size=block_size, num_kv_heads=kv_heads, head_size=head_dim, dtype=dtype
                ),
                ["layer.0.attn"],
                config,
                torch.device("cpu"),
            )
    finally:
        torch.set_default_dtype(previous)
    counts = [-(-r.seq_len // block_size) for r in requests]
    blocks = (torch.randperm(sum(counts)) + 1).int().split(counts)
    table = torch.nn.utils.rnn.pad_sequence(list(blocks), batch_first=True)
    cache = torch.full((sum(counts) + 1, kv_heads, block_size, 2 * head_dim), 50.0, dtype=dtype)

    def slots(index: int, first: int, last: int) -> torch.Tensor:
        at = torch.arange(first, last)
        return table[index, at // block_size].long() * block_size + at % block_size

    for i, request in enumerate(requests):
        layer.impl.do_kv_cache_update(
            layer, keys[i], values[i], cache, slots(i, 0, request.seq_len)
        )
    starts = torch.tensor([0, *accumulate(r.new for r in requests)], dtype=torch.int32)
    meta = CommonAttentionMetadata(
        query_start_loc=starts,
        query_start_loc_cpu=starts,
        seq_lens=torch.tensor([r.seq_len for r in requests], dtype=torch.int32),
        num_reqs=len(requests),
        num_actual_tokens=int(starts[-1]),
        max_query_len=max(r.new for r in requests),
        max_seq_len=max(r.seq_len for r in requests),
        block_table_tensor=table,
        slot_mapping=torch.cat(
            [slots(i, r.seq_len - r.new, r.seq_len) for i, r in enumerate(requests)]
        ),
        causal=True,
        mm_req_doc_ranges={i: r.prefixes for i, r in enumerate(requests)},
    )
    query = torch.cat(queries)
    new_keys = torch.cat([k[len(k) - r.new :] for k, r in zip(keys, requests, strict=True)])
    new_values = torch.cat([v[len(v) - r.new :] for v, r in zip(values, requests, strict=True)])
    out = torch.zeros_like(query)
    layer.impl.forward(layer, query, new_keys, new_values, cache, builder.build(0, meta), out)
    return list(out.split([r.new for r in requests]))


def test_rows_of_an_image_prefill() -> None:
    rows = split_rows([0, 743, 744], [743, 800], {0: IMAGE, 1: IMAGE})
    assert rows == [Row(0, 0, 730, False), Row(0, 730, 743, True), Row(1, 743, 800, True)]


def test_padding_rows_stay() -> None:
    rows = split_rows([0, 740, 740], [740, 0], {0: IMAGE})
    assert rows[-1] == Row(1, 740, 0, True)


def test_i11_a_prefix_in_two_steps_is_refused() -> None:
    with pytest.raises(PrefixSplitError, match="I11"):
        split_rows([0, 500], [500], {0: IMAGE})


def test_backend_keeps_the_platform_name() -> None:
    """vLLM looks its backend up by name; another one would be rejected."""
    assert PrefixAttentionBackend.get_name() == "CPU_ATTN"
    assert PrefixAttentionBackend.supports_mm_prefix()
