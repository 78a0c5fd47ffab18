"""The coordinator's own reports outlive it, as far as the last copy."""

from __future__ import annotations

import pytest

from squall.cluster.protocol.job_keys import Attempt, AttemptKey, JobId
from squall.coordination.errors import StoreUnavailableError
from squall.coordination.stores.interface import Write
from squall.coordination.stores.memory.store import MemoryStore
from squall.runtime.real.runtime import RealClock
from squall.stats.attempt_record import AttemptRecord
from squall.store_mode.report_copies import ReportCopies

FIRST = AttemptKey(JobId("g-1"), "Load", 0, Attempt(1))
SECOND = AttemptKey(JobId("g-1"), "Load", 3, Attempt(2))


def record(key: AttemptKey, silent_from_s: float) -> AttemptRecord:
    return AttemptRecord(
        workflow=key.workflow,
        share=key.share,
        attempt=key.attempt,
        worker="a1",
        joined_s=0.0,
        silent_from_s=silent_from_s,
    )


class Counting(MemoryStore):
    writes = 0
    away = False

    async def write(self, *writes: Write, **more: object) -> tuple[str, ...]:
        self.writes += 1
        if self.away:
            raise StoreUnavailableError("away")
        return await super().write(*writes)


@pytest.mark.asyncio
async def test_another_reads_what_was_kept_last() -> None:
    store = Counting(RealClock())
    mine, theirs = ReportCopies(store), ReportCopies(store)
    assert await theirs.read("a1", FIRST) is None
    await mine.keep("a1", {FIRST: record(FIRST, 1.0)})
    await mine.keep("a1", {FIRST: record(FIRST, 4.0), SECOND: record(SECOND, 2.0)})
    found = await theirs.read("a1", FIRST)
    assert found is not None and found.silent_from_s == 4.0
    assert (await theirs.read("a1", SECOND)) == record(SECOND, 2.0)
    assert await theirs.read("a2", FIRST) is None


@pytest.mark.asyncio
async def test_nothing_is_written_while_nothing_runs_or_changes() -> None:
    store = Counting(RealClock())
    copies = ReportCopies(store)
    await copies.keep("a1", {})
    assert store.writes == 0
    for _ in range(3):
        await copies.keep("a1", {FIRST: record(FIRST, 1.0)})
    assert store.writes == 1
    await copies.keep("a1", {})
    await copies.keep("a1", {})
    assert store.writes == 2
    assert await copies.read("a1", FIRST) is None


@pytest.mark.asyncio
async def test_a_copy_that_cannot_be_written_is_tried_again_with_the_next() -> None:
    store = Counting(RealClock())
    copies = ReportCopies(store)
    store.away = True
    await copies.keep("a1", {FIRST: record(FIRST, 1.0)})
    store.away = False
    await copies.keep("a1", {FIRST: record(FIRST, 1.0)})
    assert await copies.read("a1", FIRST) == record(FIRST, 1.0)


def test_its_own_are_copied_each_time_and_the_others_by_turns() -> None:
    copies = ReportCopies(Counting(RealClock()))
    nodes = ["a1", "a2", "a3", "a4"]
    assert [copies.chosen("a2", nodes) for _ in range(4)] == [
        ["a2", "a1", "a3"],
        ["a2", "a4", "a1"],
        ["a2", "a3", "a4"],
        ["a2", "a1", "a3"],
    ]
    assert copies.chosen("a2", ["a2"]) == ["a2"]
    assert copies.chosen("a2", ["a1"]) == ["a2", "a1"]


@pytest.mark.asyncio
async def test_a_copy_that_another_agent_replaced_is_replaced_again() -> None:
    store = Counting(RealClock())
    mine, theirs = ReportCopies(store), ReportCopies(store)
    await mine.keep("a1", {FIRST: record(FIRST, 1.0)})
    await theirs.keep("a1", {FIRST: record(FIRST, 2.0)})
    before = store.writes
    await mine.keep("a1", {FIRST: record(FIRST, 3.0)})
    assert store.writes == before + 2
    await mine.keep("a1", {FIRST: record(FIRST, 4.0)})
    assert store.writes == before + 3
    found = await theirs.read("a1", FIRST)
    assert found is not None and found.silent_from_s == 4.0
