"""Faults of a worker's processes: kill -9, SIGSTOP, a manager that falls silent.

The target counts what arrives: load must end with the lease, whichever process is dead or stopped,
and the records must agree with the target, or report the missing part.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
from bisect import bisect_left
from pathlib import Path

import pytest

from squall.cluster.protocol.messages import StopOrder
from squall.engine.process.machine import mark
from squall.stats.record_builder import decode_record
from tests.cluster.lab.worker import (
    FakeManager,
    WorkerProcess,
    closed_load,
    open_load,
    quiet,
    sent,
    worker_under_manager,
)
from tests.lab.machine import factor
from tests.lab.target import TargetHandle

LEASE_S = 3.0
ENDS_WITHIN_S = 20.0
"""Less than any load or lease of these tests that is not meant to end by then."""


async def lease_ends(manager: FakeManager, target: TargetHandle) -> None:
    """Nothing is granted from now on: waits until the last lease is over and nothing arrives. A
    worker that is heard before that would have it renewed."""
    since = manager.now
    while manager.now - since < LEASE_S + 0.5 or not await quiet(target):
        assert manager.now - since < ENDS_WITHIN_S * factor(), "the load goes on without a lease"
        await asyncio.sleep(0.02)


@pytest.mark.asyncio
async def test_the_lease_ends_the_load_while_the_main_process_stands_still(
    tmp_path: Path, target: TargetHandle
) -> None:
    async with worker_under_manager(tmp_path) as (manager, worker):
        manager.lease_s = LEASE_S
        share = manager.want(open_load(100.0, 60.0), target.url)
        await manager.begin(share)
        await manager.until(lambda: target.counts()["total"] > 20)
        worker.send(signal.SIGSTOP)
        await lease_ends(manager, target)
        assert len(worker.cores()) >= 1
        seen = target.counts()["total"]
        worker.send(signal.SIGCONT)
        await manager.until(lambda: share in manager.records)
        record = manager.records[share]
        assert record.end is not None and record.end.cut == "lease ended"
        assert sent(record) == seen == target.counts()["total"]


@pytest.mark.asyncio
async def test_a_silent_manager_ends_the_load(tmp_path: Path, target: TargetHandle) -> None:
    async with worker_under_manager(tmp_path) as (manager, _):
        manager.lease_s = LEASE_S
        share = manager.want(closed_load(2, 60.0), target.url)
        await manager.begin(share)
        await manager.until(lambda: target.counts()["total"] > 20)
        manager.answers = False
        await lease_ends(manager, target)
        manager.answers = True
        await manager.until(lambda: share in manager.records)
        assert sent(manager.records[share]) == target.counts()["total"]


@pytest.mark.asyncio
async def test_cores_die_with_their_main_process_and_the_next_boot_tells_what_they_did(
    tmp_path: Path, target: TargetHandle
) -> None:
    async with worker_under_manager(tmp_path) as (manager, worker):
        share = manager.want(open_load(50.0, 60.0), target.url)
        await manager.begin(share)
        # More than a report: those of the seconds before are in the worker's file by then.
        await manager.until(lambda: manager.sent.get(share, 0) > 100)
        worker.end(signal.SIGKILL)
        killed = manager.now
        while worker.cores():
            assert manager.now - killed < ENDS_WITHIN_S, "core processes outlive their parent"
            await asyncio.sleep(0.02)
        seen = target.counts()["total"]
        manager.wanted.clear()
        worker.start()
        await manager.until(lambda: len(manager.registrations) == 2)
        again = manager.registrations[1]
        assert again.boot != manager.registrations[0].boot
        assert again.dead_boots == (manager.registrations[0].boot,)
        [held] = again.held
        assert held.key == share and not held.complete
        record = decode_record(manager.held[held.digest])
        assert record.end is None
        # A report per second reaches the file a second later at most; nothing is invented.
        assert manager.sent[share] * 0.3 <= sent(record) <= seen
        assert target.counts()["total"] == seen


@pytest.mark.asyncio
async def test_a_restart_kills_what_a_former_boot_left_running(
    tmp_path: Path, target: TargetHandle
) -> None:
    async with worker_under_manager(tmp_path) as (manager, worker):
        worker.end(signal.SIGKILL)
        former = {**os.environ, **mark(worker.data, "an older boot")}
        elsewhere = {**os.environ, **mark(tmp_path / "elsewhere", "another")}
        orphan = await asyncio.create_subprocess_exec("sleep", "60", env=former)
        other = await asyncio.create_subprocess_exec("sleep", "60", env=elsewhere)
        worker.start()
        await manager.until(lambda: len(manager.registrations) == 2)
        assert manager.registrations[1].dead_boots == (manager.registrations[0].boot,)
        assert await orphan.wait() == -signal.SIGKILL
        assert other.returncode is None
        other.kill()
        await other.wait()


@pytest.mark.asyncio
async def test_a_core_that_is_killed_is_told_as_a_cut(tmp_path: Path, target: TargetHandle) -> None:
    async with worker_under_manager(tmp_path) as (manager, worker):
        share = manager.want(open_load(50.0, 60.0), target.url)
        await manager.begin(share)
        await manager.until(lambda: manager.sent.get(share, 0) > 0)
        [core] = worker.cores()
        os.kill(core, signal.SIGKILL)
        await manager.until(lambda: share in manager.records)
        record = manager.records[share]
        assert record.end is not None and "SIGKILL" in record.end.cut
        assert not record.end.reported_by_process
        assert 0 < sent(record) <= target.counts()["total"]
        assert core not in worker.cores()


@pytest.mark.asyncio
async def test_a_complete_record_survives_the_death_of_its_worker(
    tmp_path: Path, target: TargetHandle
) -> None:
    async with worker_under_manager(tmp_path) as (manager, worker):
        manager.frees = False
        share = manager.want(open_load(50.0, 1.0), target.url)
        await manager.begin(share)
        await manager.until(lambda: share in manager.records)
        worker.end(signal.SIGKILL)
        manager.wanted.clear()
        manager.held.clear()
        # It is freed only when the next boot has delivered it.
        manager.records.clear()
        worker.start()
        await manager.until(lambda: len(manager.registrations) == 2)
        [held] = manager.registrations[1].held
        assert held.key == share and held.complete
        manager.frees = True
        await manager.until(lambda: share in manager.records and not manager.statuses)
        assert sent(decode_record(manager.held[held.digest])) == target.counts()["total"]
        await manager.until(lambda: not list((worker.data / "outbox").iterdir()))


STUCK = """
    import subprocess, time
    from squall import URL, HTTPResponse, Workflow, step
    class Flow(Workflow):
        @step()
        async def get(self, url: URL = "/") -> HTTPResponse:
            response = await self.client.http.get(url)
            subprocess.Popen(["sleep", "60"])
            time.sleep(60)
            return response
