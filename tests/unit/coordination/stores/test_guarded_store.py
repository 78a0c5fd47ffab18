"""A guarded store: retries, tokens, the circuit breaker, and the calls of heartbeats that bypass
it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import pytest

from lab.stores.faulty import FaultyStore, StoreFaults
from squall.coordination.metrics import CoordinationMetrics
from squall.coordination.store_errors import (
    CircuitOpenError,
    StoreTimeoutError,
    StoreUnavailableError,
    VersionConflict,
)
from squall.coordination.stores.guarded_store import GuardedStore
from squall.coordination.stores.interface import ABSENT, Changed, Put, Write
from squall.coordination.stores.memory.store import MemoryStore
from squall.runtime.log import Log, MemorySink

pytestmark = pytest.mark.asyncio


class StepClock:
    """Time that passes only by sleeping."""

    def __init__(self) -> None:
        self.time = 0.0
        self.slept: list[float] = []

    def now(self) -> float:
        return self.time

    boot_time = now

    def kernel_boot(self) -> str:
        return ""

    def wall(self) -> float:
        return 1_000_000.0 + self.time

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.time += seconds
        await asyncio.sleep(0)


class World:
    def __init__(self) -> None:
        self.clock = StepClock()
        self.memory = MemoryStore(self.clock)
        self.writes: list[Sequence[Write]] = []
        self.faulty = FaultyStore(
            self.memory, self.clock, random.Random(1), StoreFaults(), on_write=self.note
        )
        self.metrics = CoordinationMetrics.of_registry()
        self.guarded = GuardedStore(self.faulty, self.clock, random.Random(2), metrics=self.metrics)

    async def note(self, writes: Sequence[Write]) -> None:
        self.writes.append(writes)

    async def fail(self, times: int) -> None:
        for _ in range(times):
            with pytest.raises(StoreUnavailableError):
                await self.guarded.get("state/a")


def put(value: bytes = b"") -> Put:
    return Put("state/a", value, expect=ABSENT, ttl_s=60.0)


async def test_four_tries_one_two_and_four_seconds_apart() -> None:
    world = World()
    world.faulty.faults.down = True
    with pytest.raises(StoreUnavailableError) as caught:
        await world.guarded.write(put())
    assert caught.value.attempts == 4 and len(world.writes) == 4
    for slept, planned in zip(world.clock.slept, (1.0, 2.0, 4.0), strict=True):
        assert 0.9 * planned <= slept <= 1.1 * planned
    assert sum(world.clock.slept) != 7.0


async def test_no_try_begins_later_than_ten_seconds_after_the_first() -> None:
    """Although heartbeats are answered in between and keep the circuit closed."""
    world = World()
    begun: list[float] = []

    async def hang(*keys: str) -> tuple[None, ...]:
        begun.append(world.clock.time)
        world.clock.time += 5.0
        # A heartbeat of another member was answered: only this connection is broken.
        world.guarded.breaker.succeeded()
        raise StoreTimeoutError("no answer within 5 s")

    world.faulty.get = hang  # type: ignore[method-assign]
    with pytest.raises(StoreUnavailableError, match=r"\(2 tries\)"):
        await world.guarded.get("state/a")
    assert len(begun) == 2 and world.clock.time < 15.0
    assert world.guarded.state.name == "CLOSED"


async def test_a_repeat_carries_the_token_of_the_first_try() -> None:
    world = World()
    world.faulty.faults.lost_replies = 1.0
    waiting = asyncio.ensure_future(world.guarded.write(put(b"mine")))
    while len(world.writes) < 2:
        await asyncio.sleep(0)
    world.faulty.faults.lost_replies = 0.0
    await waiting
    tokens = {write.token for batch in world.writes for write in batch if isinstance(write, Put)}
    assert len(tokens) == 1 and "" not in tokens
    (record,) = await world.memory.get("state/a")
    assert record is not None and record.value == b"mine"


async def test_a_conflict_is_an_answer_and_is_not_repeated() -> None:
    world = World()
    await world.guarded.write(put())
    with pytest.raises(VersionConflict):
        await world.guarded.write(put())
    assert len(world.writes) == 2 and world.clock.slept == []


async def test_an_open_circuit_fails_at_once_and_one_probe_closes_it() -> None:
    world = World()
    world.faulty.faults.down = True
    await world.fail(10)
    before = world.clock.time
    with pytest.raises(CircuitOpenError):
        await world.guarded.get("state/a")
    assert world.clock.time == before
    world.clock.time += 60.5
    world.faulty.faults.down = False
    assert await world.guarded.get("state/a") == (None,)
    assert world.guarded.state.name == "CLOSED"


async def test_heartbeats_are_tried_once_pass_an_open_circuit_and_close_it() -> None:
    world = World()
    urgent = world.guarded.urgent
    world.faulty.faults.down = True
    await world.fail(10)
    world.clock.slept.clear()
    for _ in range(50):
        with pytest.raises(StoreUnavailableError) as caught:
            await urgent.write(put())
        assert not isinstance(caught.value, CircuitOpenError)
    assert world.clock.slept == [] and world.guarded.state.name == "OPEN"
    world.faulty.faults.down = False
    await urgent.write(put())
    assert world.guarded.state.name == "CLOSED"


async def test_who_knows_the_time_without_asking_does_not_close_the_circuit() -> None:
    world = World()
    world.faulty.faults.down = True
    await world.fail(10)

    async def now_ms() -> int:
        return 1

    world.faulty.now_ms = now_ms  # type: ignore[method-assign]
    assert await world.guarded.urgent.now_ms() == 1
    assert world.guarded.state.name == "OPEN"


async def test_failing_heartbeats_alone_never_open_the_circuit() -> None:
    world = World()
    world.faulty.faults.down = True
    for number in range(40):
        world.clock.time = float(number)
        with pytest.raises(StoreUnavailableError):
            await world.guarded.urgent.write(put())
    assert world.guarded.state.name == "CLOSED"


async def test_tries_and_state_are_counted() -> None:
    world = World()
    world.faulty.faults.down = True
    await world.fail(10)
    text = world.metrics.families.registry.exposition()
    assert 'coordination_store_errors_total{namespace="default",operation="get"} 40' in text
    assert 'coordination_breaker_state{namespace="default"} 2' in text


async def test_a_wait_goes_on_after_a_failure_with_the_time_that_is_left() -> None:
    world = World()
    asked: list[float] = []

    class Once:
        def __getattr__(self, name: str) -> object:
            return getattr(world.memory, name)

        async def wait(self, *watches: object, timeout_s: float) -> frozenset[object]:
            asked.append(timeout_s)
            if len(asked) == 1:
                raise StoreUnavailableError("cut")
            return frozenset(watches)

    guarded = GuardedStore(Once(), world.clock, random.Random(1))  # type: ignore[arg-type]
    watch = Changed("state/a")
    assert await guarded.wait(watch, timeout_s=10.0) == {watch}
    assert asked[0] == 10.0 and 8.8 <= asked[1] <= 9.2


async def test_the_circuit_says_when_it_opens_is_tried_and_closes() -> None:
    world = World()
    sink = MemorySink()
    world.guarded = GuardedStore(
        world.faulty, world.clock, random.Random(2), log=Log(sink, world.clock)
    )
    world.faulty.faults.down = True
    for _ in range(10):
        with pytest.raises(StoreUnavailableError):
            await world.guarded.get("kind/x")
    assert sink.events()[-1] == "store_circuit_open"
    # A number that no setting has: tries that hang open the circuit before the tenth operation.
    world.guarded.breaker.failures = 13
    with pytest.raises(CircuitOpenError, match="the last 13 calls got no answer"):
        await world.guarded.get("kind/x")
    world.clock.time += 61.0
    world.faulty.faults.down = False
    await world.guarded.get("kind/x")
    assert sink.events()[-2:] == ["store_circuit_half_open", "store_circuit_closed"]


async def test_callers_of_a_store_that_hangs_all_fail_after_one_limit_and_the_circuit_opens() -> (
    None
):
    world = World()

    async def no_time(seconds: float) -> None:
        await asyncio.sleep(0)

    world.clock.sleep = no_time  # type: ignore[method-assign]

    class Hangs:
        """Each call waits until the present moment ends, as on one shared connection."""

        url = "test://"

        def __init__(self) -> None:
            self.moment = asyncio.Event()
            self.tries = 0

        async def get(self, *keys: str) -> tuple[None, ...]:
            self.tries += 1
            await self.moment.wait()
            raise StoreTimeoutError("no answer within 5 s")

        async def end_moment(self) -> None:
            await asyncio.sleep(0)
            world.clock.time += 5.0
            moment, self.moment = self.moment, asyncio.Event()
            moment.set()
            for _ in range(10):
                await asyncio.sleep(0)

    hangs = Hangs()
    guarded = GuardedStore(hangs, world.clock, random.Random(1))  # type: ignore[arg-type]
    calls = [asyncio.ensure_future(guarded.get("state/a")) for _ in range(12)]
    await hangs.end_moment()
    assert guarded.state.name == "OPEN" and all(call.done() for call in calls)
    errors = await asyncio.gather(*calls, return_exceptions=True)
    assert {type(error) for error in errors} == {StoreUnavailableError}
    assert hangs.tries == 12
