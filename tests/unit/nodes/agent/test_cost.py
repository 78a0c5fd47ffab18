"""What a run asks of a store: sums of measured rates, and the price where there is one."""

from __future__ import annotations

import pytest

from squall.api.errors import ConfigError
from squall.nodes.agent.cost import RATES, Rate, Rates, price, rates_of, store_cost

S3_LIMIT_PER_S = 5.0


def test_agents_and_minutes_multiply() -> None:
    rates = Rates(idle=Rate(requests=10, bytes=100), running=Rate(requests=20, bytes=400))
    cost = store_cost(rates, 3, 150.0)
    assert (cost.idle.requests, cost.running.bytes) == (30, 1200)
    assert (cost.run_requests, cost.run_bytes) == (150, 3000)
    assert cost.run_price is None and cost.idle_hour_price is None


def test_writes_and_reads_of_s3_have_their_prices_and_deletes_none() -> None:
    assert price(Rate(requests=3000, bytes=0, writes=1000, reads=1000)) == pytest.approx(0.0054)
    cost = store_cost(rates_of("s3://b/p") or RATES["s3"], 10, 3600.0)
    assert cost.run_price is not None and cost.idle_hour_price is not None
    assert 0.0 < cost.idle_hour_price < cost.run_price < 1.0


def test_an_agent_stays_under_its_limit_on_s3() -> None:
    rates = RATES["s3"]
    assert rates.idle.requests / 60.0 < rates.running.requests / 60.0 < S3_LIMIT_PER_S
    for rate in (rates.idle, rates.running):
        assert rate.writes + rate.reads <= rate.requests


def test_a_file_costs_nothing_and_what_is_no_store_is_refused() -> None:
    assert rates_of("sqlite:///f.db") is None
    with pytest.raises(ConfigError):
        rates_of("etcd://h")
