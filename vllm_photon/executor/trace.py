"""A step trace in Chrome's trace event format, which Perfetto and ``chrome://tracing`` open.

One slice for a step's launch until its masks (``launch``), one until its tokens are on the host
(``finalize``) and one until the scheduler has them (``commit``), in a row for each slot. Written as
steps are committed; the format allows the closing bracket to be missing, so a trace of a killed
engine opens too. Format: "Trace Event Format", Google, complete events (``ph: X``), microseconds.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm_photon.executor.pipeline import Step


class StepTrace:
    """Writes the trace of one engine to ``path``."""

    def __init__(self, path: str) -> None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        self._file = open(path, "w")  # noqa: SIM115 - open as long as the engine
        self._file.write("[\n")

    def committed(self, step: Step, *, mode: str, rows: int, zombies: int) -> None:
        """Write the slices of a committed step of ``rows`` requests."""
        times = (step.launched_at, step.finalized_at, step.delivered_at, step.committed_at)
        args = {"step": step.index, "mode": mode, "rows": rows, "zombies": zombies}
        for name, start, end in zip(
            ("launch", "finalize", "commit"), times, times[1:], strict=False
        ):
            event = {
                "name": name,
                "ph": "X",
                "pid": 0,
                "tid": step.slot,
                "ts": start * 1e6,
                "dur": (end - start) * 1e6,
                "args": args,
            }
            self._file.write(json.dumps(event) + ",\n")
        # vLLM kills its engine at an ordinary stop; nothing may wait in a buffer for more.
        self._file.flush()

    def close(self) -> None:
        """Complete the file."""
        self._file.write("{}]\n")
        self._file.close()
