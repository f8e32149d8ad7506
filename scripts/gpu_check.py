"""Everything about a GPU that a CPU can't show, in one run and one table.

``python -m scripts.gpu_check`` on a machine with a CUDA GPU and a CUDA vLLM. It checks that pinned
copies, the grammar, the region heads and whole steps of an engine never wait for the device, that a
step's slot is kept until its copy is done, that Moondream 2 answers as its published reference, and
that pipelined and blocking engines answer alike. Where there is no GPU it says so and ends with 2;
a failed check ends it with 1.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch

ROOT = Path(__file__).parents[1]
DEVICE = torch.device("cuda")
ENGINE_PATIENCE_S = 600
ROWS, VOCAB_SIZE, DIM = 64, 51200, 2048

Result = TypeVar("Result")


@contextmanager
def no_host_wait() -> Iterator[None]:
    """PyTorch raises on whatever waits for the GPU."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@contextmanager
def busy_device() -> Iterator[Callable[[], bool]]:
    """Keeps the current stream busy for some time; gives a test of whether it still is."""
    done = torch.cuda.Event()
    torch.cuda._sleep(200_000_000)
    done.record()
    yield lambda: not done.query()
    torch.cuda.synchronize()


def enqueue(work: Callable[[], Result], what: str) -> Result:
    """What ``work`` gives when it is enqueued behind a busy stream; it must not wait for it.

    It runs once before, since the first call of a kernel loads it, which does wait.
    """
    work()
    with busy_device() as busy, no_host_wait():
        result = work()
        assert busy(), f"{what} waited for the device"
    return result


def check_device() -> str:
    """Which GPU, with which vLLM and PyTorch."""
    import vllm
    from vllm.platforms import current_platform

    assert current_platform.is_cuda(), f"vLLM's platform is {current_platform.device_name}"
    memory = torch.cuda.get_device_properties(0).total_memory / 2**30
    versions = f"vLLM {vllm.__version__}, torch {torch.__version__}"
    return f"{torch.cuda.get_device_name(0)}, {memory:.0f} GiB, {versions}"


def check_trap() -> str:
    """The next checks mean something: a wait is caught, and a busy stream is seen to be busy."""
    one = torch.ones(1, device=DEVICE)
    with busy_device() as busy, no_host_wait():
        assert busy(), "the stream is idle"
        try:
            one.item()
        except RuntimeError:
            pass
        else:
            raise AssertionError("a wait went unnoticed")
    return "a wait is caught"


def check_pinned_copy() -> str:
    """A copy of host numbers is enqueued behind a busy stream and arrives whole."""
    from vllm.utils.torch_utils import async_tensor_h2d

    numbers = list(range(4096))
    copied = enqueue(lambda: async_tensor_h2d(numbers, DEVICE, torch.int64), "the copy")
    assert copied.tolist() == numbers
    return "4096 numbers behind a busy stream"


def check_grammar() -> str:
    """Masks and states of a batch, and the replay of long answers."""
    from vllm_photon.logits_processors.device_grammar import DeviceGrammar
    from vllm_photon.spatial.grammar import State, TokenClasses
    from vllm_photon.spatial.tokens import SpatialVocab

    vocab = SpatialVocab(VOCAB_SIZE)
    grammar = DeviceGrammar(TokenClasses(vocab), DEVICE)
    kinds = torch.tensor([vocab.vocab_size, vocab.vocab_size + 1, vocab.vocab_size + 5000])
    ids = kinds.repeat(ROWS, 250).to(DEVICE)  # 250 boxes
    start = torch.full((ROWS,), int(State.DETECT_X)).to(DEVICE)
    lengths = torch.arange(3, 3 + ROWS).to(DEVICE)
    live = torch.ones(ROWS, dtype=torch.bool).to(DEVICE)

    def work() -> tuple[torch.Tensor, ...]:
        places = torch.stack((start, torch.ones_like(start)), dim=1)
        for step in range(3):
            places = grammar.advance(places, ids[:, step], live)
        banned, mask = grammar.banned(places), grammar.decodes(places)
        return *grammar.replay(start, ids, lengths), banned, mask

    replayed, boxes, banned, mask = enqueue(work, "the grammar")
    kinds_of_box = (State.DETECT_X, State.DETECT_Y, State.DETECT_SIZE)
    assert replayed.tolist() == [int(kinds_of_box[n % 3]) for n in range(3, 3 + ROWS)]
    assert boxes.tolist() == [n // 3 for n in range(3, 3 + ROWS)]
    assert (~banned).nonzero()[:, 1].tolist() == [0] * ROWS, "at the cap only EOS is allowed"
    assert mask.all()
    return f"{ROWS} rows, answers of up to {ids.shape[1]} tokens"


def check_region() -> str:
    """Placeholders to virtual ids and back, as on a CPU."""
    from types import SimpleNamespace

    from tests.loading import loaded
    from vllm_photon.models.hf_config import Region
    from vllm_photon.models.region import RegionHeads
    from vllm_photon.spatial.tokens import SpatialVocab
    from vllm_photon.worker.finalize import decode_masked

    torch.manual_seed(0)
    vocab = SpatialVocab(VOCAB_SIZE)
    region = RegionHeads(Region(), vocab).eval().requires_grad_(False)
    for parameter in region.parameters():
        torch.nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5)
    loaded(region)
    hidden = torch.randn(ROWS, DIM)
    sampled = torch.tensor([[5, 6, 77, 0][row % 4] for row in range(ROWS)])[:, None]
    mask = torch.tensor([row % 8 < 4 for row in range(ROWS)])
    on_cpu = torch.where(mask[:, None], region.decode(hidden, sampled), sampled)
    region.to(DEVICE)
    hidden, on_device, mask = hidden.to(DEVICE), sampled.to(DEVICE), mask.to(DEVICE)
    model: Any = SimpleNamespace(decode_spatial=region.decode)

    def work() -> torch.Tensor:
        output: Any = SimpleNamespace(sampled_token_ids=on_device.clone(), logprobs_tensors=None)
        decode_masked(model, hidden, output, mask, sizes=True)
        return output.sampled_token_ids

    ids = enqueue(work, "the region heads")
    same = int((ids.cpu() == on_cpu).sum())
    assert same >= ROWS - 1, f"{ROWS - same} of {ROWS} values differ from the CPU's"
    return f"{ROWS} rows; {same} equal the CPU's"


