"""Sharing timers and reads between a thousand members must not change what one of them does."""

from __future__ import annotations

import asyncio
import random
import time

import pytest

from squall.coordination.errors import StoreUnavailableError
from squall.coordination.members.shared_timer import next_tick, shared_timer
from squall.coordination.records.schemas import Codec, LeaseRecord
from squall.coordination.secrets.signing import Keyring
from squall.coordination.stores.call_timeout import within
from squall.runtime.real.runtime import RealClock
from tests.unit.coordination.lab.world import Lab, play

LEASE = LeaseRecord(
    epoch=3,
    member_id="a",
    boot=1,
    token="a.1.1",
    elected_at=0.0,
    renewals=0,
    lease_ttl=15.0,
    term_ends_at=300.0,
)


# One timer for many.


@pytest.mark.asyncio
async def test_all_that_wait_for_a_moment_wake_in_one_turn_of_the_loop() -> None:
    clock = RealClock()
    turns = 0
    woken: list[int] = []
    moment = clock.now() + 0.05

    def count() -> None:
        nonlocal turns
        turns += 1
        asyncio.get_running_loop().call_soon(count)

    async def wait() -> None:
        await shared_timer(clock).sleep_until(moment)
        woken.append(turns)

    tasks = [asyncio.ensure_future(wait()) for _ in range(20)]
    await asyncio.sleep(0.01)
    asyncio.get_running_loop().call_soon(count)
    await asyncio.gather(*tasks)
    assert len(woken) == 20
    assert max(woken) - min(woken) <= 1


@pytest.mark.asyncio
async def test_one_that_gives_up_does_not_take_the_others_with_it() -> None:
    clock = RealClock()
    timer, moment = shared_timer(clock), clock.now() + 0.05
    waits = [asyncio.ensure_future(timer.sleep_until(moment)) for _ in range(3)]
    first, second, third = waits
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.gather(second, third)
    assert first.cancelled()
    assert clock.now() >= moment - 0.002
    # A moment that has passed is reached at once, also by the same number.
    await timer.sleep_until(moment)


def test_waiters_of_a_simulated_clock_wake_at_its_time_although_the_sleeper_gives_up() -> None:
    async def script(lab: Lab) -> None:
        lab.start("a")
        await lab.led()
        clock = lab.world.runtime("a").clock
        begun, real = clock.now(), time.monotonic()
        timer = shared_timer(clock)
        waits = [asyncio.ensure_future(timer.sleep_until(begun + 50.0)) for _ in range(3)]
        await asyncio.sleep(1.0)
        waits[0].cancel()
        await asyncio.wait(waits)
        assert [each.cancelled() for each in waits] == [True, False, False]
        assert begun + 49.0 <= clock.now() <= begun + 51.0
        assert time.monotonic() - real < 60.0

    play(script)


def test_moments_are_common_and_a_beat_keeps_its_pace() -> None:
    source = random.Random(4)
    for interval in (0.3, 3.0, 5.0, 30.0):
        begun = source.uniform(1e3, 1e6)
        moments = {next_tick(begun + source.uniform(0, interval), interval) for _ in range(999)}
        assert 50 <= len(moments) <= 51
        due = first = next_tick(begun, interval)
        assert begun <= due < begun + interval / 50
        for _ in range(10_000):
            due = next_tick(due + interval, interval)
        assert due == pytest.approx(first + 10_000 * interval, abs=interval / 1000)


# The limit of a call.


@pytest.mark.asyncio
async def test_a_call_without_an_answer_ends_as_unavailable_and_leaves_no_trace() -> None:
    with pytest.raises(StoreUnavailableError, match="beat: no answer within"):
        await within(0.01, asyncio.sleep(60.0), "beat")
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    assert await within(60.0, asyncio.sleep(0, "answer"), "beat") == "answer"


@pytest.mark.asyncio
async def test_a_caller_that_is_cancelled_in_the_same_moment_is_cancelled() -> None:
    async def call() -> None:
        try:
            await asyncio.sleep(60.0)
        finally:
            task.cancel()

    async def body() -> None:
        await within(0.01, call(), "beat")

    task = asyncio.ensure_future(body())
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.asyncio
async def test_an_error_of_the_call_comes_out_as_it_is() -> None:
    async def call() -> None:
        raise TimeoutError("of its own")

    with pytest.raises(TimeoutError, match="of its own"):
        await within(60.0, call(), "beat")


# A lease that is verified once.


def test_a_lease_that_another_member_verified_needs_a_key_of_ones_own() -> None:
    ours = Codec(Keyring.of(["5ec2e7" * 12], "development", "default"))
    same = Codec(Keyring.of(["5ec2e7" * 12], "development", "default"))
    other = Codec(Keyring.of(["0ther5" * 12], "development", "default"))
    elsewhere = Codec(Keyring.of(["5ec2e7" * 12], "development", "team1"))
    value = ours.encode(LEASE)
    for codec in (ours, same, ours):
        found = codec.read_shared(LeaseRecord, value)
        assert found is not None
        assert (found.epoch, found.member_id) == (3, "a")
    assert other.read_shared(LeaseRecord, value) is None
    assert elsewhere.read_shared(LeaseRecord, value) is None


def test_only_the_very_bytes_that_were_verified_are_believed() -> None:
    codec = Codec(Keyring.of(["5ec2e7" * 12], "development", "default"))
    value = codec.encode(LEASE)
    assert codec.read_shared(LeaseRecord, value) is not None
    forged = value.replace(b'"epoch":3', b'"epoch":9')
    assert forged != value
    assert codec.read_shared(LeaseRecord, forged) is None
    # A record that a codec without keys accepted is not verified for the others.
    unsigned = Codec(None)
    assert unsigned.read_shared(LeaseRecord, forged) is not None
    assert codec.read_shared(LeaseRecord, forged) is None


def test_a_key_that_was_taken_out_ends_the_belief() -> None:
    keyring = Keyring.of(["5ec2e7" * 12], "development", "default")
    codec = Codec(keyring)
    value = codec.encode(LEASE)
    assert codec.read_shared(LeaseRecord, value) is not None
    keyring.replace(["0ther5" * 12])
    assert codec.read_shared(LeaseRecord, value) is None


# The time of the store, from answers to other calls.


def test_beats_tell_the_time_of_the_store_and_save_the_question() -> None:
    async def script(lab: Lab) -> None:
        lab.start("a", "b")
        leader = await lab.led()
        follower = next(name for name in ("a", "b") if name != leader)
        asked = 0
        parts = lab.members[follower].parts
        ask = parts.urgent.now_ms

        async def counted() -> int:
            nonlocal asked
            asked += 1
            return await ask()

        parts.urgent.now_ms = counted  # type: ignore[method-assign]
        await asyncio.sleep(150.0)
        assert asked == 0
        assert parts.clock.now() - parts.measured_at <= 60.0
        assert abs(parts.store_time() - await ask() / 1000.0) < 0.2
        # One beat in a long time is not enough to go by.
        before = parts.offset_s
        parts.measured_at -= 60.0
        now = parts.clock.now()
        parts.note_store_time(0, now - 5.0, now)
        assert parts.offset_s == before

    play(script)
