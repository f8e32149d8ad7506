"""Which tokens a skill may produce next, as one table.

A skill is a walk over a few states. Each state allows some *classes* of tokens and names the state
that follows each of them; some steps count (a finished object, a token of reasoning), and once the
count reaches the request's cap a state may allow less. At the cap a list of objects may only end:
a capped answer still stops by itself and never holds half an object.

The same table is used in two ways: :class:`Cursor` walks it in Python over a request's token ids,
and :func:`dense_tables` gives it as integer arrays for code that keeps its state on a device.

The rules are those of the published Moondream code (``moondream.py``): points and boxes alternate
between fixed kinds of tokens and end at EOS; an answer never holds the answer token; reasoning
never ends by EOS and never samples a size. Two rules are Moondream's engine's: between objects only
a coordinate or EOS can be sampled, nothing else of the vocabulary; a segment is not constrained.
A third holds only where the engine's rules are asked for: after Moondream 2's reasoning the answer
token comes twice, as it does before an answer without reasoning.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from vllm_photon.spatial.tokens import COORD_BINS, SpatialVocab

UNCAPPED = 2**31 - 1


class TokenClass(IntEnum):
    """What the grammar tells apart; every class but TEXT is one token of the vocabulary."""

    TEXT = 0
    EOS = 1
    ANSWER = 2
    COORD = 3
    SIZE = 4


class State(IntEnum):
    """Where a request stands: what the next token is for."""

    DONE = 0
    POINT_X = 1
    POINT_Y = 2
    DETECT_X = 3
    DETECT_Y = 4
    DETECT_SIZE = 5
    ANSWER = 6
    REASON = 7
    SEGMENT = 8
    REASON_TWICE = 9
    ANSWER_AGAIN = 10


class GrammarError(RuntimeError):
    """A request's tokens left its grammar, or a placeholder id reached it (invariant I5)."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One state: ``goes`` maps each allowed class to the state that follows.

    ``counts`` are the classes whose tokens add one to the request's count, ``capped`` what is
    allowed once the count has reached the cap (None: the same as before). ``decodes`` says that a
    coordinate or size sampled here has a value, read by the region head; elsewhere it is a token
    like any other.
    """

    goes: dict[TokenClass, State]
    counts: frozenset[TokenClass] = frozenset()
    capped: frozenset[TokenClass] | None = None
    decodes: bool = False
    allowed: frozenset[TokenClass] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "allowed", frozenset(self.goes))

    def allows(self, at_cap: bool) -> frozenset[TokenClass]:
        """The classes allowed next."""
        return self.capped if at_cap and self.capped is not None else self.allowed


_T = TokenClass
_ONLY_EOS = frozenset({_T.EOS})
# What points and boxes are made of; nothing else of the vocabulary can be sampled there.
CLOSED = frozenset({_T.EOS, _T.COORD, _T.SIZE})


def _reasoning(state: State, then: State) -> Rule:
    """The rule of ``state``: reasoning that the answer token ends; its tokens count."""
    return Rule(
        {_T.TEXT: state, _T.COORD: state, _T.ANSWER: then},
        counts=frozenset({_T.TEXT, _T.COORD}),
        capped=frozenset({_T.ANSWER}),
        decodes=True,
    )


RULES: dict[State, Rule] = {
    # A pipelined engine may run a finished request once more; that row must stay well formed.
    State.DONE: Rule({_T.EOS: State.DONE}),
    State.POINT_X: Rule(
        {_T.COORD: State.POINT_Y, _T.EOS: State.DONE}, capped=_ONLY_EOS, decodes=True
    ),
    State.POINT_Y: Rule({_T.COORD: State.POINT_X}, counts=frozenset({_T.COORD}), decodes=True),
    State.DETECT_X: Rule(
        {_T.COORD: State.DETECT_Y, _T.EOS: State.DONE}, capped=_ONLY_EOS, decodes=True
    ),
    State.DETECT_Y: Rule({_T.COORD: State.DETECT_SIZE}, decodes=True),
    State.DETECT_SIZE: Rule({_T.SIZE: State.DETECT_X}, counts=frozenset({_T.SIZE}), decodes=True),
    State.ANSWER: Rule(
        {
            _T.TEXT: State.ANSWER,
            _T.COORD: State.ANSWER,
            _T.SIZE: State.ANSWER,
            _T.EOS: State.DONE,
        }
    ),
    State.REASON: _reasoning(State.REASON, then=State.ANSWER),
    State.REASON_TWICE: _reasoning(State.REASON_TWICE, then=State.ANSWER_AGAIN),
    State.ANSWER_AGAIN: Rule({_T.ANSWER: State.ANSWER}),
    State.SEGMENT: Rule(
        {c: State.DONE if c is _T.EOS else State.SEGMENT for c in TokenClass}, decodes=True
    ),
}


@dataclass(frozen=True, slots=True)
class TokenClasses:
    """Token ids of the classes for one model."""

    vocab: SpatialVocab
    eos_id: int = 0
    answer_id: int = 3

    def class_of(self, token_id: int) -> TokenClass:
        """The class of a produced id, ordinary or virtual.

        GrammarError for a negative id: a placeholder whose token is not known yet.
        """
        if token_id < 0:
            raise GrammarError(
                f"placeholder id {token_id} reached the grammar before its token was known (I5)"
            )
        offset = token_id - self.vocab.vocab_size
        if offset >= 0:
            if offset >= self.vocab.image_id - self.vocab.vocab_size:
                raise GrammarError(f"id {token_id} stands for an image position, not an output")
            return TokenClass.COORD if offset < COORD_BINS else TokenClass.SIZE
        if token_id == self.eos_id:
            return TokenClass.EOS
        if token_id == self.answer_id:
            return TokenClass.ANSWER
        if token_id == self.vocab.coord_id:
            return TokenClass.COORD
        if token_id == self.vocab.size_id:
            return TokenClass.SIZE
        return TokenClass.TEXT

    def id_of(self, token_class: TokenClass) -> int:
        """The token that the language model samples for a class other than TEXT."""
        return {
            TokenClass.EOS: self.eos_id,
            TokenClass.ANSWER: self.answer_id,
            TokenClass.COORD: self.vocab.coord_id,
            TokenClass.SIZE: self.vocab.size_id,
        }[token_class]


class Cursor:
    """One request's place in the grammar, moved along its list of output ids.

    ``advance`` looks only at ids that it has not seen, so a step costs the same however long the
    answer is; when the list has shrunk it starts again from the beginning.
    """

    __slots__ = ("cap", "classes", "consumed", "count", "start", "state")

    def __init__(self, classes: TokenClasses, start: State, cap: int = UNCAPPED) -> None:
        self.classes = classes
        self.start = start
        self.cap = cap
        self._restart()

    def _restart(self) -> None:
        self.state, self.count, self.consumed = self.start, 0, 0

    def advance(self, token_ids: Sequence[int]) -> None:
        """Move to the end of ``token_ids``, all output ids of the request so far.

        GrammarError when one of them is a placeholder or is not allowed where it stands.
        """
        if len(token_ids) < self.consumed:
            self._restart()
        for position in range(self.consumed, len(token_ids)):
            token_class = self.classes.class_of(token_ids[position])
            rule = RULES[self.state]
            if token_class not in rule.goes:
                raise GrammarError(
                    f"token {token_ids[position]} ({token_class.name}) at output position "
                    f"{position} is not allowed in state {self.state.name}"
                )
            self.count += token_class in rule.counts
            self.state = rule.goes[token_class]
        self.consumed = len(token_ids)

    @property
    def allowed(self) -> frozenset[TokenClass]:
        """Classes that may come next."""
        return RULES[self.state].allows(self.count >= self.cap)

    @property
    def decodes(self) -> bool:
        """Whether a coordinate or size sampled next has a value."""
        return RULES[self.state].decodes


def decodes_sizes(start: State) -> bool:
    """Whether an answer that begins in ``start`` can hold a size that has a value."""
    rules = _rules_from(start)
    return any(rule.decodes and TokenClass.SIZE in rule.goes for rule in rules)


def is_closed(start: State) -> bool:
    """Whether an answer that begins in ``start`` is made of :data:`CLOSED` classes only."""
    return all(rule.allowed <= CLOSED for rule in _rules_from(start))


def _rules_from(start: State) -> list[Rule]:
    reached, todo = {start}, [start]
    while todo:
        following = set(RULES[todo.pop()].goes.values()) - reached
        reached |= following
        todo += following
    return [RULES[state] for state in reached]


@dataclass(frozen=True, slots=True)
class DenseTables:
    """The rules as arrays: S states, C classes.

    ``allowed`` is [2][S][C], first index 1 at the cap; ``next_state`` is [S][C] (a class that is
    not allowed stays in its state); ``counts`` is [S][C]; ``decodes`` is [S]. All 0 or 1 but
    ``next_state``.
    """

    allowed: list[list[list[int]]]
    next_state: list[list[int]]
    counts: list[list[int]]
    decodes: list[int]


def dense_tables() -> DenseTables:
    """The whole grammar as integers, the same rules that :class:`Cursor` walks."""
    return DenseTables(
        allowed=[
            [[int(c in RULES[s].allows(at_cap)) for c in TokenClass] for s in State]
            for at_cap in (False, True)
        ],
        next_state=[[int(RULES[s].goes.get(c, s)) for c in TokenClass] for s in State],
        counts=[[int(c in RULES[s].counts) for c in TokenClass] for s in State],
        decodes=[int(RULES[s].decodes) for s in State],
    )
