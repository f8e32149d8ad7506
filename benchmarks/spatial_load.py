"""Our own small client for point, detect and mixed loads: closed loop or Poisson arrivals.

Requests are Moondream-shaped (`POST /v1/point` ...) and not streamed, so a run has end-to-end times
only. Output tokens are counted from the answer's grammar: two a point or three an object, and the
end token.
"""

import asyncio
import base64
import io
import itertools
import random
import time
from dataclasses import dataclass
from typing import Any

import aiohttp
from PIL import Image, ImageDraw

from benchmarks.load import Load, Objectives
from benchmarks.stats import percentile

_OBJECTS = ("circle", "square", "triangle", "star")
_COLORS = ("red", "green", "blue", "yellow")
_MIXED = ("point", "detect", "query")
_TIMEOUT = aiohttp.ClientTimeout(total=300)


@dataclass(frozen=True)
class Answer:
    """One request: when it was sent, how long it took (seconds), and what it gave."""

    sent: float
    seconds: float
    tokens: int
    failed: bool


def run_spatial(url: str, model: str, load: Load, goals: Objectives, seed: int) -> dict[str, float]:
    """One run; the record is described in `benchmarks.load`."""
    answers = asyncio.run(_drive(url, model, load, seed))
    return summarize_answers(answers, load.tokens, goals)


def summarize_answers(answers: list[Answer], tokens: int, goals: Objectives) -> dict[str, float]:
    """Goodput counts answers within the time that the objectives give to `tokens` tokens."""
    done = [a for a in answers if not a.failed]
    span = max(a.sent + a.seconds for a in answers) - min(a.sent for a in answers)
    times = [1e3 * a.seconds for a in done]
    limit = goals.ttft_ms + goals.tpot_ms * (tokens - 1)
    record = {
        "req_per_s": len(done) / span,
        "output_tok_per_s": sum(a.tokens for a in done) / span,
        "goodput_req_per_s": sum(t <= limit for t in times) / span,
        "completed": len(done),
        "failed": len(answers) - len(done),
        "duration_s": span,
    }
    if times:
        record["e2e_mean_ms"] = sum(times) / len(times)
        record["e2e_p50_ms"] = percentile(times, 50)
        record["e2e_p99_ms"] = percentile(times, 99)
    return record


def request_body(skill: str, index: int, image_url: str, tokens: int, model: str) -> dict[str, Any]:
    """The Moondream-shaped body of the index-th request of a load."""
    color = _COLORS[index % len(_COLORS)]
    shape = _OBJECTS[index // len(_COLORS) % len(_OBJECTS)]
    body: dict[str, Any] = {"model": model, "image_url": image_url}
    if skill == "query":
        question = f"How many {color} {shape}s are there?"
        return body | {"question": question, "settings": {"max_tokens": tokens}}
    most = max(1, (tokens - 1) // (2 if skill == "point" else 3))
    return body | {"object": f"{color} {shape}", "settings": {"max_objects": most}}


def answer_tokens(skill: str, reply: dict[str, Any]) -> int:
    """Tokens of a point or detect answer; a text answer counts its words, an estimate."""
    if skill == "point":
        return 2 * len(reply["points"]) + 1
    if skill == "detect":
        return 3 * len(reply["objects"]) + 1
    return len(reply["answer"].split()) + 1


def make_images(count: int, seed: int, side: int = 112) -> list[str]:
    """Data URLs of small pictures with coloured shapes; different ones, so that no cache helps."""
    draw_number = random.Random(seed)
    urls = []
    for _ in range(count):
        image = Image.new("RGB", (side, side), "white")
        draw = ImageDraw.Draw(image)
        for _ in range(4):
            x, y = draw_number.randrange(side - 24), draw_number.randrange(side - 24)
            draw.ellipse((x, y, x + 20, y + 20), fill=draw_number.choice(_COLORS))
        buffer = io.BytesIO()
        image.save(buffer, "PNG")
        urls.append("data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode())
    return urls


async def _drive(url: str, model: str, load: Load, seed: int) -> list[Answer]:
    skills = _MIXED if load.kind == "mixed" else (load.kind,)
    images = make_images(load.requests, seed)
    jobs = [
        (skill, request_body(skill, index, image, load.tokens, model))
        for index, (skill, image) in enumerate(zip(itertools.cycle(skills), images, strict=False))
    ]
    gate = asyncio.Semaphore(load.concurrency)
    arrivals = random.Random(seed)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(url, connector=connector, timeout=_TIMEOUT) as session:

        async def ask(skill: str, body: dict[str, Any]) -> Answer:
            async with gate:
                return await _ask(session, skill, body)

        tasks = []
        for skill, body in jobs:
            if load.rate is not None:
                await asyncio.sleep(arrivals.expovariate(load.rate))
            tasks.append(asyncio.create_task(ask(skill, body)))
        return await asyncio.gather(*tasks)


async def _ask(session: aiohttp.ClientSession, skill: str, body: dict[str, Any]) -> Answer:
    sent = time.perf_counter()
    tokens, failed = 0, False
    try:
        async with session.post(f"/v1/{skill}", json=body) as reply:
            answer = await reply.json()
            failed = reply.status != 200
        tokens = 0 if failed else answer_tokens(skill, answer)
    except (aiohttp.ClientError, TimeoutError):
        failed = True
    return Answer(sent, time.perf_counter() - sent, tokens, failed)
