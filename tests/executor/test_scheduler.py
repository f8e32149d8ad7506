"""Zombies and release, on the real engine core with a KV cache that never suffices."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from vllm.v1.request import RequestStatus

from tests.executor.engine import BlockWatch, Engine, drawn_prompt
from vllm_photon.executor.pipeline import PipelineError

Patch = pytest.MonkeyPatch


def load(engine: Engine, count: int = 40, seed: int = 5) -> dict[str, list[int]]:
    """Requests that arrive, stop, leave and are preempted at random; what each got."""
    draw = random.Random(seed)
    waiting = []
    for index in range(count):
        stops = list(range(index % 7, 8192, 23)) if index % 3 else []
        params = {"max_tokens": draw.randint(20, 110), "stop_token_ids": stops}
        waiting.append((index * 2, f"q{index}", drawn_prompt(draw), params))
    leaves = {f"q{index}": draw.randint(2, 20) for index in range(1, count, 4)}
    names = [name for _, name, _, _ in waiting]
    for step in range(5_000):
        while waiting and (waiting[0][0] <= step or not engine.busy()):
            _, name, prompt, params = waiting.pop(0)
            engine.add(name, prompt, **params)
        if not engine.busy():
            return {name: engine.tokens[name] for name in names if name not in leaves}
        engine.step()
        for name, after in leaves.items():
            if len(engine.tokens.get(name, ())) >= after:
                engine.abort(name)
    raise AssertionError("the load does not come to an end")


def stock_release(engine: Engine, patch: Patch) -> None:
    """Give blocks back at once, as stock's asynchronous scheduler does."""
    patch.setattr(engine.scheduler, "_request_blocks_can_be_freed", lambda request: True)


def test_i8_no_block_is_handed_out_while_a_step_may_write_it(
    starved: Engine, monkeypatch: Patch
) -> None:
    starved.scheduler.reset_prefix_cache()
    watch = BlockWatch(starved)
    with watch.watching(monkeypatch):
        answers = load(starved)
    assert watch.violations == []
    assert watch.most_parked > 0
    assert watch.preemptions > 0
    assert starved.free_blocks() == starved.all_blocks()

    stock_release(starved, monkeypatch)
    starved.scheduler.reset_prefix_cache()
    stock = BlockWatch(starved)
    with stock.watching(monkeypatch):
        assert load(starved) == answers
    assert stock.violations, "the watch sees nothing"


def test_parked_blocks_cost_few_preemptions_and_steps(starved: Engine, monkeypatch: Patch) -> None:
    def measure(prepare: Callable[[Engine, Patch], None] | None) -> tuple[int, int]:
        starved.scheduler.reset_prefix_cache()
        watch, before = BlockWatch(starved), starved.scheduler.current_step
        with monkeypatch.context() as patch:
            if prepare is not None:
                prepare(starved, patch)
            with watch.watching(patch):
                load(starved, count=60, seed=9)
        return watch.preemptions, starved.scheduler.current_step - before

    preemptions, steps = measure(None)
    stock_preemptions, stock_steps = measure(stock_release)
    assert preemptions <= 1.5 * stock_preemptions + 5
    assert steps <= 1.2 * stock_steps


def test_i3_references(starved: Engine, monkeypatch: Patch) -> None:
    seen = set()
    update = starved.scheduler.update_from_output

    def watched(*args: Any) -> Any:
        requests = starved.scheduler.requests.values()
        seen.update(starved.scheduler.inflight_refs[request] for request in requests)
        return update(*args)

    monkeypatch.setattr(starved.scheduler, "update_from_output", watched)
    load(starved, count=10)
    assert seen | {0} == {0, 1, 2}
    assert len(starved.scheduler.inflight_refs) == 0


@pytest.mark.parametrize("after", [0, 1, 6], ids=["in its prefill", "at its first token", "later"])
def test_i7_a_reused_id_gets_nothing_of_its_zombie(starved: Engine, after: int) -> None:
    draw = random.Random(after)
    old, new = drawn_prompt(draw, 80, 90), drawn_prompt(draw, 40, 60)
    expected = {name: starved.alone(p, max_tokens=30) for name, p in (("old", old), ("new", new))}

    starved.add("same", old, max_tokens=30)
    starved.run(until=lambda: starved.core.batch_queue and len(starved.tokens["same"]) >= after)
    assert starved.scheduler.inflight_refs[starved.scheduler.requests["same"]] > 0
    starved.abort("same")
    starved.add("same", new, max_tokens=30)
    starved.run()
    assert starved.tokens["same"] == expected["new"]
    # Nor is the prefix cache poisoned: the same prompts again, now with its help.
    for prompt, name in ((old, "old"), (new, "new")):
        starved.add("again", prompt, max_tokens=30)
        starved.run()
        assert starved.tokens["again"] == expected[name]
    assert starved.free_blocks() == starved.all_blocks()


