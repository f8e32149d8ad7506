"""One server for all tests here: the oracle's Moondream 2, started as a user would."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import openai
import pytest

from tests.serve.server import DATA, Server, data_url, serving


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The oracle's Moondream 2 with our worker, otherwise as a user would start it."""
    log = tmp_path_factory.mktemp("serve") / "server.log"
    with serving(
        DATA / "md2", log, "--worker-cls", "vllm_photon.worker.PhotonWorker", "--max-num-seqs", "16"
    ) as running:
        yield running


@pytest.fixture(scope="session")
def chat(server: Server) -> openai.OpenAI:
    """The openai client."""
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


@pytest.fixture(scope="session")
def http(server: Server) -> Iterator[httpx.Client]:
    """Plain HTTP, below ``/v1``."""
    with httpx.Client(base_url=f"{server.url}/v1", timeout=120) as client:
        yield client


@pytest.fixture(scope="session")
def image_urls() -> list[str]:
    """The oracle's two images as data URLs."""
    return [data_url((DATA / "md2" / f"image{i}.png").read_bytes()) for i in (0, 1)]
