"""The log on real files: short writes, reserved space, threads."""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path

import pytest

from squall.cluster.ledger.settings import WalSettings
from squall.cluster.ledger.wal.format import BLOCK_HEADER_BYTES
from squall.cluster.ledger.wal.log import Wal
from squall.cluster.ledger.wal.open_wal import open_wal
from squall.runtime.real import disk as real_disk
from squall.runtime.real.runtime import RealRuntime
from squall.runtime.tasks import TaskRunner
from tests.unit.cluster.ledger.lab.logs import IDENTITY, all_of, body

pytestmark = pytest.mark.asyncio


async def opened(runtime: RealRuntime, tasks: TaskRunner, settings: WalSettings) -> Wal:
    return await open_wal(runtime.disk, runtime.clock, tasks, "wal", IDENTITY, settings)


async def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw, right = random.Random(5), os.pwrite

    def short(descriptor: int, data: memoryview, offset: int) -> int:
        return right(descriptor, data[: draw.randrange(1, len(data) + 1)], offset)

    monkeypatch.setattr(real_disk.os, "pwrite", short)
    runtime = RealRuntime("m1", data_dir=tmp_path)
    tasks = TaskRunner(runtime.clock, runtime.random)
    settings = WalSettings(segment_bytes=8192)
    wal = await opened(runtime, tasks, settings)
    await asyncio.gather(*(wal.append(1, body(n, 300)) for n in range(1, 101)))
    await wal.close()
    again = await opened(runtime, tasks, settings)
    assert [record.body for record in await all_of(again)] == [body(n, 300) for n in range(1, 101)]
    await again.close()
    await tasks.shutdown(5.0)
    await runtime.close()


async def test_zeros_stand_behind_the_records_until_the_log_is_closed(tmp_path: Path) -> None:
    runtime = RealRuntime("m1", data_dir=tmp_path)
    settings = WalSettings(segment_bytes=1 << 20, ahead_bytes=64 * 1024)
    sizes: list[list[int]] = []
    for clean in (False, True):
        tasks = TaskRunner(runtime.clock, runtime.random)
        wal = await opened(runtime, tasks, settings)
        before = wal.next_lsn
        assert wal.recovered.torn_bytes == 0
        for start in range(before, before + 200, 50):
            await asyncio.gather(*(wal.append(1, body(n, 900)) for n in range(start, start + 50)))
        used = wal.table.active.readable
        (*_, last) = sorted((tmp_path / "wal").iterdir())
        content = last.read_bytes()
        assert used < len(content) <= used + settings.ahead_bytes
        assert content[used:].count(0) == len(content) - used
        if clean:
            await wal.close()
        await tasks.shutdown(5.0)
        sizes.append([path.stat().st_size for path in sorted((tmp_path / "wal").iterdir())])
    # The next start cut them off for the one that was stopped.
    assert sizes[0][0] > sizes[1][0]
    assert sizes[1][-1] == wal.table.active.readable + BLOCK_HEADER_BYTES
    tasks = TaskRunner(runtime.clock, runtime.random)
    wal = await opened(runtime, tasks, settings)
    assert [record.body for record in await all_of(wal)] == [body(n, 900) for n in range(1, 401)]
    await wal.close()
    await tasks.shutdown(5.0)
    await runtime.close()


async def test_space_that_was_reserved_is_given_back(tmp_path: Path) -> None:
    runtime = RealRuntime("m1", data_dir=tmp_path)
    settings = WalSettings(segment_bytes=8 << 20)
    for _ in range(3):
        # The writer is stopped as by a kill: the next start gives back its space.
        tasks = TaskRunner(runtime.clock, runtime.random)
        wal = await opened(runtime, tasks, settings)
        await wal.append(1, b"x")
        await tasks.shutdown(5.0)
    tasks = TaskRunner(runtime.clock, runtime.random)
    wal = await opened(runtime, tasks, settings)
    assert len(await all_of(wal)) == 3
    await wal.close()
    await tasks.shutdown(5.0)
    used = sum(path.stat().st_blocks * 512 for path in (tmp_path / "wal").iterdir())
    assert used < 1 << 20
    await runtime.close()