"""


@pytest.mark.asyncio
async def test_a_core_that_does_not_stop_is_killed_with_all_it_started(
    tmp_path: Path, target: TargetHandle
) -> None:
    async with worker_under_manager(tmp_path) as (manager, worker):
        manager.bundle(STUCK, target.url)
        share = manager.want(closed_load(1, 60.0), target.url)
        await manager.begin(share)
        await manager.until(lambda: target.counts()["total"] == 1)
        await manager.until(lambda: len(worker.cores()) == 2)
        stuck = worker.cores()
        manager.change(share, stop=StopOrder(key=share, now=True, why="cancelled"))
        await manager.until(lambda: share in manager.records)
        record = manager.records[share]
        assert record.end is not None and record.end.cut == "cancelled"
        await manager.until(lambda: not set(stuck) & set(worker.cores()))


@pytest.mark.asyncio
async def test_a_manager_that_is_gone_is_left_for_the_next(tmp_path: Path) -> None:
    """One that refuses is named with the reason; one that is silent is not waited for."""
    with socket.socket() as nobody, socket.socket() as stranger:
        nobody.bind(("127.0.0.1", 0))
        stranger.bind(("127.0.0.1", 0))
        stranger.listen()
        ports = [each.getsockname()[1] for each in (nobody, stranger)]
        async with worker_under_manager(tmp_path, others=ports) as (manager, worker):
            assert len(manager.registrations) == 1
            said = [line for line in worker.said().splitlines() if "manager_unreachable" in line]
            assert len(said) == 1, said
            assert f":{ports[0]}" in said[0]


@pytest.mark.asyncio
async def test_two_workers_cannot_use_one_directory(tmp_path: Path) -> None:
    async with worker_under_manager(tmp_path) as (manager, worker):
        second = WorkerProcess(manager, tmp_path)
        second.start()
        assert second.process is not None
        code = await asyncio.to_thread(second.process.wait, 60.0)
        assert code == 1 and "another worker uses this data directory" in second.said()
        assert len(manager.registrations) == 1
        assert worker.process is not None and worker.process.poll() is None


STAMPED = """
    import time
    from squall import HTTPResponse, Workflow, step
    class Flow(Workflow):
        @step()
        async def get(self) -> HTTPResponse:
            return await self.client.http.get(f"/{time.perf_counter()}")
"""


class StampingTarget(asyncio.Protocol):
    """Answers every request with 200 and keeps when its sender made it: this process may be late
    to read, and would see two seconds in one."""

    def __init__(self, stamps: list[float]) -> None:
        self._stamps = stamps

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        for made in re.findall(rb"GET /([0-9.]+) ", data):
            self._stamps.append(float(made))
            self._transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")


@pytest.mark.asyncio
async def test_a_core_that_stood_still_does_not_make_up_for_it_at_once(tmp_path: Path) -> None:
    rate_per_s, still_s = 200.0, 2.0
    stamps: list[float] = []
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: StampingTarget(stamps), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, worker_under_manager(tmp_path) as (manager, worker):
        manager.bundle(STAMPED, f"http://127.0.0.1:{port}")
        share = manager.want(open_load(rate_per_s, 8.0), f"http://127.0.0.1:{port}")
        await manager.begin(share)
        await manager.until(lambda: len(stamps) > 1.5 * rate_per_s)
        cores = worker.cores()
        for core in cores:
            os.kill(core, signal.SIGSTOP)
        await asyncio.sleep(still_s)
        for core in cores:
            os.kill(core, signal.SIGCONT)
        await manager.until(lambda: share in manager.records)
    stamps.sort()
    windows = [bisect_left(stamps, at + 1.0) - i for i, at in enumerate(stamps)]
    # The core may lose its processor between the starts of 50 ms and their stamps.
    batch = 0.05 * rate_per_s
    assert max(windows) <= 1.05 * rate_per_s + batch
    # Beyond one second nothing is made up for.
    assert len(stamps) <= rate_per_s * (8.0 - still_s + 1.0) + batch
