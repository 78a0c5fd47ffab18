"""Mutants of the write-ahead log: known bugs that the scenario `wal` must find.

A mutant replaces the right code while a seed runs: by a disk that omits an operation, or by a
function that decides wrongly. The log itself contains no switch for it.
"""

from __future__ import annotations

import errno
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from squall.cluster.ledger.group_member.group_ledger import GroupLedger
from squall.cluster.ledger.interface import Fence, GroupMs
from squall.cluster.ledger.replica import state
from squall.cluster.ledger.replica.group_clock import GroupClock
from squall.cluster.ledger.replica.state import Core
from squall.cluster.ledger.wal import open_wal as wal_open
from squall.cluster.ledger.wal import scan
from squall.cluster.ledger.wal.errors import Damage, WalDamaged
from squall.cluster.ledger.wal.log import Wal
from squall.cluster.ledger.wal.recovery import recover
from squall.cluster.ledger.wal.segments import SegmentTable
from squall.runtime.interfaces import Disk, File, Runtime

MUTANTS = {
    "ack_before_sync": "an append returns when it is written, not when it is durable",
    "no_directory_sync": "the log never makes the names of new files durable",
    "retry_failed_sync": "the log repeats a failed sync and trusts its success",
    "no_rewrite": "a start trusts the last records although no later block proves them durable",
    "torn_is_damage": "a start refuses a torn tail as if it were damage",
    "damage_is_torn": "a start cuts off damage as if it were a torn tail",
    "crc_unchecked": "a start does not check the checksums of blocks",
    "compaction_ignores_checkpoint": "compaction deletes segments that no checkpoint covers",
    "compaction_to_newest": "compaction keeps the log for the newest checkpoint only",
    "same_view": "a restarted member leads in the same view again",
    "clock_restarts_at_zero": "the group clock starts at zero after a restart",
    "readers_see_unsynced": "a reader that follows the log sees records that are not yet durable",
    "full_disk_forgets": "an append that a full disk refused leaves its number in use",
    "refused_entries_stay": "entries that a full disk refused stay in the member's log",
}


@contextmanager
def bug(name: str | None) -> Generator[None]:
    """Patches the mutant in for the duration of the block."""
    patches = _PATCHES.get(name or "", [])
    saved = [(owner, attribute, getattr(owner, attribute)) for owner, attribute, _ in patches]
    for owner, attribute, value in patches:
        setattr(owner, attribute, value)
    try:
        yield
    finally:
        for owner, attribute, value in saved:
            setattr(owner, attribute, value)


def with_bug(runtime: Runtime, name: str | None) -> Runtime:
    """Returns the node's runtime, with a faulty disk if the mutant is one."""
    if name not in _DISKS:
        return runtime
    buggy: Any = _BuggyRuntime(runtime, _DISKS[name](runtime.disk))
    return buggy


# Functions that decide wrongly.


async def _all_is_damage(
    disk: Disk, segment: scan.Segment, offset: int, found: scan.Scan, end: int | None, text: str
) -> None:
    raise WalDamaged(Damage.CORRUPTION, segment.path, offset, text)


async def _no_witness(*_: Any) -> None:
    return None


def _unchecked(*_: Any) -> None:
    return None


async def _without_rewrite(*arguments: Any) -> Any:
    found = await recover(*arguments)
    if found is not None:
        found[1].synced_lsn = found[1].next_lsn - 1
        found[1].unsynced = []
    return found


def _obsolete(self: SegmentTable, below_lsn: int) -> list[Any]:
    gone, self.segments = self.segments[:-1], self.segments[-1:]
    return gone


_right_compact = Wal.compact


async def _compact_to_newest(self: Wal, below_lsn: int) -> int:
    return await _right_compact(self, self.durable_lsn + 1)


_right_restore = Core.restore


def _restore_below(self: Core) -> None:
    """Lowers the promise by one view, so that the next view is the one led before."""
    _right_restore(self)
    self.fence = Fence(self.fence.epoch, max(self.fence.view - 1, 0))
    self.highest_view = self.fence.view


def _new_clock(group_ms: int, away_ms: int) -> GroupClock:
    return GroupClock(0, 0)


