"""The requests that agents send to their store, per minute: for `squall explain --store`. Pure.

The figures are measured: `tests/store_mode/measure_cost.py` counts the requests of one agent and
of three, idle and in a run, with the normal timers. The first agent's figures are those of the
coordinator (and, in a run, of the submitter); each further agent adds the same amount. They
hardly depend on the load of a run, because statistics travel as sums at a fixed interval. The
polls for schedules are known exactly and are added to both.

Prices are AWS list prices for S3 Standard in us-east-1.
"""

from __future__ import annotations

import msgspec

from squall.store_mode.transport.tuning import tuning_of

WRITE_PRICE = 0.005 / 1000
"""US dollars for a PUT, POST or LIST."""
READ_PRICE = 0.0004 / 1000
"""For a GET or HEAD. A DELETE is free."""


class RequestRate(msgspec.Struct, frozen=True, kw_only=True):
    """Requests and bytes in one minute."""

    requests: float
    bytes: float
    writes: float = 0.0
    """The requests that S3 charges as writes; the others are reads or free."""
    reads: float = 0.0


class StoreRates(msgspec.Struct, frozen=True, kw_only=True):
    """Rates of the first agent, which coordinates, and of each further one. In a run the first
    includes the submitter's."""

    first_idle: RequestRate
    first_running: RequestRate
    each_idle: RequestRate
    each_running: RequestRate
    poll_bytes: float
    """One poll for schedules, in both directions."""


REDIS = StoreRates(
    first_idle=RequestRate(requests=221.0, bytes=97_000.0),
    first_running=RequestRate(requests=1_105.0, bytes=626_000.0),
    each_idle=RequestRate(requests=956.0, bytes=384_000.0),
    each_running=RequestRate(requests=1_497.0, bytes=831_000.0),
    poll_bytes=400.0,
)
"""Script calls and blocking reads; bytes in both directions."""
S3 = StoreRates(
    first_idle=RequestRate(requests=238.0, bytes=372_000.0, writes=117.0, reads=121.0),
    first_running=RequestRate(requests=333.0, bytes=656_000.0, writes=147.0, reads=181.0),
    each_idle=RequestRate(requests=176.0, bytes=331_000.0, writes=70.0, reads=105.0),
    each_running=RequestRate(requests=200.0, bytes=472_000.0, writes=89.0, reads=111.0),
    poll_bytes=1_500.0,
)
"""Includes requests that find nothing, which cost the same; bytes include HTTP headers."""
RATES = {"redis": REDIS, "rediss": REDIS, "unix": REDIS, "s3": S3}


class StoreCost(msgspec.Struct, frozen=True, kw_only=True):
    """All agents together; `run_` fields are for one whole run."""

    idle: RequestRate
    running: RequestRate
    schedules: RequestRate
    """The polls for schedules, included in both."""
    run_requests: float
    run_bytes: float
    run_price: float | None
    """US dollars; None if requests cost nothing."""
    idle_hour_price: float | None


def rates_of(url: str) -> StoreRates | None:
    """None for a file on this machine, which costs no requests."""
    tuning_of(url)
    return RATES.get(url.partition(":")[0])


def store_cost(url: str, rates: StoreRates, agents: int, run_s: float) -> StoreCost:
    polls = schedule_polls(url, rates)
    idle = _sum(rates.first_idle, _times(rates.each_idle, agents - 1), polls)
    running = _sum(rates.first_running, _times(rates.each_running, agents - 1), polls)
    minutes = run_s / 60.0
    charged = bool(rates.first_idle.writes)
    return StoreCost(
        idle=idle,
        running=running,
        schedules=polls,
        run_requests=running.requests * minutes,
        run_bytes=running.bytes * minutes,
        run_price=price(running) * minutes if charged else None,
        idle_hour_price=price(idle) * 60.0 if charged else None,
    )


def schedule_polls(url: str, rates: StoreRates) -> RequestRate:
    """The coordinator polls for schedules, whether or not there are any."""
    polls = 60.0 / tuning_of(url).schedules_poll_s
    return RequestRate(requests=polls, bytes=polls * rates.poll_bytes, reads=polls)


def price(rate: RequestRate) -> float:
    """US dollars a minute."""
    return rate.writes * WRITE_PRICE + rate.reads * READ_PRICE


def _sum(*rates: RequestRate) -> RequestRate:
    return RequestRate(
        requests=sum(rate.requests for rate in rates),
        bytes=sum(rate.bytes for rate in rates),
        writes=sum(rate.writes for rate in rates),
        reads=sum(rate.reads for rate in rates),
    )


def _times(rate: RequestRate, times: int) -> RequestRate:
    return RequestRate(
        requests=rate.requests * times,
        bytes=rate.bytes * times,
        writes=rate.writes * times,
        reads=rate.reads * times,
    )
