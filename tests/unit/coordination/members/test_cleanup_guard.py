"""One cleanup at a time: a run that was too slow to keep its guard ends, and does not touch the
guard of the next run.
"""

from __future__ import annotations

import asyncio

import pytest

from squall.coordination.members import cleanup
from squall.coordination.members.cleanup import ABORT_S, GUARD, GUARD_TTL_S, clean_up
from squall.coordination.records import keys
from squall.coordination.stores.interface import ABSENT, ANY, Append, Put
from squall.coordination.stores.memory.store import MemoryStore

pytestmark = pytest.mark.asyncio


class StepClock:
    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        return self.time

    boot_time = now

    def kernel_boot(self) -> str:
        return ""

    def wall(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        self.time += seconds
        await asyncio.sleep(0)


async def stale_members(store: MemoryStore, clock: StepClock, count: int) -> None:
    for number in range(count):
        key = keys.heartbeat(f"m{number}")
        await store.write(Put(key, b"{}", expect=ANY, ttl_s=900.0))
    clock.time += 700.0


def slowed(monkeypatch: pytest.MonkeyPatch, clock: StepClock, seconds: float) -> None:
    clean = cleanup._clean  # pyright: ignore[reportPrivateUsage]

    async def slow(*arguments: object) -> object:
        clock.time += seconds
        return await clean(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(cleanup, "_clean", slow)


async def test_a_slow_run_keeps_its_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = StepClock()
    store = MemoryStore(clock)
    await stale_members(store, clock, 3)
    slowed(monkeypatch, clock, 0.55 * GUARD_TTL_S)
    report = await clean_up(store, clock)
    assert report.finished and len(report.members) == 3
    assert await store.get(GUARD) == (None,)


async def test_a_run_that_lost_its_guard_ends_and_leaves_the_next_one_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = StepClock()
    store = MemoryStore(clock)
    await stale_members(store, clock, 3)
    clean = cleanup._clean  # pyright: ignore[reportPrivateUsage]
    others: list[str] = []

    async def overtaken(*arguments: object) -> object:
        clock.time += GUARD_TTL_S + 1.0
        if not others:
            others.extend(await store.write(Put(GUARD, b"{}", expect=ABSENT, ttl_s=GUARD_TTL_S)))
        return await clean(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(cleanup, "_clean", overtaken)
    report = await clean_up(store, clock)
    assert (report.finished, len(report.members), report.exit_code) == (False, 1, 1)
    assert clock.time < 700.0 + ABORT_S
    (guard,) = await store.get(GUARD)
    assert guard is not None and [guard.version] == others
    assert (await clean_up(store, clock)).already_running


async def test_streams_that_have_all_expired_are_removed() -> None:
    clock = StepClock()
    store = MemoryStore(clock)
    await store.write(Append("signal/m0", "s1", b"", ttl_s=60.0))
    await store.write(Put("member/m0", b"{}", expect=ANY, ttl_s=60.0))
    await store.write(Put("member/m1", b"{}", expect=ANY, ttl_s=3600.0))
    clock.time += 100.0
    report = await clean_up(store, clock)
    assert report.swept == 2 and report.finished
    assert set(await store.count()) == {"member", "cleanup"}
    assert await store.sweep("signal") == 0


async def test_a_sweep_that_lost_its_guard_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = StepClock()
    store = MemoryStore(clock)
    sweep, swept = store.sweep, list[str]()

    async def slow(kind: str, *, limit: int = 100, idle_ms: int = 0) -> int:
        swept.append(kind)
        clock.time += GUARD_TTL_S + 1.0
        await store.write(Put(GUARD, b"{}", expect=ANY, ttl_s=GUARD_TTL_S))
        return await sweep(kind, limit=limit, idle_ms=idle_ms)

    monkeypatch.setattr(store, "sweep", slow)
    report = await clean_up(store, clock)
    assert not report.finished and len(swept) == 1
