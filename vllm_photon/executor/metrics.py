"""Step metrics: counted in the engine core's process, read from the API server's.

vLLM sends a fixed set of statistics between the two, with no room for others. Ours go through a
*page*: a small file of float64 cells in the temporary directory that the engine core maps and
adds to, and that the API server reads when ``/metrics`` is scraped. Adding costs one store a cell,
no system call and no message. The file goes when the engine does; the page of a killed engine is
known by its lock, which nobody holds, and goes when the next engine starts.

The page is found by the configuration's ``instance_id`` and the engine's data-parallel index, so
only engines on the API server's own host are seen.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import tempfile
import weakref
from bisect import bisect_left
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm.config import VllmConfig

    from vllm_photon.executor.pipeline import Step

BUCKETS = (
    *(1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3),
    *(1e-2, 2e-2, 5e-2, 1e-1, 2e-1, 5e-1, 1.0, 5.0),
)
"""Upper bounds of the time histograms, in seconds; one more bucket takes the rest."""

MODES = ("pipelined", "constrained", "blocking")
"""How a step ran: free, sampled after the commit before it, or in the blocking loop."""

TIMES = {
    "finalize": "Seconds from the launch of a step to the start of its masks and sampling.",
    "deliver": "Seconds from the launch of a step until its tokens were on the host.",
    "commit": "Seconds from a step's tokens being on the host until the scheduler had them.",
    "bubble": "Seconds for which the device had no step, between two steps with work waiting.",
}
COUNTERS = {
    "zombie_rows": "Rows of steps whose request had finished before the step was committed.",
}
GAUGES = {
    "steps_in_flight": "Steps launched and not committed.",
    "zombie_blocks": "KV blocks of finished or preempted requests that a step in flight may write.",
}
_PREFIX = f"vllm-photon-{os.getuid()}-"
_HISTOGRAM_CELLS = len(BUCKETS) + 2  # one bucket more for the rest, then the sum


def _layout() -> dict[str, int]:
    cells, offset = {}, 0
    for name in (*(f"steps_{mode}" for mode in MODES), *COUNTERS, *GAUGES):
        cells[name], offset = offset, offset + 1
    for name in TIMES:
        cells[name], offset = offset, offset + _HISTOGRAM_CELLS
    cells["end"] = offset
    return cells


CELLS = _layout()


def page_stem(vllm_config: VllmConfig) -> str:
    """What the names of this deployment's pages begin with; the engine's index follows."""
    return f"{_PREFIX}{vllm_config.instance_id}-"


def _remove_stale_pages() -> None:
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError), path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The cells of one page at one moment."""

    cells: memoryview[float]

    def value(self, name: str) -> float:
        return self.cells[CELLS[name]]

    def histogram(self, name: str) -> tuple[list[tuple[str, float]], float]:
        """Cumulative counts by upper bound, and the sum in seconds."""
        start, total, buckets = CELLS[name], 0.0, []
        for i, bound in enumerate((*map(str, BUCKETS), "+Inf")):
            total += self.cells[start + i]
            buckets.append((bound, total))
        return buckets, self.cells[start + _HISTOGRAM_CELLS - 1]


def read_pages(vllm_config: VllmConfig) -> dict[str, Snapshot]:
    """The pages of this deployment's engines on this host, by data-parallel index."""
    stem, pages = page_stem(vllm_config), {}
    for path in Path(tempfile.gettempdir()).glob(f"{stem}*"):
        try:
            content = path.read_bytes()
        except FileNotFoundError:  # its engine has just ended
            continue
        if len(content) == CELLS["end"] * 8:
            pages[path.name.removeprefix(stem)] = Snapshot(memoryview(content).cast("d"))
    return pages


class StepMetrics:
    """Adds each committed step to the page of its engine."""

    def __init__(self, vllm_config: VllmConfig) -> None:
        index = vllm_config.parallel_config.data_parallel_index
        path = Path(tempfile.gettempdir()) / f"{page_stem(vllm_config)}{index}"
        _remove_stale_pages()
        self._file = path.open("w+b")
        fcntl.flock(self._file, fcntl.LOCK_EX)
        self._file.truncate(CELLS["end"] * 8)
        self._cells = memoryview(mmap.mmap(self._file.fileno(), 0)).cast("d")
        self._finalizer = weakref.finalize(self, path.unlink, missing_ok=True)
        self._delivered_at = 0.0
        self._unfinished = False

    def committed(self, step: Step, *, mode: str, zombies: int, unfinished: bool) -> None:
        """Add a committed step.

        ``unfinished`` says that requests were left after its commit: the time from its delivery to
        the next launch is then a bubble, else the engine had nothing to do.
        """
        cells = self._cells
        cells[CELLS[f"steps_{mode}"]] += 1
        cells[CELLS["zombie_rows"]] += zombies
        self._observe("finalize", step.finalized_at - step.launched_at)
        self._observe("deliver", step.delivered_at - step.launched_at)
        self._observe("commit", step.committed_at - step.delivered_at)
        if self._unfinished:
            self._observe("bubble", max(0.0, step.launched_at - self._delivered_at))
        self._delivered_at = step.delivered_at
        self._unfinished = unfinished

    def set(self, gauge: str, value: float) -> None:
        """Set a gauge."""
        self._cells[CELLS[gauge]] = value

    def close(self) -> None:
        """Remove the page."""
        self._finalizer()

    def _observe(self, name: str, seconds: float) -> None:
        start = CELLS[name]
        self._cells[start + bisect_left(BUCKETS, seconds)] += 1
        self._cells[start + _HISTOGRAM_CELLS - 1] += seconds
