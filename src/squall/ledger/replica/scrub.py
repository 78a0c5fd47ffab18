"""Looks for bit rot in a member's files while the others still have what is lost.

Disks change bytes that nobody reads: a log is read at the next start, a checkpoint perhaps
never. Every `scrub_interval_s` all of it is read and its checksums are compared; what the
disk does not give at all is damaged too. What this
member lost on disk it has in memory, so a damaged log or checkpoint is mended by writing
all files anew; a damaged blob is taken from another member. Each find is an alarm.

A start that met damage (`keeping`) ends its mending here, when the log of a view is durable.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from squall.ledger.checkpoint import CheckpointDamaged, checkpoint_name
from squall.ledger.replica.keeping import MENDING, Kept
from squall.ledger.settings import LedgerSettings
from squall.ledger.wal.errors import WalDamaged, WalError
from squall.ledger.wal.reader import WalReader
from squall.ledger.wal.scan import read_file_header
from squall.runtime.interfaces import Runtime
from squall.runtime.tasks import TaskRunner

if TYPE_CHECKING:
    from squall.ledger.replica.ledger import GroupLedger

BYTES_A_SECOND = 8 << 20
"""No more than a small part of what a disk can read."""


class Scrub:
    def __init__(
        self, ledger: GroupLedger, runtime: Runtime, kept: Kept, settings: LedgerSettings
    ) -> None:
        self._ledger = ledger
        self._disk = runtime.disk
        self._clock = runtime.clock
        self._kept = kept
        self._settings = settings
        self.found = 0
        """Damaged files since the start."""

    def start(self, tasks: TaskRunner) -> None:
        tasks.start("scrub", self._run(), group="ledger", on_error=self._ledger.broke)

    async def _run(self) -> None:
        ledger, kept = self._ledger, self._kept
        if kept.recovered.mending:
            self.found += 1
            ledger.alarm(
                f"{kept.recovered.mending}; this member votes again when it has the log of a "
                "view from another one"
            )
        for text in kept.checkpoints.skipped:
            self.found += 1
            ledger.alarm(f"{text}; an older checkpoint is used")
        if kept.checkpoints.skipped:
            await ledger.snapshots.renew()
        while ledger.failure is None:
            await self._clock.sleep(self._settings.scrub_interval_s)
            await self.once()

    async def once(self) -> bool:
        """Reads everything; whether all was as it should be."""
        ledger = self._ledger
        damaged = [*await self._log(), *await self._checkpoints()]
        for text in damaged:
            self.found += 1
            ledger.alarm(f"bit rot: {text}; the files are written anew")
        if damaged and ledger.failure is None:
            await ledger.snapshots.renew()
        lost = await self._blobs()
        for digest in lost:
            self.found += 1
            ledger.alarm(f"bit rot: blob {digest} was damaged; another member is asked for it")
        return not damaged and not lost

    async def mended(self) -> None:
        """Called when the log of a view was installed."""
        await self._kept.wal.flush()
        with suppress(FileNotFoundError):
            await self._disk.remove(f"{self._settings.directory}/{MENDING}")
            await self._disk.sync_directory(self._settings.directory)
        self._ledger.alarm("the damaged log is mended; this member votes again")

    async def _log(self) -> list[str]:
        wal = self._kept.wal
        try:
            for segment in list(wal.table.segments):
                with suppress(FileNotFoundError):
                    await read_file_header(self._disk, segment.path)
            async with WalReader(wal, wal.first_lsn, wal.durable_lsn) as reader:
                async for records in reader:
                    await self._rest(sum(len(record.body) for record in records))
        except (WalDamaged, OSError) as damage:
            return [str(damage)]
        except WalError:
            # Closed, failed or cut short meanwhile: the next turn reads it.
            pass
        return []

    async def _checkpoints(self) -> list[str]:
        checkpoints = self._kept.checkpoints
        damaged: list[str] = []
        for head in list(checkpoints.heads):
            path = f"{self._settings.directory}/checkpoints/{checkpoint_name(head.base.op)}"
            try:
                await checkpoints.read(path, keep=False)
                await self._rest(await self._disk.size(path))
            except FileNotFoundError:
                continue
            except (CheckpointDamaged, OSError) as error:
                damaged.append(f"{path}: {error}")
        return damaged

    async def _blobs(self) -> list[str]:
        store = self._ledger.group_blobs.store
        lost: list[str] = []
        for digest in store.digests():
            size = await store.check(digest)
            if size < 0:
                lost.append(digest)
                with suppress(KeyError):
                    await store.get(digest)
            await self._rest(max(size, 0))
        return lost

    async def _rest(self, size: int) -> None:
        await self._clock.sleep(size / BYTES_A_SECOND)
