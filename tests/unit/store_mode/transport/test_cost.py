"""What a network over an object store costs: requests per second, idle and busy."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from squall.api.errors import ConfigError
from squall.cluster.wire.limits import WireLimits
from squall.store_mode.transport.network import StoreNetwork
from squall.store_mode.transport.tuning import (
    REDIS_TUNING,
    S3_TUNING,
    SQLITE_TUNING,
    TransportTuning,
    tuning_of,
)
from tests.fakes.store_network import RECORDS, Lab, Recorder, rest, until
from tests.fakes.wire import run


def on_s3() -> Lab:
    lab = Lab(RECORDS)
    lab.tuning = S3_TUNING
    return lab


def echo(recorder: Recorder, data: bytes) -> None:
    recorder.end.send(data)


async def rate(network: StoreNetwork, work: Callable[[], Awaitable[None]], seconds: float) -> float:
    before = network.counters.requests
    await work()
    return (network.counters.requests - before) / seconds


def test_an_idle_dialler_asks_every_other_second_and_a_listener_each() -> None:
    async def main() -> None:
        lab = on_s3()
        a, b, _, _ = await lab.pair()
        assert await rate(a.network, lambda: rest(600.0), 600.0) < 0.7
        assert await rate(b.network, lambda: rest(600.0), 600.0) < 1.2
        await lab.close()

    run(main())


def test_a_session_every_three_seconds_stays_about_one_request_a_second() -> None:
    async def main() -> None:
        lab = on_s3()
        a, b = lab.process("a"), lab.process("b")
        b.on_data = echo
        await b.listen()
        near = await a.dial("b", 20.0)

        async def sessions() -> None:
            for turn in range(1, 101):
                near.end.send(b"x" * 500)
                await until(lambda turn=turn: len(near.data) == turn * 500, step_s=0.05)
                await rest(3.0)

        begun = a.clock.now()
        before = a.network.counters.requests
        await sessions()
        spent_s = a.clock.now() - begun
        assert (a.network.counters.requests - before) / spent_s < 1.2
        await lab.close()

    run(main())


def test_a_busy_agent_stays_below_three_requests_a_second() -> None:
    async def main() -> None:
        lab = on_s3()
        a, b = lab.process("a"), lab.process("b")
        b.on_data = echo
        await b.listen()
        near = await a.dial("b", 20.0)

        async def busy() -> None:
            for _ in range(3000):
                near.end.send(b"x" * 500)
                await rest(0.1)

        assert await rate(a.network, busy, 300.0) < 3.0
        await until(lambda: len(near.data) == 3000 * 500)
        await lab.close()

    run(main())


def test_a_tuning_for_stores_that_wake_readers_polls_where_none_is_woken() -> None:
    """Without its own interval it would poll without a pause, or only every few seconds."""

    async def main() -> None:
        lab = on_s3()
        lab.tuning = REDIS_TUNING
        a, b = lab.process("a"), lab.process("b")
        b.on_data = echo
        await b.listen()
        near = await a.dial("b", 20.0)
        begun = a.clock.now()
        for turn in range(1, 21):
            near.end.send(b"x")
            await until(lambda turn=turn: len(near.data) == turn, step_s=0.01)
        assert a.clock.now() - begun < 20 * 0.5
        assert await rate(a.network, lambda: rest(60.0), 60.0) < 12.0
        await lab.close()

    run(main())


def test_a_listener_polls_at_one_interval_whatever_it_sends() -> None:
    async def main() -> None:
        lab = on_s3()
        _, b, near, _ = await lab.pair()

        async def busy() -> None:
            for _ in range(100):
                b.accepted[0].end.send(b"x")
                await rest(3.0)

        # One LIST a second and one PUT for each answer, and the read ones removed.
        assert await rate(b.network, busy, 300.0) < 1.6
        await until(lambda: len(near.data) == 100)
        await lab.close()

    run(main())


def test_nothing_is_polled_without_a_connection() -> None:
    async def main() -> None:
        lab = on_s3()
        a, _, near, _ = await lab.pair()
        near.end.close()
        await until(lambda: bool(near.closed))
        await rest(20.0)
        assert await rate(a.network, lambda: rest(800.0), 800.0) == 0.0
        await lab.close()

    run(main())


def test_a_megabyte_takes_few_requests() -> None:
    async def main() -> None:
        lab = on_s3()
        a, _, near, far = await lab.pair()
        before = a.network.counters.envelopes_out
        near.end.send(bytes(3 * 1024 * 1024))
        await until(lambda: len(far.data) == 3 * 1024 * 1024)
        assert a.network.counters.envelopes_out - before == 1
        await lab.close()

    run(main())


@pytest.mark.parametrize(
    ("url", "tuning"),
    [
        ("memory://", REDIS_TUNING),
        ("redis://host:6379/0", REDIS_TUNING),
        ("unix:///run/redis.sock", REDIS_TUNING),
        ("sqlite:///file.db", SQLITE_TUNING),
        ("s3://bucket/prefix?region=x", S3_TUNING),
    ],
)
def test_each_kind_of_store_has_its_pace(url: str, tuning: TransportTuning) -> None:
    assert tuning_of(url) is tuning


def test_another_scheme_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="etcd: is not a store"):
        tuning_of("etcd://host")


def test_links_that_would_die_of_an_honest_round_trip_are_refused() -> None:
    with pytest.raises(ConfigError, match="do not fit a store with round trips of 5 s"):
        TransportTuning(round_trip_s=5.0, wire=WireLimits())
