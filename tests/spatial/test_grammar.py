"""The grammar table: what each skill may produce, and the two forms of it agree."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_photon.spatial.grammar import (
    RULES,
    Cursor,
    GrammarError,
    State,
    TokenClass,
    TokenClasses,
    decodes_sizes,
    dense_tables,
    is_closed,
)
from vllm_photon.spatial.tokens import Coord, Size, SpatialVocab

VOCAB = SpatialVocab(600)
CLASSES = TokenClasses(VOCAB)
COORD, SIZE = VOCAB.encode(Coord(3)), VOCAB.encode(Size(4, 5))
EOS, ANSWER, TEXT = 0, 3, 77


def allowed_after(start: State, ids: list[int], cap: int = 1000) -> set[TokenClass]:
    cursor = Cursor(CLASSES, start, cap)
    cursor.advance(ids)
    return set(cursor.allowed)


def test_points_alternate_and_end_between_points() -> None:
    assert allowed_after(State.POINT_X, []) == {TokenClass.COORD, TokenClass.EOS}
    assert allowed_after(State.POINT_X, [COORD]) == {TokenClass.COORD}
    assert allowed_after(State.POINT_X, [COORD] * 2) == {TokenClass.COORD, TokenClass.EOS}


def test_boxes_need_a_size() -> None:
    assert allowed_after(State.DETECT_X, [COORD, COORD]) == {TokenClass.SIZE}
    assert allowed_after(State.DETECT_X, [COORD, COORD, SIZE]) == {TokenClass.COORD, TokenClass.EOS}


@pytest.mark.parametrize(
    ("start", "one"), [(State.POINT_X, [COORD] * 2), (State.DETECT_X, [COORD, COORD, SIZE])]
)
def test_only_eos_at_the_cap_and_never_half_an_object(start: State, one: list[int]) -> None:
    assert TokenClass.COORD in allowed_after(start, one * 2, cap=3)
    assert allowed_after(start, one * 2 + one[:1], cap=3) != {TokenClass.EOS}
    assert allowed_after(start, one * 3, cap=3) == {TokenClass.EOS}


def test_an_answer_holds_anything_but_the_answer_token() -> None:
    assert set(TokenClass) - allowed_after(State.ANSWER, [TEXT, 5, 6]) == {TokenClass.ANSWER}


def test_reasoning_turns_into_an_answer() -> None:
    assert set(TokenClass) - allowed_after(State.REASON, [TEXT, COORD]) == {
        TokenClass.EOS,
        TokenClass.SIZE,
    }
    assert allowed_after(State.REASON, [TEXT, COORD], cap=2) == {TokenClass.ANSWER}
    cursor = Cursor(CLASSES, State.REASON)
    cursor.advance([TEXT])
    assert cursor.decodes
    cursor.advance([TEXT, ANSWER])
    assert cursor.state is State.ANSWER
    assert not cursor.decodes


def test_only_boxes_and_segments_hold_sizes_with_values() -> None:
    holding = {state for state in State if decodes_sizes(state)}
    assert holding == {State.DETECT_X, State.DETECT_Y, State.DETECT_SIZE, State.SEGMENT}


def test_points_and_boxes_never_leave_three_tokens() -> None:
    searches = {s for s in State if s.name.startswith(("POINT", "DETECT"))}
    assert {state for state in State if is_closed(state)} == searches | {State.DONE}


def test_a_finished_request_may_be_run_once_more() -> None:
    """The pipelined step may launch a request that EOS has just ended."""
    assert allowed_after(State.POINT_X, [EOS]) == {TokenClass.EOS}
    assert allowed_after(State.POINT_X, [EOS, EOS]) == {TokenClass.EOS}


def test_i5_a_placeholder_is_an_error() -> None:
    cursor = Cursor(CLASSES, State.POINT_X)
    with pytest.raises(GrammarError, match="I5"):
        cursor.advance([COORD, -1])


@pytest.mark.parametrize("stray", [SIZE, TEXT, 7, ANSWER])
def test_a_token_outside_the_grammar_is_an_error(stray: int) -> None:
    cursor = Cursor(CLASSES, State.POINT_X)
    with pytest.raises(GrammarError, match="position 1"):
        cursor.advance([COORD, stray])


def test_an_image_position_is_no_output() -> None:
    with pytest.raises(GrammarError, match="image"):
        CLASSES.class_of(VOCAB.image_id)


def test_a_shorter_list_starts_again() -> None:
    cursor = Cursor(CLASSES, State.DETECT_X, cap=1)
    cursor.advance([COORD, COORD, SIZE])
    cursor.advance([COORD])
    assert cursor.state is State.DETECT_Y
    assert cursor.count == 0


def test_the_answer_token_comes_twice_where_it_must() -> None:
    others = set(TokenClass) - {TokenClass.EOS, TokenClass.SIZE}
    assert allowed_after(State.REASON_TWICE, [TEXT, COORD]) == others
    assert allowed_after(State.REASON_TWICE, [TEXT, COORD], cap=2) == {TokenClass.ANSWER}
    cursor = Cursor(CLASSES, State.REASON_TWICE)
    assert cursor.decodes
    cursor.advance([TEXT, COORD, ANSWER])
    assert cursor.allowed == {TokenClass.ANSWER}
    assert not cursor.decodes
    cursor.advance([TEXT, COORD, ANSWER, ANSWER])
    assert cursor.state is State.ANSWER


STARTS = [
    State.POINT_X,
    State.DETECT_X,
    State.ANSWER,
    State.REASON,
    State.REASON_TWICE,
    State.SEGMENT,
]


@given(
    start=st.sampled_from(STARTS),
    cap=st.integers(1, 4),
    choices=st.lists(st.integers(0, 100), max_size=40),
    cuts=st.lists(st.integers(1, 5), max_size=20),
)
def test_stepwise_and_dense_tables_agree(
    start: State, cap: int, choices: list[int], cuts: list[int]
) -> None:
    """A random walk through allowed tokens: in any chunks, and by the arrays, it ends alike."""
    ids_of = {
        TokenClass.TEXT: TEXT,
        TokenClass.EOS: EOS,
        TokenClass.ANSWER: ANSWER,
        TokenClass.COORD: COORD,
        TokenClass.SIZE: SIZE,
    }
    tables = dense_tables()
    state, count = int(start), 0
    walk: list[int] = []
    by_step = Cursor(CLASSES, start, cap)
    for choice in choices:
        at_cap = int(count >= cap)
        allowed = [c for c in TokenClass if tables.allowed[at_cap][state][c]]
        assert set(allowed) == by_step.allowed
        assert bool(tables.decodes[state]) == by_step.decodes
        token_class = allowed[choice % len(allowed)]
        count += tables.counts[state][token_class]
        state = tables.next_state[state][token_class]
        walk.append(ids_of[token_class])
        by_step.advance(walk)
        assert (by_step.state, by_step.count) == (state, count)
    in_chunks = Cursor(CLASSES, start, cap)
    at = 0
    for cut in [*cuts, len(walk)]:
        at = min(at + cut, len(walk))
        in_chunks.advance(walk[:at])
    assert (in_chunks.state, in_chunks.count) == (state, count)


def test_every_state_leads_somewhere() -> None:
    assert set(RULES) == set(State)
    for rule in RULES.values():
        assert rule.goes
        assert rule.allows(True) <= rule.allowed
