"""What ends an engine: every client hears of it, and nothing of the server stays."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.faults.load import Crowd, complete, running
from tests.faults.processes import Family, wait_for
from tests.identity.models import text_model
from tests.serve.server import Server, serving

pytestmark = pytest.mark.slow

FAULTY = "tests.faults.workers.FaultyWorker"
ROOT = Path(__file__).parents[2]
HEARD_S, GONE_S = 60, 90


def kill_worker(server: Server, family: Family) -> None:
    family.named("VLLM::Worker").send_signal(signal.SIGKILL)


def fault(where: str) -> Callable[[Server, Family], None]:
    def send(server: Server, family: Family) -> None:
        try:
            reply = complete(server, 99, max_tokens=5, vllm_xargs={"fault": where})
        except httpx.TransportError:
            return
        assert reply.status_code == 500
        assert "EngineCore" in reply.json()["error"]["message"]

    return send


CAUSES = {
    "killed worker": (kill_worker, "died unexpectedly"),
    "launch": (fault("launch"), "the forward broke, as asked"),
    "finalize": (fault("finalize"), "sampling broke, as asked"),
    "commit": (fault("commit"), "KeyError"),
}


@pytest.mark.parametrize("cause", CAUSES)
def test_a_broken_engine_ends_at_once_and_whole(cause: str, tmp_path: Path) -> None:
    act, words = CAUSES[cause]
    log = tmp_path / "server.log"
    arguments = ("--worker-cls", FAULTY, "--max-model-len", "1024", "--max-num-seqs", "16")
    with serving(text_model(), log, *arguments, PYTHONPATH=str(ROOT)) as server:
        family = Family(server.process.pid)
        crowd = Crowd(server)
        wait_for(lambda: running(server) > 0, 60)
        began = time.monotonic()
        act(server, family)
        responses = crowd.responses()
        assert time.monotonic() - began < HEARD_S
        for got in responses:
            if isinstance(got, httpx.Response):
                assert got.status_code == 500, got.text
                assert got.json()["error"]["message"]
        wait_for(lambda: server.process.poll() is not None, GONE_S)
        wait_for(lambda: not family.alive(), GONE_S)
        assert family.left_files() == []
        assert words in log.read_text()
