"""Serve the tiny Moondream, ask it through two clients, draw the answers, stop the server.

    make demo

Starts ``vllm serve`` with the plugin on a free port of 127.0.0.1, asks ``point`` and ``detect`` of
a synthetic picture through the openai client and through Moondream's own, prints the answers and
draws them to ``out/demo.png``.
"""

from __future__ import annotations

import base64
import io
import json
import random
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import moondream
from openai import OpenAI
from PIL import Image

from benchmarks.scenes import paint, sample_scene
from benchmarks.servers import PHOTON, Server, served_model
from vllm_photon.spatial import Answer, draw, parse

ROOT = Path(__file__).parents[1]
MODEL = ROOT / "vllm_photon" / "assets" / "tiny-moondream"
OUT = ROOT / "out"
FLAGS = ("--enforce-eager", "--kv-cache-memory-bytes", str(256 << 20))
SCENE_SEED = 7


def main() -> None:
    """Run the demonstration."""
    OUT.mkdir(exist_ok=True)
    scene = sample_scene(random.Random(SCENE_SEED))
    picture = paint(scene, (448, 448))
    print("The picture shows:", ", ".join(shape.name for shape in scene.shapes))
    first, second = scene.shapes[0].name, scene.shapes[-1].name

    print("Starting vllm serve --worker-cls vllm_photon.worker.PhotonWorker, log in out/server.log")
    with ExitStack() as stack:
        with progress():
            server = stack.enter_context(Server(PHOTON, MODEL, FLAGS, OUT / "server.log"))
        print(f"  photon: {server.mode}")
        answers = [
            ask_openai(server.url, picture, "point", first),
            ask_openai(server.url, picture, "detect", second),
            *ask_moondream(server.url, picture, first, second),
        ]
    print("Server stopped.")

    drawn = picture
    for answer in answers:
        drawn = draw(drawn, answer)
    drawn.save(OUT / "demo.png")
    print("Answers drawn to out/demo.png")


def ask_openai(url: str, picture: Image.Image, skill: str, thing: str) -> Answer:
    """One skill through ``/v1/chat/completions``."""
    client = OpenAI(base_url=f"{url}/v1", api_key="none")
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    image = "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
    completion = client.chat.completions.create(
        model=served_model(url),
        messages=[
            {
                "role": "user",
                "content": [
                    {"type": "image_url", "image_url": {"url": image}},
                    {"type": "text", "text": thing},
                ],
            }
        ],
        extra_body={"vllm_xargs": {"photon_task": skill}},
    )
    content = completion.choices[0].message.content or ""
    print(f"  openai     {skill:6} {thing!r}: {content}")
    return parse(content)


def ask_moondream(url: str, picture: Image.Image, first: str, second: str) -> list[Answer]:
    """The same through Moondream's client."""
    client = moondream.vl(endpoint=f"{url}/v1")
    replies = [("point", first, client.point(picture, first))]
    replies.append(("detect", second, client.detect(picture, second)))
    for skill, thing, reply in replies:
        shown = {key: reply[key] for key in ("points", "objects") if key in reply}
        print(f"  moondream  {skill:6} {thing!r}: {json.dumps(shown)}")
    return [parse(reply) for _, _, reply in replies]


@contextmanager
def progress() -> Iterator[None]:
    """A dot every two seconds, so that a wait is seen."""
    done = threading.Event()

    def tick() -> None:
        while not done.wait(2):
            print(".", end="", flush=True)

    thread = threading.Thread(target=tick, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        print()


if __name__ == "__main__":
    main()
