"""Opens and reads logs on a disk in memory."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from squall.cluster.ledger.settings import WalSettings
from squall.cluster.ledger.wal.format import WalRecord
from squall.cluster.ledger.wal.log import Wal
from squall.cluster.ledger.wal.open_wal import open_wal
from squall.cluster.ledger.wal.reader import WalReader
from squall.runtime.tasks import TaskRunner
from tests.unit.cluster.ledger.lab.memory_disk import HandClock, MemoryDisk

IDENTITY = b"0123456789abcdef"
SMALL = WalSettings(segment_bytes=4096, max_record_bytes=2000, read_bytes=4096)


@asynccontextmanager
async def opened(
    disk: MemoryDisk,
    settings: WalSettings = SMALL,
    *,
    clock: HandClock | None = None,
    clean: bool = True,
    needed_from: int = 1,
    must_exist: bool = False,
) -> AsyncIterator[Wal]:
    """Without `clean` it ends as by a kill."""
    clock = clock or HandClock()
    tasks = TaskRunner(clock, random.Random(1))
    try:
        wal = await open_wal(
            disk,
            clock,
            tasks,
            "wal",
            IDENTITY,
            settings,
            needed_from=needed_from,
            must_exist=must_exist,
        )
        yield wal
        if clean:
            await wal.close()
    finally:
        await tasks.shutdown(5.0)


async def all_of(wal: Wal, first: int | None = None, last: int | None = None) -> list[WalRecord]:
    found: list[WalRecord] = []
    async with WalReader(wal, first or wal.first_lsn, last) as reader:
        async for records in reader:
            found.extend(records)
    return found


def body(number: int, size: int = 20) -> bytes:
    return f"{number}:".encode().ljust(size, b".")


async def fill(wal: Wal, numbers: range, size: int = 20) -> None:
    """One block each."""
    for number in numbers:
        assert await wal.append(1, body(number, size)) == number


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def segments(disk: MemoryDisk) -> list[str]:
    return sorted(path for path in disk.files if path.endswith(".wal"))
