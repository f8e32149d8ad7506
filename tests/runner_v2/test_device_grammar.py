"""The tensors of the grammar against the walk of one request in Python."""

from __future__ import annotations

from typing import NamedTuple

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_photon.logits_processors.device_grammar import DeviceGrammar
from vllm_photon.spatial.grammar import (
    UNCAPPED,
    Cursor,
    State,
    TokenClass,
    TokenClasses,
)
from vllm_photon.spatial.tokens import Coord, Size, SpatialVocab

VOCAB = SpatialVocab(40)
CLASSES = TokenClasses(VOCAB)
GRAMMAR = DeviceGrammar(CLASSES, torch.device("cpu"))
STARTS = [
    State.POINT_X,
    State.DETECT_X,
    State.ANSWER,
    State.REASON,
    State.REASON_TWICE,
    State.SEGMENT,
]
bins = st.integers(0, 1023)
TOKENS = {
    TokenClass.TEXT: st.integers(10, 39),
    TokenClass.EOS: st.just(0),
    TokenClass.ANSWER: st.just(3),
    TokenClass.COORD: st.just(5) | bins.map(lambda bin_: VOCAB.encode(Coord(bin_))),
    TokenClass.SIZE: st.just(6) | st.builds(lambda w, h: VOCAB.encode(Size(w, h)), bins, bins),
}


class Answer(NamedTuple):
    start: State
    cap: int
    ids: list[int]

    def cursor(self, length: int | None = None) -> Cursor:
        cursor = Cursor(CLASSES, self.start, self.cap)
        cursor.advance(self.ids[:length])
        return cursor


@st.composite
def answers(draw: st.DrawFn) -> Answer:
    """A legal answer, cut anywhere."""
    start = draw(st.sampled_from(STARTS))
    cap = draw(st.sampled_from([1, 2, 5, UNCAPPED]))
    answer = Answer(start, cap, [])
    cursor = answer.cursor()
    for _ in range(draw(st.integers(0, 30))):
        token_class = draw(st.sampled_from(sorted(cursor.allowed)))
        answer.ids.append(draw(TOKENS[token_class]))
        cursor.advance(answer.ids)
    return answer


def expected(cursor: Cursor) -> list[bool]:
    return [CLASSES.class_of(token) in cursor.allowed for token in range(VOCAB.vocab_size)]


def check(places: torch.Tensor, batch: list[Answer], lengths: list[int]) -> None:
    """The place of each row says what the request's own walk says after that many tokens."""
    allowed = ~GRAMMAR.banned(places)
    for row, (answer, length) in enumerate(zip(batch, lengths, strict=True)):
        cursor = answer.cursor(length)
        assert places[row].tolist() == [cursor.state, answer.cap - cursor.count]
        assert allowed[row].tolist() == expected(cursor)
        assert bool(GRAMMAR.decodes(places)[row]) == cursor.decodes


@settings(max_examples=60, deadline=None)
@given(st.lists(answers(), min_size=1, max_size=4))
def test_token_by_token(batch: list[Answer]) -> None:
    places = torch.tensor([[int(answer.start), answer.cap] for answer in batch])
    check(places, batch, [0] * len(batch))
    for step in range(max(len(answer.ids) for answer in batch)):
        live = torch.tensor([step < len(answer.ids) for answer in batch])
        ids = torch.tensor([([*answer.ids, 7] + [7] * step)[step] for answer in batch])
        places = GRAMMAR.advance(places, ids, live)
        check(places, batch, [min(step + 1, len(answer.ids)) for answer in batch])


@settings(max_examples=60, deadline=None)
@given(st.lists(answers(), min_size=1, max_size=4), st.integers(0, 3))
def test_whole_answers_at_once(batch: list[Answer], spare: int) -> None:
    lengths = [len(answer.ids) for answer in batch]
    longest = max([1, *lengths]) + spare
    rest = VOCAB.image_id  # what lies behind an answer is never looked at
    ids = torch.tensor([answer.ids + [rest] * (longest - len(answer.ids)) for answer in batch])
    start = torch.tensor([int(answer.start) for answer in batch])
    state, count = GRAMMAR.replay(start, ids, torch.tensor(lengths))
    caps = torch.tensor([answer.cap for answer in batch])
    check(torch.stack((state, caps - count), dim=1), batch, lengths)


def test_a_request_without_a_skill_is_free() -> None:
    places = start = torch.tensor([[GRAMMAR.free, 1]])
    for token in (0, 3, 5, 6, 20, VOCAB.encode(Coord(1)), VOCAB.image_id):
        places = GRAMMAR.advance(places, torch.tensor([token]), torch.tensor([True]))
    assert torch.equal(places, start)
    for left in (0, 1):
        assert not GRAMMAR.banned(torch.tensor([[GRAMMAR.free, left]])).any()
    assert not GRAMMAR.decodes(places).any()
