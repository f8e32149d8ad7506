"""Moondream's own client against our endpoints."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.error import HTTPError

import moondream
import pytest
from PIL import Image

from tests.serve.oracle import MAX_OBJECTS, Case, cases
from tests.serve.server import DATA, Server

CASES = cases()


class PngClient(moondream.CloudVL):
    """The client, sending images as they are: its JPEG would change the oracle's pixels."""

    def encode_image(self, image):
        from moondream.types import Base64EncodedImage

        from tests.serve.server import data_url

        return Base64EncodedImage(image_url=data_url(image.read_bytes()))


@pytest.fixture(scope="module")
def client(server: Server) -> PngClient:
    return PngClient(endpoint=f"{server.url}/v1")


def ask(client: moondream.CloudVL, case: Case) -> dict:
    image = DATA / "md2" / f"image{case.image}.png"
    skill = {"point": client.point, "detect": client.detect}[case.task]
    return skill(image, case.object, settings={"max_objects": MAX_OBJECTS})


@pytest.mark.parametrize("case", CASES, ids=str)
def test_alone(client: PngClient, case: Case) -> None:
    case.check(ask(client, case))


def test_eight_at_once(client: PngClient) -> None:
    with ThreadPoolExecutor(8) as pool:
        for case, answer in zip(CASES, pool.map(lambda c: ask(client, c), CASES), strict=True):
            case.check(answer)


def test_as_shipped_with_jpeg(server: Server) -> None:
    """The unchanged client, through its own entry point and image encoding."""
    client = moondream.vl(endpoint=f"{server.url}/v1")
    image = Image.open(DATA / "md2" / "image1.png")
    points = client.point(image, "def", settings={"max_objects": 3})["points"]
    assert len(points) <= 3
    assert all(set(point) == {"x", "y"} for point in points)
    boxes = client.detect(image, "def", settings={"max_objects": 3})["objects"]
    assert all(set(box) == {"x_min", "y_min", "x_max", "y_max"} for box in boxes)


@pytest.mark.parametrize("length", ["short", "normal", "long"])
def test_captions(client: PngClient, length: str) -> None:
    image = DATA / "md2" / "image1.png"
    settings = {"max_tokens": 4, "temperature": 0}
    whole = client.caption(image, length, settings=settings)["caption"]
    pieces = client.caption(image, length, stream=True, settings=settings)["caption"]
    assert "".join(pieces) == whole


@pytest.mark.parametrize("image", [None, DATA / "md2" / "image1.png"])
def test_questions(client: PngClient, image: Path | None) -> None:
    settings = {"max_tokens": 4, "temperature": 0}
    whole = client.query(image, "def f", settings=settings)
    assert set(whole) == {"answer"}
    assert (
        "".join(client.query(image, "def f", stream=True, settings=settings)["answer"])
        == (whole["answer"])
    )


def test_reasoning(client: PngClient) -> None:
    image = DATA / "md2" / "image0.png"
    settings = {"max_tokens": 12, "temperature": 0}
    whole = client.query(image, "def f", reasoning=True, settings=settings)
    assert set(whole["reasoning"]) == {"text", "grounding"}
    stream = client.query(image, "def f", reasoning=True, stream=True, settings=settings)
    assert "".join(stream["answer"]) == whole["answer"]


def test_references(client: PngClient) -> None:
    image = DATA / "md2" / "image1.png"
    refs = [[0.25, 0.75], [0.1, 0.1, 0.4, 0.9]]
    settings = {"max_objects": 2}
    with_refs = client.point(image, "def", spatial_refs=refs, settings=settings)
    assert len(with_refs["points"]) <= 2
    assert client.query(image, "def f", spatial_refs=refs, settings={"max_tokens": 3})


def test_chat(client: PngClient) -> None:
    messages = [{"role": "user", "content": "def f"}]
    named = PngClient(endpoint=client.endpoint, model="moondream")
    settings = {"max_tokens": 6, "temperature": 0}
    plain = named.chat(messages, settings=settings)
    assert plain["finish_reason"] in ("stop", "length")
    assert (
        "".join(named.chat(messages, stream=True, settings=settings)["message"])
        == (plain["message"]["content"])
    )
    thought = named.chat(messages, settings=settings, reasoning=True)
    assert thought["message"]["reasoning"]


def test_segment_is_for_moondream_3(client: PngClient) -> None:
    with pytest.raises(HTTPError) as caught:
        client.segment(DATA / "md2" / "image0.png", "def")
    assert caught.value.code == 400
    assert "no skill segment" in caught.value.read().decode()


def test_errors_raise(client: PngClient) -> None:
    image = DATA / "md2" / "image0.png"
    with pytest.raises(HTTPError) as caught:
        client.point(image, "   ")
    assert caught.value.code == 400
