"""``scripts/gpu_check.py`` without a GPU: its refusal, and its checks against a device that waits
for nobody."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

import pytest
import torch

import vllm_photon.worker  # noqa: F401  its CPU worker gives torch.cuda streams that do nothing
from scripts import gpu_check
from tests.runner_v2.conftest import ROOT, Answers


def test_without_a_gpu_it_says_so_in_one_sentence() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "scripts.gpu_check"],
        cwd=ROOT,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.returncode == 2
    assert ran.stdout.strip() == (
        "gpu_check needs a CUDA GPU and a CUDA build of PyTorch, and found none."
    )


@pytest.fixture
def cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def busy() -> Iterator[Callable[[], bool]]:
        yield lambda: True

    monkeypatch.setattr(gpu_check, "DEVICE", torch.device("cpu"))
    monkeypatch.setattr(gpu_check, "busy_device", busy)
    monkeypatch.setattr(gpu_check, "no_host_wait", nullcontext)


@pytest.mark.usefixtures("cpu")
@pytest.mark.parametrize(
    "check",
    [
        gpu_check.check_pinned_copy,
        gpu_check.check_grammar,
        gpu_check.check_region,
        gpu_check.check_slots,
    ],
)
def test_checks_hold_on_a_cpu(check: Callable[[], str]) -> None:
    assert check()


@pytest.mark.usefixtures("cpu")
def test_a_wait_fails_a_check(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def idle() -> Iterator[Callable[[], bool]]:
        yield lambda: False

    monkeypatch.setattr(gpu_check, "busy_device", idle)
    with pytest.raises(AssertionError, match="the grammar waited for the device"):
        gpu_check.check_grammar()


def test_engines_are_compared(engines: dict[tuple[str, str], Answers]) -> None:
    pipelined, blocking = engines["v2", "pipelined"], engines["v2", "blocking"]
    assert "requests alike" in gpu_check.compare_engines(pipelined, blocking)
    with pytest.raises(AssertionError, match="1 steps in flight"):
        gpu_check.compare_engines(blocking, pipelined)
    with pytest.raises(AssertionError, match="seeded, request 0: tokens differ"):
        gpu_check.compare_engines(pipelined, engines["v1", "blocking"])
