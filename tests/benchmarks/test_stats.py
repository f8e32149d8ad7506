"""Medians, ratios and their intervals."""

import math

import pytest

from benchmarks.stats import (
    geometric_mean,
    median,
    median_of_ratios,
    percentile,
    ratio_of_medians,
    summarize,
)


def test_median_lies_in_its_interval_and_a_constant_has_none_to_spare():
    found = median([5.0, 1.0, 4.0, 2.0, 30.0])
    assert found.value == 4.0
    assert 1.0 <= found.low <= 4.0 <= found.high <= 30.0
    constant = median([7.0] * 5)
    assert (constant.low, constant.value, constant.high) == (7.0, 7.0, 7.0)


def test_median_of_nothing_is_refused():
    with pytest.raises(ValueError, match="no samples"):
        median([])


def test_ratio_interval_holds_one_only_when_the_sides_overlap():
    apart = ratio_of_medians([20.0, 21.0, 22.0, 20.5, 21.5], [10.0, 10.5, 9.5, 10.2, 9.8])
    assert apart.value == pytest.approx(2.1)
    assert 1.9 < apart.low < apart.high < 2.4
    same = ratio_of_medians([9.0, 10.0, 11.0], [9.5, 10.0, 10.5])
    assert same.low < 1.0 < same.high


def test_a_disturbance_of_whole_rounds_is_in_no_ratio_of_pairs():
    over, under = [20.0, 10.0, 41.0, 8.0], [10.0, 5.0, 20.0, 4.0]
    assert median_of_ratios(over, under).value == pytest.approx(2.0)
    paired, alone = median_of_ratios(over, under), ratio_of_medians(over, under)
    assert paired.high - paired.low < 0.1 < alone.high - alone.low
    with pytest.raises(ValueError, match="positive"):
        median_of_ratios([1.0], [0.0])


def test_ratio_over_zero_is_refused():
    with pytest.raises(ValueError, match="positive"):
        ratio_of_medians([1.0], [0.0])


def test_intervals_repeat_with_the_seed():
    samples = [1.0, 2.0, 4.0, 8.0]
    assert median(samples, seed=3) == median(samples, seed=3)


def test_geometric_mean():
    assert geometric_mean([0.5, 2.0]) == pytest.approx(1.0)
    with pytest.raises(ValueError, match="positive"):
        geometric_mean([1.0, 0.0])


def test_percentile_of_nothing_is_nan():
    assert math.isnan(percentile([], 50))
    assert percentile([1.0, 3.0], 50) == 2.0


def test_summary_leaves_out_what_a_run_lacks():
    runs = [{"a": 1.0, "b": 5.0}, {"a": 3.0}, {"a": 2.0, "b": 6.0}]
    found = summarize(runs, lambda _: True)
    assert set(found) == {"a"}
    assert found["a"].value == 2.0
