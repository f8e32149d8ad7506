"""The cost model and the published table agree with each other."""

import pytest

from benchmarks.cost_model import PUBLISHED, HostCost, zombie_tax


def test_published_speedups_follow_from_the_published_steps():
    for row in PUBLISHED:
        assert row.blocking_ms / row.pipelined_ms == pytest.approx(row.speedup, rel=0.04), row.name


def test_pipelined_step_is_the_longer_of_device_and_host():
    host = HostCost(blocking_ms=1.5, pipelined_ms=2.0)
    assert host.pipelined_step(0.5) == 2.0
    assert host.pipelined_step(5.0) == 5.0
    assert host.blocking_step(5.0) == 6.5


def test_the_gain_falls_with_device_time_and_pays_the_zombies():
    host = HostCost(blocking_ms=1.5, pipelined_ms=2.0)
    gains = [host.speedup(ms) for ms in (2, 4, 8, 16, 32)]
    assert gains == sorted(gains, reverse=True)
    assert gains[0] == pytest.approx(1.75)
    assert host.speedup(2, zombie_tax=0.01) == pytest.approx(1.75 * 0.99)


def test_only_a_lone_request_pays_for_its_zombie():
    assert zombie_tax(110, 1) == pytest.approx(0.009, abs=1e-4)
    assert zombie_tax(110, 8) == 0.0
