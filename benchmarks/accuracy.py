"""How well a server points, detects and counts, over HTTP, against known answers.

Asks any server with Moondream's wire form (`POST {url}/point`, `/detect`, `/query`), at one or
more concurrencies, with synthetic held-out pictures or a folder of questions (see
`benchmarks.questions`); prints the scores and how many answers differ between concurrencies.

    python -m benchmarks.accuracy --url http://127.0.0.1:8000/v1 --concurrency 1 32
"""

import argparse
import asyncio
import base64
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks.questions import Question, held_out, read_folder, write_folder
from benchmarks.score import Score

Answer = dict[str, Any]


@dataclass(frozen=True)
class Target:
    """The server: base URL with its version part, model name (None: its default) and key."""

    url: str
    model: str | None = None
    key: str | None = None


def _body(question: Question, model: str | None) -> dict[str, Any]:
    mime = "jpeg" if question.image.startswith(b"\xff\xd8") else "png"
    body: dict[str, Any] = {
        "image_url": f"data:image/{mime};base64," + base64.b64encode(question.image).decode(),
        "settings": {"temperature": 0},
    }
    if model is not None:
        body["model"] = model
    if question.skill == "query":
        return {**body, "question": question.text, "stream": False}
    return {**body, "object": question.text}


async def _ask(session: aiohttp.ClientSession, target: Target, question: Question) -> Answer:
    """The server's reply; RuntimeError says what it refused."""
    url = f"{target.url.rstrip('/')}/{question.skill}"
    async with session.post(url, json=_body(question, target.model)) as response:
        text = await response.text()
        if response.status != 200:
            raise RuntimeError(f"{url} answered {response.status}: {text[:300]}")
    reply = json.loads(text)
    field = {"point": "points", "detect": "objects", "query": "answer"}[question.skill]
    return {field: reply[field]}


async def ask_all(target: Target, questions: list[Question], concurrency: int) -> list[Answer]:
    """Every answer, in the order of the questions, with `concurrency` requests kept running."""
    headers = {"Authorization": f"Bearer {target.key}"} if target.key else {}
    gate = asyncio.Semaphore(concurrency)
    timeout = aiohttp.ClientTimeout(total=None, sock_read=600)
    connector = aiohttp.TCPConnector(limit=concurrency)
    async with aiohttp.ClientSession(
        headers=headers, timeout=timeout, connector=connector
    ) as session:

        async def one(question: Question) -> Answer:
            async with gate:
                return await _ask(session, target, question)

        return await asyncio.gather(*(one(q) for q in questions))


def score(questions: list[Question], answers: list[Answer]) -> Score:
    """Compare the answers with the truth; text answers must match but for case and a full stop."""
    total = Score()
    for question, answer in zip(questions, answers, strict=True):
        if question.skill == "query":
            said = answer["answer"].strip().rstrip(".").lower()
            total.add_count(said == question.answer.strip().rstrip(".").lower())
        elif question.skill == "point":
            total.add_points([(p["x"], p["y"]) for p in answer["points"]], question.boxes)
        else:
            corners = ("x_min", "y_min", "x_max", "y_max")
            found = [tuple(o[c] for c in corners) for o in answer["objects"]]
            total.add_boxes(found, question.boxes)
    return total


def _table(rows: list[dict[str, Any]]) -> str:
    head = list(rows[0])
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    lines += ["| " + " | ".join(str(row[h]) for h in head) + " |" for row in rows]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--url", default="http://127.0.0.1:8000/v1")
    parser.add_argument("--model", help="model name to send; the server's default without it")
    parser.add_argument("--api-key")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--data", type=Path, help="folder with questions.jsonl")
    parser.add_argument("--questions", type=int, default=900, help="synthetic questions")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--size", type=int, default=112, help="smallest synthetic picture, pixels")
    parser.add_argument("--save-data", type=Path, help="also write the questions to this folder")
    parser.add_argument("--json", type=Path, help="write the figures here")
    args = parser.parse_args()
    if args.data:
        questions = read_folder(args.data)
    else:
        questions = [q for q, _, _ in held_out(args.seed, args.questions, args.size)]
    if args.save_data:
        write_folder(args.save_data, questions)
    target = Target(args.url, args.model, args.api_key)
    rows: list[dict[str, Any]] = []
    first: list[Answer] | None = None
    for concurrency in args.concurrency:
        began = time.monotonic()
        answers = asyncio.run(ask_all(target, questions, concurrency))
        seconds = time.monotonic() - began
        first = first or answers
        rows.append(
            {
                "concurrency": concurrency,
                "questions": len(questions),
                **score(questions, answers).summary(),
                "differ_from_first": sum(a != b for a, b in zip(first, answers, strict=True)),
                "questions_per_s": round(len(questions) / seconds, 1),
            }
        )
    print(_table(rows))
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
