"""Engines of the tests of model runner V2, each in a process of its own, all at the same time."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
ENGINES = (("v2", "pipelined"), ("v2", "blocking"), ("v1", "blocking"))
PATIENCE_S = 1500

Answers = dict[str, dict[str, Any]]


@pytest.fixture(scope="session")
def engines(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Answers]:
    """What each engine answered to every workload, and what it did meanwhile."""
    folder = tmp_path_factory.mktemp("engines")
    running = {}
    for runner, mode in ENGINES:
        out = folder / f"{runner}-{mode}.json"
        log = out.with_suffix(".log").open("w")
        command = [sys.executable, "-m", "tests.runner_v2.drive", runner, mode, str(out)]
        process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)
        running[runner, mode] = (process, out)
    answers = {}
    try:
        for engine, (process, out) in running.items():
            status = process.wait(PATIENCE_S)
            assert status == 0, f"{engine}: {out.with_suffix('.log').read_text()[-4000:]}"
            answers[engine] = json.loads(out.read_text())
    finally:
        for process, _ in running.values():
            process.kill()
            process.wait()
    return answers
