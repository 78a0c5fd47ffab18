"""Cleanup is held between its decision and its deletions, while the member comes back and
receives a signal; and two cleanups run at the same moment, with many members.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from squall.coordination import Coordinator, events
from squall.coordination.members.cleanup import GUARD, CleanupReport, clean_up, last_report
from squall.coordination.records import keys
from squall.coordination.stores.interface import ABSENT, ANY, Delete, Fence, Put, Store, Write
from squall.runtime.real.runtime import RealClock
from tests.services.coordination.lab.groups import SECRET, Group, group_on
from tests.services.coordination.lab.places import Place

pytestmark = pytest.mark.asyncio
CLOCK = RealClock()
MEMBER = "back-1"
WAIT_ID = "job-7"
STALE_S = 5.0


class HeldDeletes:
    """Holds the first batch that deletes the heartbeat of the member, until it is let go."""

    def __init__(self) -> None:
        self.held = asyncio.Event()
        self.let_go = asyncio.Event()

    def wrap(self, write: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def held(*writes: Write, fence: Fence | None = None) -> Any:
            if not self.held.is_set() and any(
                isinstance(each, Delete) and each.key == keys.heartbeat(MEMBER) for each in writes
            ):
                self.held.set()
                await self.let_go.wait()
            return await write(*writes, fence=fence)

        return held


class HeldStore:
    """A client whose deletes are held; everything else passes."""

    def __init__(self, store: Store, holds: HeldDeletes) -> None:
        self._store = store
        self.write = holds.wrap(store.write)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


async def soon(event: asyncio.Event, what: str, within_s: float) -> None:
    try:
        await asyncio.wait_for(event.wait(), within_s)
    except TimeoutError:
        raise AssertionError(f"not within {within_s:.0f} s: {what}") from None


async def silenced(group: Group) -> Coordinator:
    """A member that waits for a signal and then stops without a word, as a killed one does."""
    victim = await group.member(MEMBER, eligible=False)
    waiting = asyncio.ensure_future(
        victim.block_until_signal(correlation_id="old", timeout_s=1800.0)
    )
    async with asyncio.timeout(30.0 * group.scale):
        while not await victim.signals.open_waits():
            await asyncio.sleep(0.05)
    victim._running.tasks.cancel_group("")
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    return victim


@asynccontextmanager
async def returned(group: Group, sender: Coordinator) -> AsyncIterator[Coordinator]:
    """The member as a new boot that waits, with an untaken signal in its inbox."""
    async with AsyncExitStack() as stack:
        made = Coordinator(
            await group.place.open(),
            member_id=MEMBER,
            profile=group.timing,
            unsafe_timings=True,
            secret=SECRET,
            eligible=False,
        )
        member = await stack.enter_async_context(made)
        await sender.send_signal(MEMBER, "note", payload="for the new one")
        waiting = asyncio.ensure_future(
            member.block_until_signal(correlation_id=WAIT_ID, timeout_s=1800.0)
        )
        stack.callback(waiting.cancel)
        async with asyncio.timeout(30.0 * group.scale):
            while WAIT_ID not in [
                each.correlation_id for each in await member.signals.open_waits()
            ]:
                await asyncio.sleep(0.05)
        yield member


async def check_whole(group: Group, member: Coordinator, sender: Coordinator) -> None:
    """Nothing of it is gone, it goes on as the same incarnation, and its signal comes."""
    before, deaths = member.boot, list[events.Event]()
    member.on(events.CoordinatorRecovered, deaths.append)
    store = await group.place.open()
    found = await store.get(keys.heartbeat(MEMBER), keys.member(MEMBER), keys.state(MEMBER))
    assert None not in found
    got: list[object] = []
    member.on_signal("note", lambda delivery: got.append(delivery.signal.payload))
    await group.until(lambda: got, "the signal is delivered", 30.0)
    assert got == ["for the new one"]
    await sender.send_signal_with_retry(MEMBER, "note", payload="more", max_retries=10)
    assert member.boot == before and deaths == []
    assert MEMBER in await sender.active_workers()


async def test_a_member_that_comes_back_into_the_cleanup_of_its_death_loses_nothing(
    place: Place,
) -> None:
    async with group_on(place) as group:
        secret_reloader = await group.member("keeper")
        await group.until(lambda: secret_reloader.is_coordinator, "it leads")
        holds, cleaned = HeldDeletes(), list[events.CleanupComplete]()
        secret_reloader.on(events.CleanupComplete, cleaned.append)
        patient = secret_reloader.parts.patient
        patient.write = holds.wrap(patient.write)  # type: ignore[method-assign]
        first = await silenced(group)
        old = first.boot
        await soon(holds.held, "its cleanup has begun", 60.0 * group.scale)
        async with returned(group, secret_reloader) as member:
            assert member.boot > old
            holds.let_go.set()
            await group.until(lambda: cleaned, "the cleanup has ended", 60.0)
            assert [(each.member_id, each.keys_deleted) for each in cleaned] == [(MEMBER, 0)]
            await check_whole(group, member, secret_reloader)


@pytest.mark.parametrize("record", ["there", "expired"])
async def test_a_member_that_comes_back_into_the_cleanup_job_loses_nothing(
    place: Place, record: str
) -> None:
    async with group_on(place) as group:
        sender = await group.member("sender")
        store = await place.open()
        lasts_s = 600.0 if record == "there" else 0.05
        await store.write(Put(keys.heartbeat(MEMBER), b"{}", expect=ANY, ttl_s=lasts_s))
        await store.write(Put(keys.warning(MEMBER), b"{}", expect=ANY, ttl_s=600.0))
        # Long enough that the sender, which beats, is not meant; on S3 it beats more seldom.
        stale_s = STALE_S / 2.0 if store.capabilities.transactions else 2.0 * STALE_S
        await asyncio.sleep(stale_s + 1.2)
        holds = HeldDeletes()
        held: Any = HeldStore(await place.open(), holds)
        running = asyncio.ensure_future(clean_up(held, CLOCK, stale_s=stale_s))
        await soon(holds.held, "the job has decided", 60.0 * group.scale)
        async with returned(group, sender) as member:
            holds.let_go.set()
            report = await running
            assert report.came_back == (MEMBER,) and report.members == ()
            await check_whole(group, member, sender)


async def stale_members(place: Place, count: int, at_once: int = 16) -> list[str]:
    """Heartbeats of members that are no more."""
    store = await place.open()
    names = [f"gone-{number:04d}" for number in range(count)]
    if store.capabilities.transactions:
        for begin in range(0, count, 500):
            await store.write(*(beat(each) for each in names[begin : begin + 500]))
        return names
    limit = asyncio.Semaphore(at_once)

    async def one(name: str) -> None:
        async with limit:
            await store.write(beat(name, ABSENT))

    await asyncio.gather(*(one(name) for name in names))
    return names


def beat(name: str, expect: Any = ANY) -> Put:
    return Put(keys.heartbeat(name), b"{}", expect=expect, ttl_s=3600.0)


async def beating(store: Store, names: list[str], done: asyncio.Event) -> None:
    while not done.is_set():
        for name in names:
            await store.write(beat(name))
        await asyncio.sleep(1.0)


async def members_of(store: Store) -> set[str]:
    found: set[str] = set()
    after = ""
    while True:
        page = await store.list(keys.HEARTBEAT, after=after, limit=1000)
        found |= {keys.member_id_of(entry.key) for entry in page.entries}
        after = page.after
        if not after:
            return found


async def at_the_same_time(place: Place, stale_s: float) -> list[CleanupReport]:
    clients = [await place.open() for _ in range(2)]
    return await asyncio.gather(*(clean_up(each, CLOCK, stale_s=stale_s) for each in clients))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("place", ["sqlite", "redis", "s3"], indirect=True)
async def test_of_two_cleanups_at_the_same_time_one_works(place: Place) -> None:
    """A thousand members that fell silent; the live ones beat on and stay."""
    gone = await stale_members(place, 1000)
    await asyncio.sleep(STALE_S + 1.2)
    live = ["live-1", "live-2", "gone-0001.live"]
    store, done = await place.open(), asyncio.Event()
    await store.write(*(beat(each) for each in live))
    beats = asyncio.ensure_future(beating(await place.open(), live, done))
    try:
        planned = await clean_up(store, CLOCK, stale_s=STALE_S, dry_run=True)
        assert sorted(each.member_id for each in planned.members) == gone
        assert await members_of(store) == {*gone, *live}, "to plan changes nothing"
        assert await store.get(GUARD) == (None,) and await last_report(store) is None
        reports = await at_the_same_time(place, STALE_S)
        assert sorted(each.already_running for each in reports) == [False, True]
        assert [each.exit_code for each in reports if each.already_running] == [0]
        (worked,) = (each for each in reports if not each.already_running)
        cleaned = {each.member_id for each in worked.members}
        # On a machine that is busy a run may end at its time limit; the next one goes on.
        while not worked.finished:
            worked = await clean_up(store, CLOCK, stale_s=STALE_S)
            cleaned |= {each.member_id for each in worked.members}
        assert worked.failed == () and cleaned == set(gone)
        assert await members_of(store) == set(live)
        assert await store.get(GUARD) == (None,)
    finally:
        done.set()
        await beats
