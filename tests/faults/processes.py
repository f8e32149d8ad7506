"""Processes of a server and what they leave behind."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import psutil

SHARED = Path("/dev/shm")


class Family:
    """A server's process and everything below it, as found now."""

    def __init__(self, pid: int) -> None:
        root = psutil.Process(pid)
        self.members = [root, *root.children(recursive=True)]
        self.shared_files = {path for member in self.members for path in _shared_files(member)}

    def named(self, part: str) -> psutil.Process:
        """The first process with that title; the kernel keeps 15 characters of it."""
        titles = {member.name()[:15]: member for member in reversed(self.members)}
        assert part[:15] in titles, f"no {part} among {sorted(titles)}"
        return titles[part[:15]]

    def alive(self) -> list[str]:
        return [
            f"{member.pid} {' '.join(member.cmdline())[:80]}"
            for member in self.members
            if member.is_running() and member.status() != psutil.STATUS_ZOMBIE
        ]

    def left_files(self) -> list[str]:
        return sorted(str(path) for path in self.shared_files if path.exists())


def _shared_files(process: psutil.Process) -> set[Path]:
    maps = Path(f"/proc/{process.pid}/maps").read_text().splitlines()
    names = {line.split(maxsplit=5)[5] for line in maps if str(SHARED) in line}
    return {Path(name) for name in names if "(deleted)" not in name}


def wait_for(what: Callable[[], bool], seconds: float) -> float:
    """Seconds until ``what()`` held; AssertionError when it doesn't in time."""
    began = time.monotonic()
    while not what():
        if time.monotonic() - began > seconds:
            raise AssertionError(f"still not so after {seconds} s")
        time.sleep(0.1)
    return time.monotonic() - began