def test_i7_needs_the_check_of_identity(starved: Engine, monkeypatch: Patch) -> None:
    """Without it vLLM takes the zombie's rows for the new request's: the test above can fail."""
    draw = random.Random(3)
    old, new = drawn_prompt(draw, 80, 90), drawn_prompt(draw, 40, 60)
    expected = starved.alone(new, max_tokens=30)
    starved.add("same", old, max_tokens=30)
    starved.run(until=lambda: starved.core.batch_queue and len(starved.tokens["same"]) >= 4)
    starved.abort("same")
    starved.add("same", new, max_tokens=30)
    with monkeypatch.context() as patch:
        patch.setattr(starved.scheduler, "_drop_replaced", lambda *args: None)
        starved.run()
    assert starved.tokens["same"] != expected


def test_i4_a_mask_before_the_commit_is_refused(starved: Engine) -> None:
    starved.add("a", drawn_prompt(random.Random(1)), max_tokens=8)
    starved.run(until=lambda: len(starved.core.batch_queue) == 1)
    output = starved.launch()
    output.pending_structured_output_tokens = True
    with pytest.raises(PipelineError, match=r"a mask was asked for while step \d+"):
        starved.scheduler.get_grammar_bitmask(output)
    starved.commit()
    assert starved.scheduler.get_grammar_bitmask(output) is None
    starved.run()
    assert len(starved.tokens["a"]) == 8


def finish_all(engine: Engine) -> None:
    """Leave them alone."""


def abort_all(engine: Engine) -> None:
    engine.abort(*engine.scheduler.requests)


def fail_all(engine: Engine) -> None:
    engine.scheduler.finish_requests(None, RequestStatus.FINISHED_ERROR)


def pause_and_abort(engine: Engine) -> None:
    engine.core.pause_scheduler("abort", clear_cache=True)
    engine.core.resume_scheduler()


def sleep_and_wake(engine: Engine) -> None:
    engine.core.sleep(0, mode="abort")
    engine.core.wake_up(["scheduling"])


@pytest.mark.parametrize("in_flight", [1, 2])
@pytest.mark.parametrize(
    "end",
    [finish_all, abort_all, fail_all, pause_and_abort, sleep_and_wake],
    ids=lambda f: f.__name__,
)
def test_i8_idle_means_every_block_is_free(
    starved: Engine, end: Callable[[Engine], None], in_flight: int
) -> None:
    draw = random.Random(in_flight)
    for index in range(12):
        starved.add(f"r{index}", drawn_prompt(draw), max_tokens=40)
    starved.run_for(40)
    starved.run(until=lambda: len(starved.core.batch_queue) == 1)
    if in_flight == 2:
        starved.launch()
    end(starved)
    if in_flight == 2:
        starved.commit()  # the loop itself never waits with both slots taken
    starved.run()
    assert starved.free_blocks() == starved.all_blocks()
    assert starved.parked_blocks() == 0
    assert len(starved.scheduler.inflight_refs) == 0
    assert len(starved.scheduler.pipeline) == 0
    assert starved.scheduler.reset_prefix_cache()


@pytest.mark.parametrize("disturb", ["pause", "reset"])
def test_answers_survive(starved: Engine, disturb: str) -> None:
    """A pause that keeps requests, or a cache reset that preempts them, with steps in flight."""
    draw = random.Random(8)
    prompts = [drawn_prompt(draw) for _ in range(6)]
    expected = [starved.alone(prompt, max_tokens=40) for prompt in prompts]
    for index, prompt in enumerate(prompts):
        starved.add(f"r{index}", prompt, max_tokens=40)
    for _ in range(3):
        starved.run_for(20)
        assert len(starved.core.batch_queue) == 1
        if disturb == "pause":
            starved.core.pause_scheduler("keep", clear_cache=False)
            while starved.core.batch_queue:
                starved.step()
            assert not starved.busy()
            starved.core.resume_scheduler()
        else:
            assert starved.scheduler.reset_prefix_cache(reset_running_requests=True)
    starved.run()
    assert [starved.tokens[f"r{index}"] for index in range(6)] == expected
    assert starved.free_blocks() == starved.all_blocks()
