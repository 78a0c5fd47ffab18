"""A client that asks too often is refused with the time to retry; the others are not affected."""

from __future__ import annotations

import pytest

from squall.cluster.control.rates import RateLimit
from squall.cluster.control.settings import RateSettings


def test_a_burst_goes_through_and_then_as_many_as_the_rate_allows() -> None:
    limit = RateLimit(RateSettings(burst=50, per_s=5))
    assert [limit.ask("ann", 0.0) for _ in range(50)] == [0.0] * 50
    assert limit.ask("ann", 0.0) == pytest.approx(0.2)
    passed = sum(limit.ask("ann", tick / 100.0) == 0.0 for tick in range(1, 2001))
    assert passed == 100
    assert limit.refused == 1901


def test_who_waits_exactly_as_long_as_told_succeeds() -> None:
    limit = RateLimit(RateSettings(burst=3, per_s=7))
    now = 1000.0
    for _ in range(200):
        wait_s = limit.ask("ann", now)
        if wait_s:
            assert limit.ask("ann", now + wait_s * 0.9) > 0.0
            now += wait_s
            assert limit.ask("ann", now) == 0.0


def test_a_client_far_beyond_its_limit_costs_another_nothing() -> None:
    limit = RateLimit(RateSettings(burst=10, per_s=10))
    refused = {"ann": 0, "bob": 0}
    for tick in range(10_000):
        now = tick / 200.0
        refused["ann"] += limit.ask("ann", now) > 0.0
        if tick % 40 == 0:
            refused["bob"] += limit.ask("bob", now) > 0.0
    assert refused["bob"] == 0 and refused["ann"] > 9_000


def test_who_does_not_ask_any_more_is_forgotten() -> None:
    limit = RateLimit(RateSettings(burst=10, per_s=10, clients_max=100))
    for number in range(1000):
        limit.ask(f"c{number}", number / 1000.0)
        assert len(limit) <= 100
    limit.ask("late", 10.0)
    assert len(limit) == 1


def test_a_clock_that_steps_back_gives_nothing_away() -> None:
    limit = RateLimit(RateSettings(burst=1, per_s=1))
    assert limit.ask("ann", 100.0) == 0.0
    assert limit.ask("ann", 50.0) == pytest.approx(1.0)
    assert limit.ask("ann", 100.5) == pytest.approx(0.5)
    assert limit.ask("ann", 101.0) == 0.0
