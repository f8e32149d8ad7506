"""Runs become cells, cells become a report."""

import json

import pytest

from benchmarks import ab_report
from benchmarks.cells import Run, make_cells, overall
from benchmarks.load import Load, Objectives
from benchmarks.spatial_load import Answer, answer_tokens, request_body, summarize_answers
from tests.benchmarks.machine import MACHINE

LOAD = Load("text-110", "text", 110, 8, 32)


def _runs(arm: str, rates: list[float], load: Load = LOAD) -> list[Run]:
    return [
        Run(arm, load, 0, i, {"output_tok_per_s": rate, "req_per_s": rate / 110, "failed": 1.0})
        for i, rate in enumerate(rates)
    ]


@pytest.fixture
def cells() -> list[dict]:
    runs = _runs("photon", [110.0, 120.0, 130.0]) + _runs("stock-blocking", [100.0, 99.0, 101.0])
    slow = Load("text-3", "text", 3, 8, 32)
    runs += _runs("photon", [90.0, 80.0, 70.0], slow) + _runs("stock-blocking", [100.0], slow)
    return make_cells(runs)


def test_ratio_is_against_the_blocking_arm_of_the_same_load(cells):
    ratios = {(c["load"], c["arm"]): c["ratio_vs_blocking"] for c in cells}
    assert ratios == {
        ("text-110", "photon"): pytest.approx(1.2),
        ("text-110", "stock-blocking"): 1.0,
        ("text-3", "photon"): pytest.approx(0.8),
        ("text-3", "stock-blocking"): 1.0,
    }
    photon = next(c for c in cells if c["arm"] == "photon")
    assert photon["output_tok_per_s"] == 120.0
    assert photon["concurrency"] == 8
    assert photon["failed_total"] == 3


def test_overall_keeps_the_losing_cell_and_leaves_out_open_loops(cells):
    found = overall(cells, "photon")
    assert found is not None
    assert found["worst"] == pytest.approx(0.8)
    assert found["geometric_mean"] == pytest.approx((1.2 * 0.8) ** 0.5)
    for cell in cells:
        cell["rate"] = 5.0
    assert overall(cells, "photon") is None


def test_without_a_blocking_arm_the_first_one_is_the_measure():
    cells = make_cells(_runs("mine", [50.0]) + _runs("yours", [100.0]))
    assert {c["arm"]: c["ratio_vs_blocking"] for c in cells} == {"mine": 1.0, "yours": 2.0}


def test_report_shows_every_cell_and_writes_its_files(cells, tmp_path):
    results = {
        "machine": MACHINE,
        "objectives": {"ttft_ms": 500, "tpot_ms": 50},
        "modes": {"photon": "pipelined", "stock-blocking": "blocking"},
        "cells": cells,
        "runs": [],
    }
    text = ab_report.write(results, tmp_path)
    assert "| text-3 | 8 | photon | 0.800 " in text
    assert "| photon | 0.980 | 0.800 | 1.200 |" in text
    assert json.loads((tmp_path / "ab.json").read_text())["cells"] == cells
    for name in ("ab.md", "ratio.png", "throughput.png"):
        assert (tmp_path / name).stat().st_size > 0


def test_answers_become_a_record():
    answers = [
        Answer(sent=0.0, seconds=0.5, tokens=7, failed=False),
        Answer(sent=0.1, seconds=1.9, tokens=9, failed=False),
        Answer(sent=0.2, seconds=0.1, tokens=0, failed=True),
    ]
    record = summarize_answers(answers, tokens=11, goals=Objectives(ttft_ms=500, tpot_ms=50))
    assert record["req_per_s"] == pytest.approx(1.0)
    assert record["output_tok_per_s"] == pytest.approx(8.0)
    assert record["goodput_req_per_s"] == pytest.approx(0.5)
    assert (record["completed"], record["failed"]) == (2, 1)
    assert record["e2e_p50_ms"] == pytest.approx(1200)


def test_when_everything_failed_there_are_no_times():
    record = summarize_answers([Answer(0.0, 0.1, 0, True)], 11, Objectives(500, 50))
    assert (record["completed"], record["failed"]) == (0, 1)
    assert "e2e_p50_ms" not in record


def test_spatial_requests_ask_for_the_tokens_of_the_load():
    point = request_body("point", 0, "data:", 19, "m")
    assert point["settings"] == {"max_objects": 9}
    assert request_body("detect", 1, "data:", 19, "m")["settings"] == {"max_objects": 6}
    assert request_body("query", 2, "data:", 19, "m")["settings"] == {"max_tokens": 19}
    assert answer_tokens("point", {"points": [{}] * 9}) == 19
    assert answer_tokens("detect", {"objects": [{}] * 6}) == 19
