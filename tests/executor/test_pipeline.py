"""The step pipeline alone: every order of calls that it allows keeps the invariants, and every
call that would break one is refused and changes nothing.

The machine below plays the engine: it launches, finalizes, delivers and commits at random, with
requests that arrive, finish and are aborted at random, and a pool of blocks that is handed out
again as soon as it is given back. The numbers are those of the design document.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from vllm_photon.executor.pipeline import (
    DEPTH,
    InflightRefs,
    Phase,
    PipelineError,
    Step,
    StepPipeline,
)

BLOCKS = 12


@dataclass(eq=False)
class Client:
    """A request of the model: its blocks, its tokens as the client sees them."""

    name: str
    constrained: bool
    blocks: set[int] = field(default_factory=set)
    tokens: list[int] = field(default_factory=list)
    finished: bool = False


@dataclass(eq=False)
class Launch:
    """A step of the model, with the blocks that it writes."""

    rows: list[Client]
    writes: set[int]


class Engine(RuleBasedStateMachine):
    """A model engine around the real StepPipeline and InflightRefs."""

    def __init__(self) -> None:
        super().__init__()
        self.time = 0.0
        self.pipeline: StepPipeline[Launch] = StepPipeline(clock=self.tick)
        self.refs: InflightRefs[Client] = InflightRefs()
        self.clients: list[Client] = []
        self.parked: dict[Client, set[int]] = {}
        self.free = set(range(BLOCKS))
        self.launched: deque[Step[Launch]] = deque()
        self.names = 0
        self.committed = 0
        self.closed: list[tuple[Client, list[int]]] = []

    def tick(self) -> float:
        self.time += 1.0
        return self.time

    @rule(constrained=st.booleans(), again=st.booleans())
    @precondition(lambda self: len(self.clients) < 6)
    def arrive(self, constrained: bool, again: bool) -> None:
        """``again`` gives the id of a zombie to a new request."""
        zombies = [client.name for client in self.parked]
        self.names += 1
        name = zombies[0] if again and zombies else f"r{self.names}"
        self.clients.append(Client(name, constrained))

    @rule(data=st.data())
    @precondition(lambda self: len(self.pipeline) < DEPTH and self.newest_is_finalized())
    def launch(self, data: st.DataObject) -> None:
        rows = [client for client in self.clients if data.draw(st.booleans())]
        writes = set()
        for client in rows:
            if self.free and data.draw(st.booleans()):
                client.blocks.add(self.free.pop())
            writes |= client.blocks
        needs = any(client.constrained and self.refs[client] for client in rows)
        payload = Launch(rows, writes)
        self.launched.append(self.pipeline.launch(payload, needs_commit=needs))
        self.refs.launch(rows)

    @rule()
    @precondition(lambda self: self.launched and not self.newest_is_finalized())
    def finalize(self) -> None:
        step = self.launched[-1]
        if step.needs_commit and len(self.pipeline) > 1:
            before = self.state()
            with pytest.raises(PipelineError, match="not committed"):
                self.pipeline.finalize(step)
            assert self.state() == before
        else:
            self.pipeline.finalize(step)

    @rule()
    def deliver(self) -> None:
        ready = [step for step in self.launched if step.phase is Phase.FINALIZED]
        if not ready:
            return
        if len(ready) == 2:
            before = self.state()
            with pytest.raises(PipelineError, match="comes first"):
                self.pipeline.deliver(ready[1])
            assert self.state() == before
        self.pipeline.deliver(ready[0])

    @rule(data=st.data())
    @precondition(lambda self: self.launched and self.launched[0].phase is Phase.DELIVERED)
    def commit(self, data: st.DataObject) -> None:
        step = self.launched[0]
        if len(self.launched) == 2:
            before = self.state()
            with pytest.raises(PipelineError, match="oldest"):
                self.pipeline.commit(self.launched[1].payload)
            assert self.state() == before
        assert self.pipeline.commit(step.payload) is step
        self.launched.popleft()
        assert step.index == self.committed
        self.committed += 1
        for client in self.refs.commit(step.payload.rows):
            self.free |= self.parked.pop(client, set())
        for client in step.payload.rows:
            if not client.finished:
                client.tokens.append(step.index)
                if data.draw(st.integers(0, 3)) == 0:
                    self.release(client)

    @rule(data=st.data())
    @precondition(lambda self: self.clients)
    def abort(self, data: st.DataObject) -> None:
        self.release(data.draw(st.sampled_from(self.clients)))

    def release(self, client: Client) -> None:
        client.finished = True
        self.clients.remove(client)
        if self.refs[client]:
            self.parked[client] = client.blocks
        else:
            self.free |= client.blocks
        client.blocks = set()
        self.closed.append((client, list(client.tokens)))

    def newest_is_finalized(self) -> bool:
        return not self.launched or self.launched[-1].phase is not Phase.LAUNCHED

    def state(self) -> tuple:
        return (
            [(s.index, s.slot, s.phase) for s in self.pipeline.steps],
            [(s.finalized_at, s.delivered_at, s.committed_at) for s in self.launched],
        )

    @invariant()
    def i1_i2_in_flight_in_launch_order(self) -> None:
        assert list(self.pipeline.steps) == list(self.launched)
        indices = [step.index for step in self.launched]
        assert indices == list(range(self.committed, self.committed + len(indices)))

    @invariant()
    def i3_references_are_the_steps_that_hold_a_request(self) -> None:
        held = [client for step in self.launched for client in step.payload.rows]
        for client in {*held, *self.clients}:
            assert self.refs[client] == held.count(client) <= DEPTH
        assert len(self.refs) == len(set(held))

    @invariant()
    def i4_finalized_after_the_commit_that_it_needs(self) -> None:
        for step in list(self.launched)[1:]:
            assert not (step.needs_commit and step.phase is not Phase.LAUNCHED)

    @invariant()
    def i6_a_slot_belongs_to_one_step(self) -> None:
        slots = [step.slot for step in self.launched]
        assert len(set(slots)) == len(slots)
        assert set(slots) <= set(range(DEPTH))

    @invariant()
    def i7_nothing_reaches_a_finished_request(self) -> None:
        for client, tokens in self.closed:
            assert client.tokens == tokens

    @invariant()
    def i8_no_free_block_is_written_by_a_step_in_flight(self) -> None:
        for step in self.launched:
            assert not step.payload.writes & self.free
        held = [*(c.blocks for c in self.clients), *self.parked.values()]
        assert sum(map(len, held)) + len(self.free) == BLOCKS

    @invariant()
    def i8_idle_means_all_blocks_free(self) -> None:
        if not self.launched and not self.clients:
            assert len(self.free) == BLOCKS
            assert not self.parked

    @invariant()
    def times_follow_the_phases(self) -> None:
        for step in self.launched:
            times = (step.launched_at, step.finalized_at, step.delivered_at, step.committed_at)
            reached = [time for time in times if time]
            assert reached == sorted(reached)
            assert len(reached) == list(Phase).index(step.phase) + 1


TestEngine = Engine.TestCase
TestEngine.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)


def test_i6_no_third_step() -> None:
    pipeline: StepPipeline[str] = StepPipeline()
    for name in "ab":
        pipeline.finalize(pipeline.launch(name))
    with pytest.raises(PipelineError, match=r"every slot is taken.*step 0.*step 1"):
        pipeline.launch("c")
    assert len(pipeline) == 2


def test_i1_no_launch_past_an_unfinalized_step() -> None:
    pipeline: StepPipeline[str] = StepPipeline()
    pipeline.launch("a")
    with pytest.raises(PipelineError, match=r"step 0 \(slot 0, launched\) is not finalized"):
        pipeline.launch("b")


@pytest.mark.parametrize("phase", ["launched", "finalized"])
def test_i2_no_commit_before_delivery(phase: str) -> None:
    pipeline: StepPipeline[str] = StepPipeline()
    step = pipeline.launch("a")
    if phase == "finalized":
        pipeline.finalize(step)
    with pytest.raises(PipelineError, match="not delivered"):
        pipeline.commit("a")


def test_i4_a_step_alone_needs_no_commit() -> None:
    pipeline: StepPipeline[str] = StepPipeline()
    pipeline.finalize(pipeline.launch("a", needs_commit=True))


def test_i2_no_commit_without_a_step() -> None:
    with pytest.raises(PipelineError, match="no step is in flight"):
        StepPipeline().commit("a")


def test_i3_references_stay_within_the_depth_and_a_refused_call_changes_none() -> None:
    refs: InflightRefs[str] = InflightRefs()
    refs.launch(["a", "b"])
    refs.launch(["b"])
    with pytest.raises(PipelineError, match="'b' is in 2 steps already"):
        refs.launch(["a", "b"])
    assert (refs["a"], refs["b"]) == (1, 2)
    assert refs.commit(["a", "b"]) == ["a"]
    with pytest.raises(PipelineError, match="'a' is in no step"):
        refs.commit(["b", "a"])
    assert refs.commit(["b"]) == ["b"]
    assert len(refs) == 0
