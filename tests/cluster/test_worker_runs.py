"""One worker under a manager that obeys the test: shares from preparation to their record."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from squall.cluster.protocol.messages import DRAINED, AdjustOrder, StopOrder
from squall.stats.attempt_record import AttemptRecord
from tests.cluster.lab.worker import (
    FLOW,
    JOB,
    WAITS_S,
    closed_load,
    open_load,
    quiet,
    sent,
    worker_under_manager,
)
from tests.lab.target import TargetHandle


@pytest.mark.asyncio
async def test_a_share_runs_and_its_record_equals_the_targets_count(
    tmp_path: Path, target: TargetHandle
) -> None:
    async with worker_under_manager(tmp_path) as (manager, worker):
        share = manager.want(open_load(100.0, 2.0), target.url)
        await manager.begin(share)
        await manager.until(lambda: share in manager.records)
        record = manager.records[share]
        assert record.end is not None and record.end.cut == "" and record.end.error == ""
        made = planned_and_made(record, rate_per_s=100.0, until_s=2.0)
        assert sent(record) == target.counts()["total"] == made
        await manager.until(lambda: not manager.statuses)
        assert await asyncio.to_thread(worker.end) == 0
        assert not worker.cores()


def planned_and_made(record: AttemptRecord, rate_per_s: float, until_s: float) -> int:
    """The starts that were made. The plan begins where a refill joined it, else at the start; each
    of its starts is made or dropped."""
    from_s = record.joined_s if record.attempt > 1 else 0.0
    planned = sum(report.starts.planned for report in record.reports)
    made = sum(report.starts.made for report in record.reports)
    dropped = sum(report.starts.dropped for report in record.reports)
    assert planned == pytest.approx(rate_per_s * max(until_s - from_s, 0.0), abs=1.0)
    assert made + dropped == planned
    return made


@pytest.mark.asyncio
async def test_a_late_go_joins_the_profile_where_it_is(
    tmp_path: Path, target: TargetHandle
) -> None:
    async with worker_under_manager(tmp_path) as (manager, _):
        share = manager.want(open_load(100.0, 6.0), target.url, attempt=2, iterations_done=200)
        await manager.run_to_ready(share)
        manager.change(share, go_at=manager.now - 2.0)
        await manager.until(lambda: share in manager.records)
        record = manager.records[share]
        # Two seconds, and what the order was on its way.
        assert 2.0 <= record.joined_s < 6.0
        assert min(report.window for report in record.reports) >= int(record.joined_s)
        made = planned_and_made(record, rate_per_s=100.0, until_s=6.0)
        assert sent(record) == target.counts()["total"] == made
        assert record.end is not None and record.end.elapsed_s >= 5.9


@pytest.mark.asyncio
async def test_a_stop_ends_a_share_and_keeps_its_record(
    tmp_path: Path, target: TargetHandle
) -> None:
    async with worker_under_manager(tmp_path) as (manager, _):
        share = manager.want(closed_load(2, 60.0), target.url)
        await manager.begin(share)
        await manager.until(lambda: target.counts()["total"] > 10)
        manager.change(share, stop=StopOrder(key=share, now=True, why="cancelled"))
        await manager.until(lambda: share in manager.records)
        record = manager.records[share]
        assert record.end is not None and record.end.cut == "cancelled"
        assert record.end.reported_by_process
        assert sent(record) == target.counts()["total"]


@pytest.mark.asyncio
async def test_load_is_paused_resumed_and_changed_while_it_runs(
    tmp_path: Path, target: TargetHandle
) -> None:
    def wish(number: int, **fields: Any) -> AdjustOrder:
        return AdjustOrder(job=JOB, workflow="Flow", adjust_seq=number, **fields)

    async with worker_under_manager(tmp_path) as (manager, _):
        share = manager.want(closed_load(4, 60.0), target.url)
        await manager.begin(share)
        await manager.until(lambda: target.counts()["total"] > 20)
        manager.change(share, adjust=wish(1, paused=True))
        await manager.until(lambda: manager.statuses[share].adjust_seq == 1)
        async with asyncio.timeout(WAITS_S):
            while not await quiet(target):
                pass
        paused_at = target.counts()["total"]
        manager.change(share, adjust=wish(2, vus=2))
        await manager.until(lambda: target.counts()["total"] > paused_at + 20)
        await manager.until(lambda: manager.statuses[share].counters.users == 2)
        manager.change(share, stop=StopOrder(key=share, now=True))
        await manager.until(lambda: share in manager.records)
        assert sent(manager.records[share]) == target.counts()["total"]


@pytest.mark.asyncio
async def test_a_missing_module_is_refused_before_anything_runs(
    tmp_path: Path, target: TargetHandle
) -> None:
    async with worker_under_manager(tmp_path) as (manager, _):
        manager.bundle(FLOW, target.url, requirements=("no_such_one", "no_such_two", "msgspec"))
        share = manager.want(closed_load(1, 5.0), target.url)
        await manager.until(lambda: manager.phase(share) == "refused")
        status = manager.statuses[share]
        assert "no_such_one, no_such_two" in status.text and "msgspec" not in status.text
        assert not status.retryable and status.exit_code == 104
        assert target.counts()["total"] == 0


@pytest.mark.asyncio
async def test_a_worker_that_is_asked_to_end_delivers_what_it_has(
    tmp_path: Path, target: TargetHandle
) -> None:
    async with worker_under_manager(tmp_path) as (manager, worker):
        share = manager.want(closed_load(2, 60.0), target.url)
        await manager.begin(share)
        await manager.until(lambda: target.counts()["total"] > 10)
        code = await asyncio.to_thread(worker.end)
        assert code == 0 and not worker.cores()
        record = manager.records[share]
        assert record.end is not None and record.end.cut == DRAINED
        assert sent(record) == target.counts()["total"]
