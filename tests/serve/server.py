"""A real ``vllm serve`` for tests, in a process group of its own."""

from __future__ import annotations

import base64
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

DATA = Path(__file__).parents[1] / "data" / "oracle"
START_TIMEOUT_S = 240
STOP_TIMEOUT_S = 30


class Server:
    """A running ``vllm serve`` and where to reach it."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
        self.process = process
        self.url = f"http://127.0.0.1:{port}"
        self.log = log

    def fail(self, why: str) -> None:
        """Fail the test with the end of the server's log."""
        tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-60:])
        pytest.fail(f"{why}\n--- end of {self.log} ---\n{tail}", pytrace=False)

    def wait_until_ready(self) -> None:
        """Wait for /health; fails when the process ends or the time is up."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                self.fail(f"the server ended with status {self.process.returncode}")
            try:
                if httpx.get(f"{self.url}/health", timeout=5).status_code == 200:
                    return
            except httpx.TransportError:
                time.sleep(0.5)
        self.fail(f"the server was not ready after {START_TIMEOUT_S} s")


@contextmanager
def serving(model: Path, log: Path, *arguments: str, **environment: str) -> Iterator[Server]:
    """``vllm serve`` on a free port of 127.0.0.1, gone with its children at the end."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        *(sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(model)),
        *("--host", "127.0.0.1", "--port", str(port), "--served-model-name", "moondream"),
        *("--enforce-eager", "--kv-cache-memory-bytes", str(256 << 20), "--dtype", "float32"),
        *arguments,
    ]
    # As a user starts it: what the in-process tests set for vLLM is not for the server.
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("VLLM_")}
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**inherited, "HF_HUB_OFFLINE": "1", **environment},
        )
    try:
        server = Server(process, port, log)
        server.wait_until_ready()
        yield server
    finally:
        _stop(process)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the whole process group, first politely."""
    for sent in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, sent)
            process.wait(STOP_TIMEOUT_S)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue


def data_url(content: bytes, kind: str = "png") -> str:
    """An image's bytes as a data URL."""
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"
