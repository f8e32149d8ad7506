"""The bubble benchmark end to end, small: two real engines over the virtual device."""

import json

import pytest

from benchmarks import bubble_report
from benchmarks.bubble import MODES, Bench, Plan, measure
from benchmarks.emulated.engine import EmulatedEngine
from benchmarks.text_model import make_text_model
from tests.benchmarks.machine import MACHINE

PLAN = Plan(
    repeats=2,
    tokens=24,
    sweep_ms=(10.0,),
    sweep_streams=(8,),
    zombie_streams=(1,),
    zombie_requests=2,
)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    model = make_text_model(tmp_path_factory.mktemp("models") / "tiny")
    engines: dict[str, EmulatedEngine] = {}
    try:
        for mode in MODES:
            engines[mode] = EmulatedEngine(mode, model)
        return measure(Bench(engines, PLAN))
    finally:
        for engine in engines.values():
            engine.close()


def test_no_step_is_shorter_than_the_device(results):
    for row in results["rows"] + results["sweep"]:
        for mode in MODES:
            assert min(row["runs"][mode]) >= row["device_ms"] - 0.01, row["name"]


def test_a_surprise_end_costs_one_row(results):
    (zombie,) = results["zombies"]
    assert zombie["zombie_rows_per_request"] == 1.0


def test_the_report_has_the_published_rows(results, tmp_path):
    text = bubble_report.write({"machine": MACHINE, "executor": "mp", **results}, tmp_path)
    assert "| B200 x32 | 3.94 |" in text
    rows = json.loads((tmp_path / "bubble.json").read_text())["rows"]
    keys = {"name", "device_ms", "blocking_ms", "pipelined_ms", "speedup"}
    keys |= {"published_speedup", "predicted_speedup"}
    assert len(rows) == 6
    assert all(keys <= set(row) for row in rows)
    assert (tmp_path / "sweep.png").stat().st_size > 0
