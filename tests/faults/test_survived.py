"""What an engine gets over with steps in flight: its other answers are the same as ever."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator

import httpx
import pytest

from tests.faults.load import LONG, Crowd, complete, finish, prompt, running, tokens
from tests.faults.processes import Family, wait_for
from tests.identity.models import text_model
from tests.serve.server import Server, serving

pytestmark = pytest.mark.slow

CLIENTS = 6


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("faults") / "server.log"
    arguments = ("--worker-cls", "vllm_photon.worker.PhotonWorker")
    limits = ("--max-model-len", "1024", "--max-num-seqs", "16")
    with serving(text_model(), log, *arguments, *limits, VLLM_SERVER_DEV_MODE="1") as running:
        yield running


@pytest.fixture(scope="module")
def undisturbed(server: Server) -> list[list[int]]:
    """The whole answers of the crowd's prompts."""
    return [tokens(response) for response in Crowd(server, CLIENTS).responses()]  # type: ignore[arg-type]


def post(server: Server, path: str) -> httpx.Response:
    response = httpx.post(f"{server.url}{path}", timeout=120)
    assert response.status_code == 200, response.text
    return response


def busy_crowd(server: Server) -> Crowd:
    crowd = Crowd(server, CLIENTS)
    wait_for(lambda: running(server) == CLIENTS, 60)
    return crowd


def test_a_client_that_vanishes(server: Server, undisturbed: list[list[int]]) -> None:
    crowd = busy_crowd(server)
    body = {"model": "moondream", "prompt": prompt(50), "max_tokens": LONG, "stream": True}
    url = f"{server.url}/v1/completions"
    with httpx.stream("POST", url, json={**body, "ignore_eos": True}, timeout=60) as stream:
        next(stream.iter_lines())
    assert [tokens(r) for r in crowd.responses()] == undisturbed  # type: ignore[arg-type]
    wait_for(lambda: running(server) == 0, 10)


def test_a_request_that_never_fits_fails_alone(
    server: Server, undisturbed: list[list[int]]
) -> None:
    crowd = busy_crowd(server)
    response = complete(server, 60, prompt=prompt(60, length=1100), max_tokens=5)
    assert response.status_code == 400
    assert "1024" in response.json()["error"]["message"]
    assert [tokens(r) for r in crowd.responses()] == undisturbed  # type: ignore[arg-type]


def test_pause_that_keeps(server: Server, undisturbed: list[list[int]]) -> None:
    crowd = busy_crowd(server)
    post(server, "/pause?mode=keep")
    time.sleep(1)
    assert not any(future.done() for future in crowd.pending)
    post(server, "/resume")
    assert [tokens(r) for r in crowd.responses()] == undisturbed  # type: ignore[arg-type]


def test_pause_that_waits(server: Server, undisturbed: list[list[int]]) -> None:
    crowd = busy_crowd(server)
    post(server, "/pause?mode=wait")
    assert [tokens(r) for r in crowd.responses()] == undisturbed  # type: ignore[arg-type]
    post(server, "/resume")


@pytest.mark.parametrize(
    ("pause", "resume"),
    [("/pause?mode=abort", "/resume"), ("/sleep?level=0&mode=abort", "/wake_up?tags=scheduling")],
    ids=["pause", "sleep"],
)
def test_pause_that_aborts(
    server: Server, undisturbed: list[list[int]], pause: str, resume: str
) -> None:
    crowd = busy_crowd(server)
    post(server, pause)
    for response, whole in zip(crowd.responses(), undisturbed, strict=True):
        assert isinstance(response, httpx.Response)
        assert finish(response) == "abort"
        got = tokens(response)
        assert len(got) < len(whole)
        assert got == whole[: len(got)]
    post(server, resume)
    assert tokens(complete(server, 0, max_tokens=LONG)) == undisturbed[0]


def test_a_cache_reset_under_way(server: Server, undisturbed: list[list[int]]) -> None:
    crowd = busy_crowd(server)
    reply = post(server, "/reset_prefix_cache?reset_running_requests=true")
    assert reply.json() == {"success": True}
    assert [tokens(r) for r in crowd.responses()] == undisturbed  # type: ignore[arg-type]


def test_shutdown_under_way(server: Server, undisturbed: list[list[int]]) -> None:
    """Last in this file: it ends the server."""
    family = Family(server.process.pid)
    crowd = busy_crowd(server)
    server.process.send_signal(signal.SIGTERM)
    for response, whole in zip(crowd.responses(), undisturbed, strict=True):
        if isinstance(response, httpx.Response) and response.status_code == 200:
            got = tokens(response)
            assert got == whole[: len(got)]
    wait_for(lambda: server.process.poll() is not None, 60)
    wait_for(lambda: not family.alive(), 60)
    assert family.left_files() == []
