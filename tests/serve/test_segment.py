"""Outlines over HTTP, from a Moondream 3 that writes nothing but boxes and paths.

Its random weights are the oracle's; the bias of its last layer leaves only the tokens of an outline
likely, and it can't reason.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError

import httpx
import openai
import pytest
from PIL import Image
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from tests.serve.server import DATA, Server, data_url, serving
from tests.serve.test_moondream_client import PngClient
from vllm_photon.spatial import Answer, draw, parse
from vllm_photon.spatial.results import SegmentAssembler
from vllm_photon.spatial.tokens import SpatialVocab

IMAGE = DATA / "md3" / "image1.png"
VOCAB = SpatialVocab(600)
OUTLINE = [5, 6]
SETTINGS = {"temperature": 0.7, "max_tokens": 60}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The oracle's checkpoint, changed as said above."""
    path = tmp_path_factory.mktemp("segment") / "md3"
    shutil.copytree(DATA / "md3", path, copy_function=shutil.copyfile)
    path.chmod(0o755)
    config = json.loads((path / "config.json").read_text())
    tokens = config["config"]["tokenizer"]
    tokens["templates"]["segment"] = {"prefix": [1, 308, 2], "suffix": [3]}
    tokens["thinking_id"] = None
    (path / "config.json").write_text(json.dumps(config))
    tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
    likely = [*OUTLINE, *(tokenizer.token_to_id(text) for text in "MLCZ-0123456789")]
    weights = load_file(path / "model.safetensors")
    bias = weights["model.text.lm_head.bias"]
    bias[likely] += 40
    save_file(weights, path / "model.safetensors")
    return path


@pytest.fixture(scope="module")
def segmenting(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(checkpoint, tmp_path_factory.mktemp("serve") / "server.log") as running:
        yield running


@pytest.fixture(scope="module")
def client(segmenting: Server) -> PngClient:
    return PngClient(endpoint=f"{segmenting.url}/v1")


def read(ids: list[int]) -> dict:
    """An independent pass over the ids."""
    tokenizer = Tokenizer.from_file(str(DATA / "md3" / "tokenizer.json"))
    assembler = SegmentAssembler(VOCAB, lambda i: tokenizer.decode([i]))
    return json.loads("".join([assembler.head(), *map(assembler.push, ids), assembler.tail()]))


def test_whole(client: PngClient) -> None:
    found = [client.segment(IMAGE, "def", settings=SETTINGS) for _ in range(4)]
    for answer in found:
        assert set(answer) <= {"path", "bbox"}
        assert isinstance(parse(answer), Answer)
    assert any("bbox" in answer for answer in found)
    assert len({json.dumps(answer) for answer in found}) > 1


def test_streamed(client: PngClient) -> None:
    for _ in range(4):
        events = list(client.segment(IMAGE, "def", stream=True, settings=SETTINGS))
        *pieces, last = events
        assert last["completed"] is True
        assert "".join(event.get("chunk", "") for event in pieces) == last["path"]
        boxes = [event["bbox"] for event in pieces if "bbox" in event]
        assert boxes == ([] if last["bbox"] is None else [last["bbox"]])


def test_with_references(client: PngClient) -> None:
    refs = [[0.5, 0.5], [0.1, 0.1, 0.9, 0.9]]
    assert "path" in client.segment(IMAGE, "def", spatial_refs=refs, settings=SETTINGS)


@pytest.mark.parametrize("stream", [False, True])
def test_in_chat(segmenting: Server, stream: bool) -> None:
    """The text is what the ids say, whole or in pieces; it can be drawn."""
    chat = openai.OpenAI(base_url=f"{segmenting.url}/v1", api_key="none")
    image = {"type": "image_url", "image_url": {"url": data_url(IMAGE.read_bytes())}}
    reply = chat.chat.completions.create(
        model="moondream",
        messages=[
            {
                "role": "user",
                "content": [image, {"type": "text", "text": '/segment {"object": "def"}'}],
            }
        ],
        temperature=0.7,
        seed=5,
        max_tokens=60,
        stream=stream,
        extra_body={"return_token_ids": True},
    )
    if stream:
        chunks = [chunk.choices[0] for chunk in reply if chunk.choices]
        text = "".join(chunk.delta.content or "" for chunk in chunks)
        ids = [i for chunk in chunks for i in getattr(chunk, "token_ids", None) or []]
    else:
        text, ids = reply.choices[0].message.content, reply.choices[0].token_ids
    assert json.loads(text) == read(ids)
    assert any(i >= VOCAB.vocab_size for i in ids)
    assert any(20 < i < VOCAB.vocab_size for i in ids)
    with Image.open(IMAGE) as picture:
        assert draw(picture, text).size == picture.size


def test_reasoning_without_the_skill(segmenting: Server, client: PngClient) -> None:
    with pytest.raises(HTTPError) as caught:
        client.query(IMAGE, "def f", reasoning=True)
    error = json.loads(caught.value.read())["error"]
    assert (caught.value.code, error["param"]) == (400, "reasoning")
    body = {
        "model": "moondream",
        "messages": [{"role": "user", "content": "def"}],
        "reasoning_effort": "high",
        "stream": True,
    }
    refused = httpx.post(f"{segmenting.url}/v1/chat/completions", json=body, timeout=60)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "photon_reasoning")
    assert client.query(IMAGE, "def f", settings={"max_tokens": 2})["answer"] is not None
