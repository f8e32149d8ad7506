"""Whether two runs of one workload gave the same answers; what differs, in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from tests.identity.workload import Answer, Result, Workload

TOLERANCE = 2e-4
"""Of a logprob, in float32: the rows of a step decide how its sums are blocked."""


def differences(workload: Workload, expected: Result, actual: Result) -> list[str]:
    """What differs, one line each; empty when the runs agree.

    A request whose client left is compared up to the shorter answer: how many tokens reach a
    client before its abort does is timing, which tokens they are is not.
    """
    found = [
        f"{key}: only in one run" for key in sorted(expected.answers.keys() ^ actual.answers.keys())
    ]
    if workload.sampled:
        found += _compare_draws(expected.answers.values(), actual.answers.values())
    else:
        for key in sorted(expected.answers.keys() & actual.answers.keys()):
            lines = _differ(expected.answers[key], actual.answers[key])
            found += [f"{key}: {line}" for line in lines]
    for name, result in (("expected", expected), ("actual", actual)):
        if result.counts.get("blocks_lost"):
            found.append(f"{name} run lost {result.counts['blocks_lost']} blocks")
    return found


def missing(workload: Workload, results: list[Result]) -> list[str]:
    """What the workload was made to show and did not, in any of the runs.

    A word of ``shows`` is a count of the engine (``preemptions``, ``zombies``), ``stop:eos``,
    ``stop:id``, ``stop:string``, ``aborted``, or a finish reason.
    """
    seen: set[str] = set()
    for result in results:
        seen |= {name for name, count in result.counts.items() if count}
        for answer in result.answers.values():
            seen |= _traits(answer)
    return [word for word in workload.shows if word not in seen]


def _traits(answer: Answer) -> set[str]:
    traits = {str(answer.finish)}
    if answer.aborted:
        traits.add("aborted")
    if answer.finish == "stop":
        kinds: dict[type, str] = {int: "stop:id", str: "stop:string", type(None): "stop:eos"}
        traits.add(kinds[type(answer.stop)])
    return traits


def _differ(expected: Answer, actual: Answer) -> Iterator[str]:
    length = min(len(expected.tokens), len(actual.tokens))
    if expected.aborted or actual.aborted:
        if expected.tokens[:length] != actual.tokens[:length]:
            yield f"aborted, {_first(expected.tokens, actual.tokens)}"
        return
    if expected.tokens != actual.tokens:
        yield _first(expected.tokens, actual.tokens)
        return
    for field in ("text", "finish", "stop"):
        left, right = getattr(expected, field), getattr(actual, field)
        if left != right:
            yield f"{field} {left!r} != {right!r}"
    for field in ("logprobs", "prompt_logprobs"):
        left, right = getattr(expected, field), getattr(actual, field)
        if (left is None) != (right is None):
            yield f"{field} in only one run"
        elif left is not None:
            yield from _compare_positions(field, left, right)


def _compare_draws(expected: Iterable[Answer], actual: Iterable[Answer]) -> Iterator[str]:
    """Pearson's chi-square of two samples of the same size; by chance one time in a million.

    The quantile is Wilson and Hilferty's (Proceedings of the NAS 17, 1931).
    """
    left, right = (Counter(tuple(a.tokens) for a in answers) for answers in (expected, actual))
    kinds = left.keys() | right.keys()
    statistic = sum((left[k] - right[k]) ** 2 / (left[k] + right[k]) for k in kinds)
    free = len(kinds) - 1
    part = 2 / (9 * free)
    limit = free * (1 - part + 4.75 * part**0.5) ** 3
    if statistic > limit:
        yield f"chi-square {statistic:.0f} over {limit:.0f}: {left} and {right}"


def _compare_positions(field: str, left: list, right: list) -> Iterator[str]:
    if len(left) != len(right):
        yield f"{field}: {len(left)} positions != {len(right)}"
        return
    for position, (a, b) in enumerate(zip(left, right, strict=True)):
        if (a is None) != (b is None):
            yield f"{field}[{position}]: None in only one run"
        elif a is not None:
            yield from _compare_logprobs(f"{field}[{position}]", a, b)


def _compare_logprobs(place: str, a: dict[str, float], b: dict[str, float]) -> Iterator[str]:
    """A token at the edge of the top k may change places with one as good."""
    worst = min([*a.values(), *b.values()])
    for token in sorted(a.keys() | b.keys()):
        left, right = a.get(token, worst), b.get(token, worst)
        if left != right and abs(left - right) > TOLERANCE:
            yield f"{place}: token {token} {left} != {right}"


def _first(expected: list[int], actual: list[int]) -> str:
    pairs = zip(expected, actual, strict=False)
    at = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(expected), len(actual)))
    return (
        f"token {at} differs: {expected[at : at + 4]} != {actual[at : at + 4]}"
        f" ({len(expected)} and {len(actual)} tokens)"
    )
