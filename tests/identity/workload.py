"""What a run asks of an engine: requests, when they arrive, when their client leaves. Plain data.

Everything here survives JSON, since engines run in processes of their own.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass
class Ask:
    """One request.

    ``params`` are keyword arguments of vLLM's SamplingParams (``structured_outputs`` as a dict).
    ``arrive`` is the engine step before which it is added; ``abort`` the number of tokens after
    which its client leaves, or None. ``image`` is a path, sent along with the prompt ids.
    """

    id: str
    prompt: list[int]
    params: dict[str, Any]
    arrive: int = 0
    abort: int | None = None
    lora: int = 0
    image: str | None = None
    priority: int = 0


@dataclass
class Workload:
    """Requests that share one run of an engine.

    ``shows`` names what the run must contain for the comparison to mean anything, for example
    ``preemptions`` or a finish reason; see :func:`tests.identity.compare.missing`. With
    ``sampled`` the answers of all requests, which are alike, are draws from one distribution;
    they are compared as such, not one by one.
    """

    name: str
    asks: list[Ask]
    shows: list[str] = field(default_factory=list)
    sampled: bool = False

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Workload:
        asks = [Ask(**ask) for ask in data["asks"]]
        return cls(data["name"], asks, data["shows"], data["sampled"])


@dataclass
class Answer:
    """What came back for one sequence of a request (``n`` > 1 gives several)."""

    tokens: list[int] = field(default_factory=list)
    text: str = ""
    finish: str | None = None
    stop: int | str | None = None
    logprobs: list[dict[str, float]] | None = None
    prompt_logprobs: list[dict[str, float] | None] | None = None
    aborted: bool = False


@dataclass
class Result:
    """The answers of a workload by ``request/index``, and what happened inside the engine."""

    answers: dict[str, Answer]
    counts: dict[str, int]

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Result:
        answers = {key: Answer(**answer) for key, answer in data["answers"].items()}
        return cls(answers, data["counts"])
