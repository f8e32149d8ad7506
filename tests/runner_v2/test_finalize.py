"""The finalize stage and the guards of model runner V2, without a runner and without kernels."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from vllm.v1.outputs import LogprobsTensors
from vllm.v1.worker.gpu.sample import penalties as stock_penalties
from vllm.v1.worker.gpu.sample.logits_processor import LogitsProcRequestState
from vllm.v1.worker.gpu.sample.penalties import PenaltiesState
from vllm.v1.worker.gpu.sample.prompt_logprob import PromptLogprobsWorker

from tests.loading import loaded
from vllm_photon.models.hf_config import Region
from vllm_photon.models.region import RegionHeads
from vllm_photon.spatial.tokens import Coord, Size, SpatialVocab
from vllm_photon.worker import guards_v2
from vllm_photon.worker.finalize import decode_masked
from vllm_photon.worker.guards_v2 import SpatialPenalties, SpatialPromptLogprobs
from vllm_photon.worker.runner_v2 import RunnerV2Mixin

VOCAB = SpatialVocab(40)
DIM = 8
COORD, SIZE = VOCAB.encode(Coord(7)), VOCAB.encode(Size(1023, 0))


@pytest.fixture(params=["cpu", "meta"])
def device(request: pytest.FixtureRequest) -> str:
    """On meta, tensors have no values: whatever waits for one raises."""
    return request.param


class Model:
    """Region heads with random weights."""

    spatial_vocab = VOCAB

    def __init__(self, device: str) -> None:
        torch.manual_seed(0)
        config = Region(dim=DIM, coord_feat_dim=4, size_feat_dim=4, inner_dim=6)
        self.region = RegionHeads(config, VOCAB).to(device).eval()
        for parameter in self.region.parameters():
            torch.nn.init.normal_(parameter)
        loaded(self.region)

    @torch.no_grad()
    def decode_spatial(
        self, hidden_states: torch.Tensor, sampled: torch.Tensor, *, sizes: bool = True
    ) -> torch.Tensor:
        return self.region.decode(hidden_states, sampled, sizes=sizes)


def test_decode_masked(device: str) -> None:
    model = Model(device)
    sampled = torch.tensor([[5], [5], [6], [30], [6]], device=device)
    mask = torch.tensor([True, False, True, True, False], device=device)
    hidden = torch.ones(5, DIM, device=device)
    logprobs = LogprobsTensors(
        sampled.repeat(1, 3), torch.zeros(5, 3, device=device), torch.ones(5, device=device)
    )
    output = SimpleNamespace(sampled_token_ids=sampled.clone(), logprobs_tensors=logprobs)
    decode_masked(model, hidden, output, mask, sizes=True)
    if device == "cpu":
        ids = output.sampled_token_ids[:, 0].tolist()
        assert isinstance(VOCAB.decode(ids[0]), Coord)
        assert isinstance(VOCAB.decode(ids[2]), Size)
        assert (ids[1], ids[3], ids[4]) == (5, 30, 6)
        assert logprobs.logprob_token_ids[:, 0].tolist() == ids
        assert logprobs.logprob_token_ids[:, 1].tolist() == sampled[:, 0].tolist()


@pytest.mark.parametrize("sizes", [True, False])
def test_the_head_for_sizes_runs_when_one_may_be_wanted(
    sizes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A text row that samples the size token beside points is left alone either way."""
    model = Model("cpu")
    runner = Runner("cpu", SimpleNamespace(decode_mask=None, decode_sizes=sizes), [])
    runner.model = model
    sampled = torch.tensor([[5], [6], [30]])
    output = SimpleNamespace(sampled_token_ids=sampled.clone(), logprobs_tensors=None)

    def sample(self: Any, *args: Any) -> tuple[Any, None, None]:
        self._spatial.decode_mask = torch.tensor([True, False, False])
        return output, None, None

    asked = []
    monkeypatch.setattr(StockRunner, "sample", sample, raising=False)
    monkeypatch.setattr(
        model.region, "decode", lambda *a, sizes: asked.append(sizes) or torch.full((3, 1), COORD)
    )
    batch: Any = SimpleNamespace(logits_indices=torch.arange(3), idx_mapping_np=np.array([1, 0, 2]))
    runner.sample(torch.ones(3, DIM), batch, None)
    assert asked == [sizes]
    assert output.sampled_token_ids.flatten().tolist() == [COORD, 6, 30]
    assert runner._sampled_rows.tolist() == [1, 0, 2]


