"""The processor of model runner V2 alone, with the runner's request slots played here."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from vllm import SamplingParams
from vllm.exceptions import VLLMValidationError
from vllm.v1.worker.gpu.sample.logits_processor import LogitsContext

from tests.runner_v2.workloads import CHECKPOINT, VOCAB
from vllm_photon.logits_processors import v1, v2
from vllm_photon.logits_processors.v2 import SpatialLogitsProcessor
from vllm_photon.models.hf_config import Moondream2Config
from vllm_photon.spatial.grammar import Cursor, TokenClass, TokenClasses
from vllm_photon.spatial.skills import parse_extra_args
from vllm_photon.spatial.tokens import Coord, Size

CLASSES = TokenClasses(VOCAB)
SLOTS, LONGEST = 3, 64
SKILLS: list[dict[str, Any] | None] = [
    None,
    {"photon_task": "detect", "photon_max_objects": 2},
    {"photon_task": "point", "photon_max_objects": 3},
    {"photon_task": "query", "photon_reasoning": True, "photon_max_reasoning_tokens": 4},
    {"photon_task": "caption"},
]
SAMPLES = {
    TokenClass.TEXT: 77,
    TokenClass.EOS: 0,
    TokenClass.ANSWER: 3,
    TokenClass.COORD: VOCAB.encode(Coord(511)),
    TokenClass.SIZE: VOCAB.encode(Size(3, 1023)),
}


def config() -> Any:
    hf_config = Moondream2Config.from_pretrained(CHECKPOINT)
    return SimpleNamespace(model_config=SimpleNamespace(hf_config=hf_config, model="md2"))


@pytest.fixture(autouse=True)
def copies_to_any_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM's CPU worker, once imported, replaces this copy by one that knows no other device."""
    monkeypatch.setattr(
        v2,
        "async_tensor_h2d",
        lambda data, device, dtype: torch.tensor(data, dtype=dtype, device=device),
    )


class Runner:
    """Slots, fed tokens and positions as model runner V2 keeps them."""

    def __init__(self, device: str = "cpu") -> None:
        self.device = torch.device(device)
        self.history = torch.zeros(SLOTS, LONGEST, dtype=torch.int32)
        self.prompt_len = np.zeros(SLOTS, dtype=np.int32)
        self.prefill_len = np.zeros(SLOTS, dtype=np.int32)
        self.states = SimpleNamespace(
            device=self.device,
            max_num_reqs=SLOTS,
            vocab_size=VOCAB.vocab_size,
            all_token_ids=SimpleNamespace(gpu=self.history.to(self.device)),
            prompt_len=self._mirrored(self.prompt_len),
            prefill_len=self._mirrored(self.prefill_len),
        )
        self.processor = SpatialLogitsProcessor(config(), self.states)

    def _mirrored(self, host: np.ndarray) -> Any:
        return SimpleNamespace(np=host, gpu=torch.from_numpy(host).to(self.device))

    def enter(
        self, slot: int, skill: dict[str, Any] | None, prompt: int, answer: list[int]
    ) -> bool:
        """A request with a prompt of so many tokens enters, with an answer when it is resumed."""
        self.history[slot] = VOCAB.image_id  # whatever an earlier request left
        self.history[slot, prompt : prompt + len(answer)] = torch.tensor(answer, dtype=torch.int32)
        self.prompt_len[slot], self.prefill_len[slot] = prompt, prompt + len(answer)
        constrains = self.processor.add_request(slot, SamplingParams(extra_args=skill))
        self.processor.apply_staged_writes()
        return constrains

    def apply(self, rows: list[tuple[int, int, int]]) -> torch.Tensor:
        """Logits after the masks; a row is its slot, its position and the token it was fed."""
        slots, positions, fed = (torch.tensor(column) for column in zip(*rows, strict=True))
        index = slots.to(torch.int32).to(self.device)
        context = LogitsContext(
            expanded_idx_mapping=index,
            idx_mapping=index,
            idx_mapping_np=slots.numpy(),
            expanded_local_pos=torch.zeros_like(index),
            input_ids=fed.to(torch.int32).to(self.device),
            pos=positions.to(self.device),
            seq_lens_upper_bound_np=positions.numpy() + 1,
        )
        logits = torch.zeros(len(rows), VOCAB.vocab_size, device=self.device)
        return self.processor.apply(logits, context)


