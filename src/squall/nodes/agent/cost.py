"""What agents ask of their store, per minute: for `squall explain --store`. Pure.

The figures are measured, not modelled: `tests/store_mode/store_cost.py` counts the requests of
one agent and of three, idle and in a run, at the normal timers. What one asks alone is asked
once, by whoever coordinates (and in a run by its submitter); each further agent adds the same
again. They hardly depend on the load that a run makes, because statistics travel as sums at a
fixed pace. The look for schedules is known exactly and is added to both.

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
    """In one minute."""

    requests: float
    bytes: float
    writes: float = 0.0
    """Of the requests, those that S3 charges as writes; the rest are reads or free."""
    reads: float = 0.0


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """Of the first agent, which coordinates, and of each further one. In a run the first has
    the submitter's with it."""

    first_idle: Rate
    first_running: Rate
    each_idle: Rate
    each_running: Rate
    look_bytes: float
    """Of one look for schedules, in both directions."""


REDIS = Rates(
    first_idle=Rate(requests=221.0, bytes=97_000.0),
    first_running=Rate(requests=1_105.0, bytes=626_000.0),
    each_idle=Rate(requests=956.0, bytes=384_000.0),
    each_running=Rate(requests=1_497.0, bytes=831_000.0),
    look_bytes=400.0,
)
"""Scripts that are called and blocking reads; bytes in both directions."""
S3 = Rates(
    first_idle=Rate(requests=194.0, bytes=296_000.0, writes=96.0, reads=98.0),
    first_running=Rate(requests=291.0, bytes=602_000.0, writes=128.0, reads=157.0),
    each_idle=Rate(requests=150.0, bytes=307_000.0, writes=57.0, reads=91.0),
    each_running=Rate(requests=163.0, bytes=400_000.0, writes=71.0, reads=91.0),
    look_bytes=1_500.0,
)
"""With the requests that find nothing, which cost the same; bytes with the heads of HTTP."""
RATES = {"redis": REDIS, "rediss": REDIS, "unix": REDIS, "s3": S3}


class StoreCost(msgspec.Struct, frozen=True, kw_only=True):
    """Of all agents together; `run_` is for the whole of one run."""

    idle: Rate
    running: Rate
    schedules: Rate
    """The look for schedules, which is in both."""
    run_requests: float
    run_bytes: float
    run_price: float | None
    """US dollars; None where requests cost nothing."""
    idle_hour_price: float | None


def rates_of(url: str) -> Rates | None:
    """None for a file of this machine: nobody else is asked."""
    pace_of(url)
    return RATES.get(url.partition(":")[0])


def store_cost(url: str, rates: Rates, agents: int, run_s: float) -> StoreCost:
    looks = schedule_looks(url, rates)
    idle = _sum(rates.first_idle, _times(rates.each_idle, agents - 1), looks)
    running = _sum(rates.first_running, _times(rates.each_running, agents - 1), looks)
    minutes = run_s / 60.0
    charged = bool(rates.first_idle.writes)
    return StoreCost(
        idle=idle,
        running=running,
        schedules=looks,
        run_requests=running.requests * minutes,
        run_bytes=running.bytes * minutes,
        run_price=price(running) * minutes if charged else None,
        idle_hour_price=price(idle) * 60.0 if charged else None,
    )


def schedule_looks(url: str, rates: Rates) -> Rate:
    """Whoever coordinates looks which schedules there are, whether or not there are any."""
    looks = 60.0 / pace_of(url).schedules_s
    return Rate(requests=looks, bytes=looks * rates.look_bytes, reads=looks)


def price(rate: Rate) -> float:
    """US dollars a minute."""
    return rate.writes * WRITE_PRICE + rate.reads * READ_PRICE


def _sum(*rates: Rate) -> Rate:
    return Rate(
        requests=sum(rate.requests for rate in rates),
        bytes=sum(rate.bytes for rate in rates),
        writes=sum(rate.writes for rate in rates),
        reads=sum(rate.reads for rate in rates),
    )


def _times(rate: Rate, times: int) -> Rate:
    return Rate(
        requests=rate.requests * times,
        bytes=rate.bytes * times,
        writes=rate.writes * times,
        reads=rate.reads * times,
    )
