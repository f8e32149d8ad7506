"""Environment and engines of the in-process oracle tests; each engine starts once."""

from __future__ import annotations

import os

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")

from tests.oracle.teacher import DATA, Teacher, start


@pytest.fixture(scope="session")
def moondream2() -> Teacher:
    return Teacher(start(DATA / "md2"))