class Request:
    """A request in a slot, with the walk that it should take."""

    def __init__(self, runner: Runner, slot: int, skill: dict[str, Any] | None) -> None:
        self.runner, self.slot, self.skill = runner, slot, skill
        self.prompt, self.position = 4, 0
        self.answer: list[int] = []
        self.enter()

    def enter(self) -> None:
        """Enter the slot, for the first time or after a preemption."""
        self.position = 0
        constrains = self.runner.enter(self.slot, self.skill, self.prompt, self.answer)
        assert constrains == (self.skill is not None)

    def advance(self, chunk: int) -> tuple[int, int, int]:
        """The row of the next step: a chunk of the refill, or the last token of the answer."""
        filled = self.prompt + len(self.answer)
        refill = int(self.runner.prefill_len[self.slot])
        self.position = min(self.position + chunk, refill) if self.position < refill else filled
        at = self.position - 1
        fed = self.answer[at - self.prompt] if at >= self.prompt else VOCAB.image_id
        return self.slot, at, fed

    @property
    def samples(self) -> bool:
        """Whether this step's sampled token counts: the refill is done."""
        return self.position == self.prompt + len(self.answer)

    def allowed(self) -> set[TokenClass]:
        """What the walk allows next."""
        return set(TokenClass) if self.skill is None else set(self.cursor().allowed)

    def cursor(self) -> Cursor:
        """The walk along the answer, of a request with a skill."""
        skill = parse_extra_args(self.skill)
        assert skill is not None
        cursor = Cursor(CLASSES, skill.start, skill.cap)
        cursor.advance(self.answer)
        return cursor

    def check(self, logits: torch.Tensor, decodes: bool, draw: Any) -> None:
        """The masks are those of the walk; then sample one of what is allowed."""
        allowed = self.allowed()
        assert decodes == (self.skill is not None and self.cursor().decodes)
        expected = [CLASSES.class_of(token) in allowed for token in range(VOCAB.vocab_size)]
        assert torch.isfinite(logits).tolist() == expected
        self.answer.append(SAMPLES[draw(st.sampled_from(sorted(allowed)))])


@settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.data())
def test_masks_are_those_of_the_walk_whatever_happens(data: st.DataObject) -> None:
    """Chunked prefills, skipped steps, preemption and resumption, slots used again."""
    runner = Runner()
    requests: dict[int, Request] = {}
    for _ in range(25):
        slot = data.draw(st.integers(0, SLOTS - 1))
        event = data.draw(st.sampled_from(["step", "step", "step", "preempt", "new"]))
        if event == "new" or slot not in requests:
            requests[slot] = Request(runner, slot, data.draw(st.sampled_from(SKILLS)))
        elif event == "preempt":
            requests[slot].enter()
        batch = [r for r in requests.values() if data.draw(st.booleans())] or [requests[slot]]
        rows = [request.advance(data.draw(st.integers(1, 5))) for request in batch]
        logits = runner.apply(rows)
        mask = runner.processor.decode_mask
        for row, request in enumerate(batch):
            if request.samples:
                decodes = mask is not None and bool(mask[row])
                if decodes and TokenClass.SIZE in request.allowed():
                    assert runner.processor.decode_sizes
                request.check(logits[row], decodes, data.draw)


def test_a_batch_without_skills_is_left_alone() -> None:
    runner = Runner()
    runner.enter(0, SKILLS[1], 2, [])
    runner.apply([(0, 1, 9)])
    assert runner.processor.decode_mask is not None
    runner.enter(1, None, 2, [])
    assert torch.isfinite(runner.apply([(1, 1, 9)])).all()
    assert runner.processor.decode_mask is None


def test_points_alone_need_no_head_for_sizes() -> None:
    runner = Runner()
    runner.enter(0, {"photon_task": "point"}, 2, [])
    runner.enter(1, {"photon_task": "detect"}, 2, [])
    for rows, sizes in (([0], False), ([0, 1], True), ([1], True), ([0], False)):
        runner.apply([(slot, 1, 9) for slot in rows])
        assert runner.processor.decode_mask is not None
        assert runner.processor.decode_sizes is sizes


@pytest.mark.parametrize("answer", [[], [SAMPLES[TokenClass.COORD]] * 2])
def test_no_host_wait(answer: list[int]) -> None:
    """On the meta device tensors have no values: whatever asks for one raises."""
    runner = Runner("meta")
    for slot, skill in enumerate(SKILLS[:SLOTS]):
        runner.enter(slot, skill, 4, answer)
    logits = runner.apply([(slot, 4 + len(answer), 5) for slot in range(SLOTS)])
    assert logits.is_meta
    assert runner.processor.decode_mask is not None


def test_the_meta_device_shows_a_host_wait() -> None:
    values = torch.zeros(3, device="meta")
    for wait in (torch.Tensor.item, torch.Tensor.tolist, torch.Tensor.cpu, torch.nonzero):
        with pytest.raises((RuntimeError, NotImplementedError)):
            wait(values[:1] if wait is torch.Tensor.item else values)
    with pytest.raises((RuntimeError, NotImplementedError)):
        values[values > 0]


REFUSED = [
    ({"photon_task": "fly"}, {}),
    ({"photon_task": "detect", "photon_max_objects": 0}, {}),
    ({"photon_max_objects": 3}, {}),
    ({"photon_task": "detect"}, {"presence_penalty": 0.5}),
    ({"photon_task": "point"}, {"stop": ["x"]}),
]


@pytest.mark.parametrize(("extra_args", "params"), REFUSED)
def test_arguments_are_refused_as_on_v1(extra_args: dict[str, Any], params: dict[str, Any]) -> None:
    given_params = SamplingParams(extra_args=extra_args, **params)
    errors = []
    for processor in (SpatialLogitsProcessor, v1.SpatialLogitsProcessor):
        with pytest.raises(VLLMValidationError) as caught:
            processor.validate_params(given_params)
        errors.append((str(caught.value), caught.value.parameter))
    assert errors[0] == errors[1]


def test_a_model_without_skills_is_refused() -> None:
    llama = SimpleNamespace(model_config=SimpleNamespace(hf_config=SimpleNamespace(), model="x"))
    with pytest.raises(ValueError, match="x has no spatial skills"):
        SpatialLogitsProcessor(llama, Runner().states)