def check_slots() -> str:
    """Two steps in flight on two streams; a third finds no slot until the oldest was read."""
    from vllm.v1.outputs import ModelRunnerOutput
    from vllm.v1.worker.gpu.async_utils import AsyncOutput
    from vllm.v1.worker.gpu.sample.output import SamplerOutput

    from vllm_photon.worker.slots import DecodeSlots, SlotError

    main, copies = torch.cuda.current_stream(), torch.cuda.Stream()
    slots = DecodeSlots(2)
    one = torch.ones(1, dtype=torch.int32, device=DEVICE)

    def step(token: int) -> AsyncOutput:
        sampled = torch.full((1, 1), token, dtype=torch.int64, device=DEVICE)
        return AsyncOutput(
            model_runner_output=ModelRunnerOutput(
                req_ids=["a"],
                req_id_to_index={"a": 0},
                sampled_token_ids=None,
                prompt_logprobs_dict={},
            ),
            sampler_output=SamplerOutput(sampled, None, None, one, one),
            num_sampled_tokens=one,
            main_stream=main,
            copy_stream=copies,
            check_ep_fault=False,
            pending_aux_output=None,
        )

    step(0).get_output()
    with busy_device() as busy, no_host_wait():
        first, second = slots.launch(step(1)), slots.launch(step(2))
        third = step(3)
        try:
            slots.launch(third)
        except SlotError:
            pass
        else:
            raise AssertionError("a slot was used again before its output was read")
        assert busy(), "launching waited for the device"
    tokens = [output.get_output().sampled_token_ids for output in (first, second)]
    assert tokens == [[[1]], [[2]]]
    assert slots.launch(third).get_output().sampled_token_ids == [[3]]
    return "tokens in order; the third step was refused a slot"


def check_engines() -> str:
    """Oracle and identity, with vLLM's check that no step waits for the device."""
    answers = {}
    with tempfile.TemporaryDirectory() as folder:
        for mode in ("pipelined", "blocking"):
            out = Path(folder) / mode
            command = [sys.executable, "-m", "tests.runner_v2.drive", "gpu", mode, str(out)]
            ran = subprocess.run(
                command, cwd=ROOT, capture_output=True, text=True, timeout=ENGINE_PATIENCE_S
            )
            assert ran.returncode == 0, f"{mode}: {ran.stdout[-2000:]}{ran.stderr[-2000:]}"
            answers[mode] = json.loads(out.read_text())
    return compare_engines(answers["pipelined"], answers["blocking"])


def compare_engines(pipelined: dict[str, Any], blocking: dict[str, Any]) -> str:
    """What ``tests.runner_v2.drive`` wrote for both modes: as the reference, and alike."""
    from tests.runner_v2.workloads import oracle, workloads

    runner, in_flight = pipelined["crowd"]["runner"], pipelined["crowd"]["in_flight"]
    assert runner == "RunnerV2Mixin", f"the engine ran on {runner}"
    assert in_flight == 2, f"{in_flight} steps in flight"
    expected = oracle()
    wrong = [
        case
        for (case, (_, tokens)), outcome in zip(
            expected.items(), pipelined["oracle"]["outcomes"], strict=True
        )
        if outcome["tokens"] != tokens
    ]
    assert not wrong, f"not as the reference: {wrong}"
    requests = 0
    for name in workloads():
        pairs = zip(pipelined[name]["outcomes"], blocking[name]["outcomes"], strict=True)
        for index, (ours, reference) in enumerate(pairs):
            requests += 1
            assert ours["tokens"] == reference["tokens"], f"{name}, request {index}: tokens differ"
    return f"{len(expected)} oracle cases, {requests} requests alike in both modes"


CHECKS = (
    check_device,
    check_trap,
    check_pinned_copy,
    check_grammar,
    check_region,
    check_slots,
    check_engines,
)


def main() -> int:
    """Run the checks; the exit status."""
    if not torch.cuda.is_available():
        print("gpu_check needs a CUDA GPU and a CUDA build of PyTorch, and found none.")
        return 2
    failed = 0
    print(f"{'check':<14} {'result':<7} {'seconds':>7}  detail")
    for check in CHECKS:
        began = time.perf_counter()
        try:
            result, detail = "ok", check()
        except Exception as error:
            traceback.print_exc()
            result, detail = "FAILED", f"{type(error).__name__}: {error}".splitlines()[0]
            failed += 1
        seconds = time.perf_counter() - began
        print(f"{check.__name__[6:]:<14} {result:<7} {seconds:>7.1f}  {detail}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
