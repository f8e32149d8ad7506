"""Arms of an A/B and their servers: start, read back the effective mode, stop."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

_PHOTON_LINE = re.compile(r"photon: (.*)")
_START_TIMEOUT = 600.0  # seconds
_STOP_TIMEOUT = 30.0

WORKER_CLS = "vllm_photon.worker.PhotonWorker"


@dataclass(frozen=True)
class Arm:
    """One side of a comparison: flags of `vllm serve` and the loop that they must give.

    `pipelined` None leaves the choice to vLLM and its platform.
    """

    name: str
    flags: tuple[str, ...]
    pipelined: bool | None


BLOCKING = Arm("stock-blocking", ("--no-async-scheduling",), False)
DEFAULT = Arm("stock-default", (), None)
PHOTON = Arm("photon", ("--worker-cls", WORKER_CLS), True)
PHOTON_BLOCKING = Arm(
    "photon-blocking",
    (
        *("--worker-cls", WORKER_CLS),
        *("--additional-config", json.dumps({"photon": {"pipeline": False}})),
    ),
    False,
)
ARMS = {arm.name: arm for arm in (BLOCKING, DEFAULT, PHOTON, PHOTON_BLOCKING)}


class ServerError(RuntimeError):
    """A server did not start, or runs another loop than its arm says."""


class Server:
    """A fresh `vllm serve` for one arm, as a context manager."""

    def __init__(self, arm: Arm, model: Path, flags: Sequence[str], log: Path) -> None:
        self.arm = arm
        self.log = log
        port = _free_port()
        self.url = f"http://127.0.0.1:{port}"
        self._command = [
            *(sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(model)),
            *("--host", "127.0.0.1", "--port", str(port)),
            *flags,
            *arm.flags,
        ]

    def __enter__(self) -> Self:
        env = os.environ | {"VLLM_SERVER_DEV_MODE": "1", "HF_HUB_OFFLINE": "1"}
        if not self.arm.name.startswith("photon"):
            env["VLLM_PLUGINS"] = ""  # none: stock means stock
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command, stdout=log, stderr=log, env=env, start_new_session=True
            )
        try:
            self._wait_until_healthy()
            self.mode = self._effective_mode()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop()

    def _wait_until_healthy(self) -> None:
        end = time.monotonic() + _START_TIMEOUT
        while time.monotonic() < end:
            if self._process.poll() is not None:
                raise ServerError(f"{self.arm.name} ended at start-up, see {self.log}")
            try:
                with urllib.request.urlopen(f"{self.url}/health", timeout=5):
                    return
            except OSError:
                time.sleep(0.25)
        raise ServerError(f"{self.arm.name} was not up after {_START_TIMEOUT:.0f} s")

    def _effective_mode(self) -> str:
        """What the server says of itself; ServerError if it is not what the arm promises."""
        asynchronous = server_is_async(self.url)
        if asynchronous is None:
            raise ServerError(f"{self.arm.name}: /server_info does not tell the scheduling mode")
        if self.arm.name.startswith("photon"):
            found = _PHOTON_LINE.search(self.log.read_text(errors="replace"))
            if found is None:
                raise ServerError(f"{self.arm.name}: no photon line in {self.log}")
            mode = found.group(1).strip()
            pipelined = ": pipelined" in mode
            if pipelined != asynchronous:
                raise ServerError(f"{self.arm.name}: log and /server_info disagree: {mode}")
        else:
            pipelined = asynchronous
            mode = "asynchronous scheduling" if asynchronous else "blocking"
        if self.arm.pipelined not in (None, pipelined):
            raise ServerError(f"{self.arm.name} runs another loop than it should: {mode}")
        return mode

    def _stop(self) -> None:
        """End the server and whatever it started: they share a process group."""
        group = self._process.pid
        for sign, patience in ((signal.SIGINT, _STOP_TIMEOUT), (signal.SIGKILL, _STOP_TIMEOUT)):
            try:
                os.killpg(group, sign)
            except ProcessLookupError:
                return
            try:
                self._process.wait(patience)
            except subprocess.TimeoutExpired:
                continue


class RunningServer:
    """A server that somebody else started (`--arm name=url`); nothing is stopped at the end."""

    def __init__(self, name: str, url: str) -> None:
        self.arm = Arm(name, (), None)
        self.url = url.rstrip("/")

    def __enter__(self) -> Self:
        asynchronous = server_is_async(self.url)
        if asynchronous is None:
            self.mode = "not told (start the server with VLLM_SERVER_DEV_MODE=1)"
        else:
            self.mode = "asynchronous scheduling" if asynchronous else "blocking"
        return self

    def __exit__(self, *_: object) -> None:
        pass


def server_is_async(url: str) -> bool | None:
    """Read `scheduler_config.async_scheduling` from /server_info; None if it can't be had."""
    try:
        info = _get_json(f"{url}/server_info?config_format=json")
    except (OSError, ValueError):
        return None
    value = info.get("vllm_config", {}).get("scheduler_config", {}).get("async_scheduling")
    return value if isinstance(value, bool) else None


def served_model(url: str) -> str:
    """The name of the first model of a server."""
    return _get_json(f"{url}/v1/models")["data"][0]["id"]


def _get_json(url: str, timeout: float = 60) -> dict[str, Any]:
    with urllib.request.urlopen(url, timeout=timeout) as reply:
        return json.load(reply)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
