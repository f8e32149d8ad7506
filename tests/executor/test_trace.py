"""The step trace: every committed step is in the file at once, whole or not."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from vllm_photon.executor.trace import StepTrace


@pytest.mark.parametrize("closed", [True, False])
def test_a_trace_is_whole_whenever_the_engine_ends(tmp_path: Path, closed: bool) -> None:
    path = tmp_path / "new" / "steps.json"
    trace = StepTrace(str(path))
    for index in range(3):
        step: Any = SimpleNamespace(
            index=index,
            slot=index % 2,
            launched_at=index + 0.0,
            finalized_at=index + 0.25,
            delivered_at=index + 0.5,
            committed_at=index + 1.0,
        )
        trace.committed(step, mode="pipelined", rows=4, zombies=1)
    if closed:
        trace.close()
    written = path.read_text()
    events = json.loads(written if closed else written.rstrip(",\n") + "]")
    slices = [event for event in events if event]
    assert [event["name"] for event in slices] == ["launch", "finalize", "commit"] * 3
    assert [event["dur"] for event in slices[:3]] == [0.25e6, 0.25e6, 0.5e6]
    assert {event["args"]["step"] for event in slices} == {0, 1, 2}