class StockRunner:
    """What vLLM's kernel does after sampling, in torch; its histogram has no virtual ids."""

    def postprocess_sampled(
        self,
        idx_mapping: torch.Tensor,
        sampled_tokens: torch.Tensor,
        num_sampled: torch.Tensor,
        num_rejected: torch.Tensor,
        query_start_loc: torch.Tensor | None = None,
    ) -> None:
        states: Any = self.req_states  # type: ignore[attr-defined]
        counts = self.sampler.penalties_state.output_bin_counts  # type: ignore[attr-defined]
        for row, slot in enumerate(idx_mapping if idx_mapping.is_cpu else ()):
            if num_sampled[row] and slot >= 0:
                states.last_sampled_tokens[slot] = sampled_tokens[row]
                states.all_token_ids.gpu[slot, states.total_len.gpu[slot]] = sampled_tokens[row]
                states.total_len.gpu[slot] += 1
                if counts is not None:
                    counts[slot, sampled_tokens[row, 0]] += 1


class Runner(RunnerV2Mixin, StockRunner):
    def __init__(self, device: str, spatial: Any, with_penalties: list[int]) -> None:
        self._spatial = spatial
        self.counts = torch.zeros(4, VOCAB.vocab_size, dtype=torch.int32, device=device)
        self.counts[2, 21] = 3
        penalties = object.__new__(SpatialPenalties)
        penalties.output_bin_counts = self.counts
        penalties.use_penalty = np.isin(np.arange(4), with_penalties)
        self.sampler = SimpleNamespace(penalties_state=penalties)
        self.req_states = SimpleNamespace(
            last_sampled_tokens=torch.full((4, 1), 9, device=device),
            all_token_ids=SimpleNamespace(gpu=torch.full((4, 6), 9, device=device).int()),
            total_len=SimpleNamespace(gpu=torch.tensor([2, 2, 3, 2], device=device).int()),
        )


@pytest.mark.parametrize("with_penalties", [[], [2]], ids=["no penalties", "penalties"])
@pytest.mark.parametrize("spatial", [True, False])
def test_i10_the_history_holds_virtual_ids_and_the_histogram_none(
    device: str, spatial: bool, with_penalties: list[int]
) -> None:
    runner = Runner(device, object() if spatial else None, with_penalties)
    runner._sampled_rows = np.array([3, 0, 2, 1])
    sampled = [COORD if spatial else 20, 8, 21, SIZE if spatial else 22, 23]
    mapping = torch.tensor([3, 0, 2, 1, -1], device=device).int()
    emitted = torch.tensor([1, 0, 1, 1, 1], device=device).int()
    runner.postprocess_sampled(
        mapping, torch.tensor(sampled, device=device)[:, None], emitted, torch.zeros_like(emitted)
    )
    assert runner.sampler.penalties_state.output_bin_counts is runner.counts
    if device == "cpu":
        states = runner.req_states
        assert states.last_sampled_tokens.flatten().tolist() == [9, sampled[3], 21, sampled[0]]
        assert states.all_token_ids.gpu.tolist() == [
            [9] * 6,
            [9, 9, sampled[3], 9, 9, 9],
            [9, 9, 9, 21, 9, 9],
            [9, 9, sampled[0], 9, 9, 9],
        ]
        found = {(s, i): int(runner.counts[s, i]) for s, i in runner.counts.nonzero().tolist()}
        counted = {(2, 21): 4, (3, 20): 1, (1, 22): 1}
        if spatial:
            counted = {(2, 21): 4 if with_penalties else 3}
        assert found == counted


def request_states(
    device: str, rows: list[list[int]], prompts: list[int]
) -> LogitsProcRequestState:
    """Slots that hold ``rows``, of which so many are prompt."""
    longest = max(map(len, rows))
    ids = torch.tensor([[*row, *[VOCAB.image_id] * (longest - len(row))] for row in rows]).int()

    def mirrored(values: list[int]) -> Any:
        host = np.array(values, dtype=np.int32)
        return SimpleNamespace(np=host, gpu=torch.from_numpy(host).to(device))

    unused: Any = None
    return LogitsProcRequestState(
        device=torch.device(device),
        max_num_reqs=len(rows),
        vocab_size=VOCAB.vocab_size,
        all_token_ids=SimpleNamespace(gpu=ids.to(device)),
        prompt_len=mirrored(prompts),
        prefill_len=mirrored([len(row) for row in rows]),
        total_len=unused,
    )


