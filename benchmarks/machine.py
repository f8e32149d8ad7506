"""Where and with what a measurement was made."""

import json
import os
import platform
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any


def describe_machine() -> dict[str, Any]:
    """Processor, cores open to this process, memory, versions, load average and time."""
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "vllm": version("vllm"),
        "torch": version("torch"),
        "load_average": os.getloadavg()[0],
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def one_line(machine: dict[str, Any]) -> str:
    return (
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB; "
        f"vLLM {machine['vllm']}, torch {machine['torch']}, Python {machine['python']}"
    )


def write_table(results: dict[str, Any], table: str, folder: Path) -> str:
    """Write a JSON and a Markdown file named as the folder; returns the Markdown.

    ``results`` holds ``describe_machine`` under ``machine``, which heads the table.
    """
    folder.mkdir(parents=True, exist_ok=True)
    machine = results["machine"]
    text = f"{one_line(machine)}; {machine['time']}.\n\n{table}"
    (folder / f"{folder.name}.json").write_text(json.dumps(results, indent=1))
    (folder / f"{folder.name}.md").write_text(text)
    return text


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()