def _no_floor(self: GroupClock, group_ms: int) -> None:
    return None


def _core_clock(self: GroupLedger) -> GroupMs:
    return GroupMs(self.replica.group_ms(self.now()))


def _keep_refused(self: Core) -> None:
    self.outstanding.clear()


class _EagerFile:
    """Publishes the position to readers before the sync; answers still wait for it."""

    def __init__(self, wal: Any, file: Any) -> None:
        self._wal = wal
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    async def append_and_sync(self, data: bytes) -> None:
        await self._file.append(data)
        wal = self._wal
        written, listener = wal._written, wal._listener
        wal._listener = None
        wal._written += len(wal._flying.bodies)
        wal._publish()
        wal._written, wal._listener = written, listener
        await self._file.sync()


_right_write = Wal._write  # pyright: ignore[reportPrivateUsage]


async def _eager_write(self: Any, batch: Any) -> None:
    file = self._file
    self._file = eager = _EagerFile(self, file)
    try:
        await _right_write(self, batch)
    finally:
        # A new segment may have begun.
        if self._file is eager:
            self._file = file


_right_refuse = Wal._refuse  # pyright: ignore[reportPrivateUsage]


async def _forgetful_refuse(self: Any, batch: Any, error: OSError) -> None:
    accepted = self._accepted
    await _right_refuse(self, batch, error)
    if self.failure is None:
        self._accepted = self._written = accepted


_PATCHES: dict[str, list[tuple[Any, str, Any]]] = {
    "torn_is_damage": [(scan, "_judge", _all_is_damage)],
    "damage_is_torn": [(scan, "_witness", _no_witness)],
    "crc_unchecked": [(scan, "check_payload", _unchecked)],
    "no_rewrite": [(wal_open, "recover", _without_rewrite)],
    "compaction_ignores_checkpoint": [(SegmentTable, "obsolete", _obsolete)],
    "compaction_to_newest": [(Wal, "compact", _compact_to_newest)],
    "same_view": [(Core, "restore", _restore_below)],
    "clock_restarts_at_zero": [
        (state, "GroupClock", _new_clock),
        (GroupClock, "floor", _no_floor),
        (GroupLedger, "group_ms", _core_clock),
    ],
    "refused_entries_stay": [(Core, "take_back", _keep_refused)],
    "readers_see_unsynced": [(Wal, "_write", _eager_write)],
    "full_disk_forgets": [(Wal, "_refuse", _forgetful_refuse)],
}


# Faulty disks.


class _BuggyRuntime:
    """A runtime with a faulty disk."""

    def __init__(self, runtime: Runtime, disk: Any) -> None:
        self._runtime = runtime
        self.disk = disk

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runtime, name)


class _Passing:
    """Forwards every call to the real object."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _EarlyDisk(_Passing):
    """A disk whose files report an append before it is durable."""

    async def open(self, path: str, **how: int) -> Any:
        return _EarlyFile(await self._inner.open(path, **how))


class _EarlyFile(_Passing):
    """Writes without a sync."""

    async def append_and_sync(self, data: bytes) -> None:
        await self._inner.append(data)


class _NamelessDisk(_Passing):
    """A disk that never syncs a directory."""

    async def sync_directory(self, path: str = "") -> None:
        return None


class _StubbornDisk(_Passing):
    """A disk whose files repeat a failed sync."""

    async def open(self, path: str, **how: int) -> Any:
        file = await self._inner.open(path, **how)
        return _StubbornFile(file, self._inner, path)


class _StubbornFile(_Passing):
    """Repeats a failed sync on a new handle and trusts its success."""

    def __init__(self, file: File, disk: Disk, path: str) -> None:
        super().__init__(file)
        self._disk = disk
        self._path = path.removesuffix(".new")

    async def append_and_sync(self, data: bytes) -> None:
        try:
            await self._inner.append_and_sync(data)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            self._inner = await self._disk.open(self._path)
            await self._inner.sync()


_DISKS: dict[str | None, Any] = {
    "ack_before_sync": _EarlyDisk,
    "no_directory_sync": _NamelessDisk,
    "retry_failed_sync": _StubbornDisk,
}
