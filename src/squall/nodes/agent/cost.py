"""What agents ask of their store, per minute: for `squall explain --store`. Pure.

The figures are measured, not modelled: `tests/store_mode/store_cost.py` counts the requests of
three idle agents and of the same agents in a run, at the normal timers. They hardly depend on
the load that a run makes, because statistics travel as sums at a fixed pace. A coordinator
asks more than another agent; the figures are the mean.

Prices are AWS list prices for S3 Standard in us-east-1.
"""

from __future__ import annotations

import msgspec

from squall.nodes.agent.pace import pace_of

WRITE_PRICE = 0.005 / 1000
"""US dollars for a PUT, POST or LIST."""
READ_PRICE = 0.0004 / 1000
"""For a GET or HEAD. A DELETE is free."""


class Rate(msgspec.Struct, frozen=True, kw_only=True):
    """Of one agent in one minute."""

    requests: float
    bytes: float
    writes: float = 0.0
    """Of the requests, those that S3 charges as writes; the rest are reads or free."""
    reads: float = 0.0


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    idle: Rate
    running: Rate


REDIS = Rates(
    idle=Rate(requests=600.0, bytes=300_000.0),
    running=Rate(requests=1_160.0, bytes=770_000.0),
)
"""Scripts that are called; bytes in both directions."""
S3 = Rates(
    idle=Rate(requests=158.0, bytes=355_000.0, writes=86.0, reads=65.0),
    running=Rate(requests=269.0, bytes=630_000.0, writes=132.0, reads=124.0),
)
"""Of three measurements the highest; bytes with the heads of HTTP. The submitter's own
requests are in `running`."""
RATES = {"redis": REDIS, "rediss": REDIS, "unix": REDIS, "s3": S3}


class StoreCost(msgspec.Struct, frozen=True, kw_only=True):
    """Of all agents together; `run_` is for the whole of one run."""

    idle: Rate
    running: Rate
    run_requests: float
    run_bytes: float
    run_price: float | None
    """US dollars; None where requests cost nothing."""
    idle_hour_price: float | None


def rates_of(url: str) -> Rates | None:
    """None for a file of this machine: nobody else is asked."""
    pace_of(url)
    return RATES.get(url.partition(":")[0])


def store_cost(rates: Rates, agents: int, run_s: float) -> StoreCost:
    idle, running = _times(rates.idle, agents), _times(rates.running, agents)
    minutes = run_s / 60.0
    charged = bool(rates.idle.writes)
    return StoreCost(
        idle=idle,
        running=running,
        run_requests=running.requests * minutes,
        run_bytes=running.bytes * minutes,
        run_price=price(running) * minutes if charged else None,
        idle_hour_price=price(idle) * 60.0 if charged else None,
    )


def price(rate: Rate) -> float:
    """US dollars a minute."""
    return rate.writes * WRITE_PRICE + rate.reads * READ_PRICE


def _times(rate: Rate, agents: int) -> Rate:
    return Rate(
        requests=rate.requests * agents,
        bytes=rate.bytes * agents,
        writes=rate.writes * agents,
        reads=rate.reads * agents,
    )
