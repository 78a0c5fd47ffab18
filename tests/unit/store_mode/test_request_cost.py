"""The requests of a run to its store: sums of measured rates, and their price on S3."""

from __future__ import annotations

import pytest

from squall.api.errors import ConfigError
from squall.store_mode.request_cost import (
    RATES,
    RequestRate,
    StoreRates,
    price,
    rates_of,
    store_cost,
)

S3_LIMIT_PER_S = 5.0
SUBMITTER_PER_S = 1.0
"""What the submitter, which is no agent, asks for itself."""
RATES_OF_TEST = StoreRates(
    first_idle=RequestRate(requests=10, bytes=100),
    first_running=RequestRate(requests=20, bytes=400),
    each_idle=RequestRate(requests=3, bytes=30),
    each_running=RequestRate(requests=5, bytes=50),
    poll_bytes=2.0,
)


def test_the_first_agent_the_others_and_the_look_for_schedules_add_up() -> None:
    cost = store_cost("redis://h", RATES_OF_TEST, 3, 150.0)
    assert cost.schedules == RequestRate(requests=60, bytes=120, reads=60)
    assert (cost.idle.requests, cost.idle.bytes) == (10 + 2 * 3 + 60, 100 + 2 * 30 + 120)
    assert (cost.running.requests, cost.running.bytes) == (20 + 2 * 5 + 60, 400 + 2 * 50 + 120)
    assert (cost.run_requests, cost.run_bytes) == (2.5 * 90, 2.5 * 620)
    assert cost.run_price is None and cost.idle_hour_price is None


def test_one_agent_looks_for_schedules_more_rarely_where_each_look_costs() -> None:
    cost = store_cost("s3://b/p", RATES_OF_TEST, 1, 60.0)
    assert (cost.schedules.requests, cost.idle.requests) == (6, 16)


def test_writes_and_reads_of_s3_have_their_prices_and_deletes_none() -> None:
    assert price(RequestRate(requests=3000, bytes=0, writes=1000, reads=1000)) == pytest.approx(
        0.0054
    )
    cost = store_cost("s3://b/p", rates_of("s3://b/p") or RATES["s3"], 10, 3600.0)
    assert cost.run_price is not None and cost.idle_hour_price is not None
    assert 0.0 < cost.idle_hour_price < cost.run_price < 1.0


@pytest.mark.parametrize("agents", [1, 3, 100])
def test_an_agent_stays_under_its_limit_on_s3(agents: int) -> None:
    cost = store_cost("s3://b/p", RATES["s3"], agents, 60.0)
    limit = 60.0 * (S3_LIMIT_PER_S * agents + SUBMITTER_PER_S)
    assert cost.idle.requests < cost.running.requests < limit
    for rate in (cost.idle, cost.running):
        assert rate.writes + rate.reads <= rate.requests


def test_a_file_costs_nothing_and_what_is_no_store_is_refused() -> None:
    assert rates_of("sqlite:///f.db") is None
    with pytest.raises(ConfigError):
        rates_of("etcd://h")