def test_i10_penalties_count_no_virtual_id(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        [0, *[VOCAB.image_id] * 3, 12, COORD, 3, 25, 26],
        [COORD] * 9,
        [0, SIZE, 31, 3, 33],
        [VOCAB.image_id, COORD],
    ]
    states = request_states(device, rows, [7, 9, 4, 2])
    seen: dict[str, Any] = {}

    def bincount(slots: Any, ids: Any, *rest: Any) -> None:
        seen.update(slots=slots, ids=ids, width=rest[-1])

    def copy(data: Any, device: Any = None, dtype: Any = None) -> torch.Tensor:
        return torch.tensor(data, dtype=dtype, device=device)

    monkeypatch.setattr(stock_penalties, "bincount", bincount)
    for module in (guards_v2, stock_penalties):
        monkeypatch.setattr(module, "async_tensor_h2d", copy)
    guard = object.__new__(SpatialPenalties)
    guard.req_states, guard.device = states, states.device
    guard._new_penalties_reqs = [2, 0, 3]
    unused = SimpleNamespace(copy_to_uva=lambda: None)
    guard.prompt_bin_mask = guard.output_bin_counts = torch.empty(0)
    guard.repetition_penalty = guard.frequency_penalty = guard.presence_penalty = unused
    guard.apply_staged_writes()
    assert guard.req_states is states
    assert guard._new_penalties_reqs == []
    assert seen["width"] == 9
    if device == "cpu":
        assert seen["slots"].tolist() == [2, 0, 3]
        assert seen["ids"][0].tolist() == [0, 3, 3, 3, 12, 3, 3, 25, 26]
        assert seen["ids"][2, :5].tolist() == [0, 3, 31, 3, 33]
        assert seen["ids"][3, :2].tolist() == [39, 39]
        assert states.all_token_ids.gpu[0].tolist() == rows[0]


def test_i10_prompt_logprobs_score_no_virtual_id(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = request_states(device, [[9] * 6, [0, COORD, 12, SIZE, 3], [0, 12]], [6, 5, 2])
    history: Any = states.all_token_ids.gpu
    scored = []

    def stock(self: Any, fn: Any, hidden: Any, batch: Any, ids: Any, *rest: Any) -> dict[str, Any]:
        scored.append(ids)
        names = ids[1, 1:5].long()[:, None].repeat(1, 2)
        return {"b": LogprobsTensors(names, torch.zeros(4, 2, device=device), names[:, 0])}

    monkeypatch.setattr(PromptLogprobsWorker, "compute_prompt_logprobs", stock)
    guard = SpatialPromptLogprobs(3, torch.device(device))
    guard.vocab_size = VOCAB.vocab_size
    guard.uses_prompt_logprobs[1] = True
    lengths: Any = states.prompt_len.np
    hidden = torch.zeros(0, device=device)
    for prefilling in (True, False):
        batch: Any = SimpleNamespace(
            req_ids=["a", "b"], idx_mapping_np=np.array([2, 1]), has_prefill=prefilling
        )
        found = guard.compute_prompt_logprobs(len, hidden, batch, history, hidden, lengths)
        if prefilling and device == "cpu":
            assert int(scored[0].max()) < VOCAB.vocab_size
            assert found["b"].logprob_token_ids[:, 0].tolist() == [COORD, 12, SIZE, 3]
            assert found["b"].logprobs[:, 0].tolist() == [-torch.inf, 0, -torch.inf, 0]
            assert found["b"].logprobs[:, 1].tolist() == [0] * 4
    assert scored[1] is history  # steps that score nothing copy nothing


def test_guards_replace_what_the_runner_built() -> None:
    sampler = SimpleNamespace(penalties_state=object.__new__(PenaltiesState))
    prompt_logprobs = PromptLogprobsWorker(1, torch.device("cpu"))
    guards_v2.guard(sampler, prompt_logprobs, 40)
    assert type(sampler.penalties_state) is SpatialPenalties
    assert type(prompt_logprobs) is SpatialPromptLogprobs
    assert prompt_logprobs.vocab_size == 40
