"""Finds bit rot in a member's files while other members can still replace what is lost.

Disks change bytes that are rarely read: the log is read at the next start, a checkpoint
perhaps never. Every `scrub_interval_s` the scrub reads all files and verifies their
checksums; a read error counts as damage too. The member has its state in memory, so it
repairs a damaged log or checkpoint by rewriting all files. It fetches a damaged blob from
another member. Each damaged file raises an alarm.

The scrub also ends the mending of a member that started from a damaged log (`durable_state`),
once the log of a view is durable.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from squall.cluster.ledger.files.checkpoints import CheckpointDamaged, checkpoint_name
from squall.cluster.ledger.group_member.durable_state import MENDING, DurableState
from squall.cluster.ledger.settings import LedgerSettings
from squall.cluster.ledger.wal.errors import WalDamaged, WalError
from squall.cluster.ledger.wal.reader import WalReader
from squall.cluster.ledger.wal.scan import read_file_header
from squall.runtime.interfaces import Runtime
from squall.runtime.tasks import TaskRunner, TaskToken

if TYPE_CHECKING:
    from squall.cluster.ledger.group_member.group_ledger import GroupLedger

BYTES_A_SECOND = 8 << 20
"""Read rate of the scrub: a small part of a disk's bandwidth."""


class Scrub:
    """Rereads this member's files periodically and repairs the damaged ones."""

    def __init__(
        self,
        ledger: GroupLedger,
        runtime: Runtime,
        durable_state: DurableState,
        settings: LedgerSettings,
    ) -> None:
        self._ledger = ledger
        self._disk = runtime.disk
        self._clock = runtime.clock
        self._durable_state = durable_state
        self._settings = settings
        # Number of damaged files found since the start.
        self.found = 0

    def start(self, tasks: TaskRunner) -> TaskToken:
        return tasks.start("scrub", self._run(), group="ledger", on_error=self._ledger.broke)

    async def _run(self) -> None:
        ledger, durable_state = self._ledger, self._durable_state
        if durable_state.recovered.mending:
            self.found += 1
            ledger.alarm(
                f"{durable_state.recovered.mending}; this member does not vote until it has "
                "received the log from another one"
            )
        for text in durable_state.checkpoints.skipped:
            self.found += 1
            ledger.alarm(f"{text}; an older checkpoint is used")
        core = ledger.replica.core
        if durable_state.checkpoints.skipped and not core.is_alone:
            await ledger.snapshots.renew()
        while ledger.failure is None:
            await self._clock.sleep(self._settings.scrub_interval_s)
            # The only member of a group has no peer from which to fetch a lost blob.
            if not core.is_alone:
                await self.once()

    async def once(self) -> bool:
        """Reads all files and repairs the damaged ones; True if none was damaged."""
        ledger = self._ledger
        damaged = [*await self._log(), *await self._checkpoints()]
        for text in damaged:
            self.found += 1
            ledger.alarm(f"bit rot: {text}; this member rewrites its files")
        if damaged and ledger.failure is None:
            await ledger.snapshots.renew()
        lost = await self._blobs()
        for digest in lost:
            self.found += 1
            ledger.alarm(f"bit rot: blob {digest} is damaged; fetching it from another member")
        return not damaged and not lost

    async def mended(self) -> None:
        """Ends the mending; the ledger calls it when the log of a view is installed."""
        # The new log must be durable before the mark is removed: a crash in between must not
        # leave a member that votes without its entries (R2).
        await self._durable_state.wal.flush()
        with suppress(FileNotFoundError):
            await self._disk.remove(f"{self._settings.directory}/{MENDING}")
            await self._disk.sync_directory(self._settings.directory)
        took_s = self._ledger.recovery.mended()
        self._ledger.alarm(
            f"the damaged log is repaired {took_s:.1f} s after the start; this member votes again"
        )

    async def _log(self) -> list[str]:
        wal = self._durable_state.wal
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
            # The log was closed, failed or cut meanwhile: the next scrub reads it.
            pass
        return []

    async def _checkpoints(self) -> list[str]:
        checkpoints = self._durable_state.checkpoints
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
        blobs = self._ledger.blobs
        lost: list[str] = []
        for digest in blobs.own.digests():
            size = await blobs.own.check(digest)
            if size < 0:
                lost.append(digest)
                with suppress(KeyError):
                    await blobs.get(digest)
            await self._rest(max(size, 0))
        return lost

    async def _rest(self, size: int) -> None:
        await self._clock.sleep(size / BYTES_A_SECOND)
