"""Known bugs of a log, each of which the scenario `wal` must find.

A bug is put in place of the right code while a seed runs: a disk that leaves something
out, or a function that judges wrongly. Nothing of it is in the log itself.
"""

from __future__ import annotations

import errno
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from squall.ledger import open as ledger_open
from squall.ledger import single
from squall.ledger.interface import Fence
from squall.ledger.wal import open as wal_open
from squall.ledger.wal import scan
from squall.ledger.wal.errors import Damage, WalDamaged
from squall.ledger.wal.log import Wal
from squall.ledger.wal.recovery import recover
from squall.ledger.wal.segments import SegmentTable
from squall.runtime.interfaces import Disk, File, Runtime

MUTANTS = {
    "ack_before_sync": "an append returns when it is written, not when it is durable",
    "no_directory_sync": "the names of new files are never made durable",
    "retry_failed_sync": "a sync that failed is done again, and its success believed",
    "no_rewrite": "a start trusts the tail that no later block vouches for",
    "torn_is_damage": "a torn tail stops the node like damage",
    "damage_is_torn": "damage is cut off like a torn tail",
    "crc_unchecked": "the checksum of a block is not looked at",
    "compaction_ignores_checkpoint": "segments are deleted that no checkpoint covers",
    "compaction_to_newest": "the log is kept for the newest checkpoint only",
    "same_view": "a start leads in the view of the last one",
    "clock_starts_anew": "the group clock begins at zero after a restart",
    "readers_see_unsynced": "one who follows the log reads what is only written",
    "full_disk_forgets": "an append that a full disk refused leaves its number used",
}


@contextmanager
def bug(name: str | None) -> Generator[None]:
    """In force inside the block."""
    patches = _PATCHES.get(name or "", [])
    kept = [(owner, attribute, getattr(owner, attribute)) for owner, attribute, _ in patches]
    for owner, attribute, value in patches:
        setattr(owner, attribute, value)
    try:
        yield
    finally:
        for owner, attribute, value in kept:
            setattr(owner, attribute, value)


def with_bug(runtime: Runtime, name: str | None) -> Runtime:
    """The runtime that the node gets."""
    if name not in _DISKS:
        return runtime
    buggy: Any = _BuggyRuntime(runtime, _DISKS[name](runtime.disk))
    return buggy


# Judgements.


async def _all_is_damage(
    disk: Disk, segment: scan.Segment, offset: int, found: scan.Scan, end: int | None, text: str
) -> None:
    raise WalDamaged(Damage.CORRUPTION, segment.path, offset, text)


async def _nobody(*_: Any) -> None:
    return None


def _unchecked(*_: Any) -> None:
    return None


async def _trusting(*arguments: Any) -> Any:
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


def _low_fence(epoch: int, view: int) -> Fence:
    return Fence(epoch, max(view - 1, 0))


def _zero(group_ms: int, wall_ms: int, wall_now_ms: int) -> int:
    return 0


async def _eager_put(self: Any, data: bytes, *, syncs: bool) -> None:
    """Publishes the position to readers only; answers still wait for the sync."""
    await self._file.append(data)
    written = self._written
    listener, self._listener = self._listener, None
    self._written += len(self._flying)
    self._publish()
    self._written, self._listener = written, listener
    await self._file.sync()


_right_refuse = Wal._refuse  # pyright: ignore[reportPrivateUsage]


async def _forgetful_refuse(self: Any, batch: Any, error: OSError) -> None:
    accepted = self._accepted
    await _right_refuse(self, batch, error)
    if self.failure is None:
        self._accepted = self._written = accepted


_PATCHES: dict[str, list[tuple[Any, str, Any]]] = {
    "torn_is_damage": [(scan, "_judge", _all_is_damage)],
    "damage_is_torn": [(scan, "_witness", _nobody)],
    "crc_unchecked": [(scan, "check_payload", _unchecked)],
    "no_rewrite": [(wal_open, "recover", _trusting)],
    "compaction_ignores_checkpoint": [(SegmentTable, "obsolete", _obsolete)],
    "compaction_to_newest": [(Wal, "compact", _compact_to_newest)],
    "same_view": [(single, "Fence", _low_fence)],
    "clock_starts_anew": [(ledger_open, "after_restart", _zero)],
    "readers_see_unsynced": [(Wal, "_put", _eager_put)],
    "full_disk_forgets": [(Wal, "_refuse", _forgetful_refuse)],
}


# Disks.


class _BuggyRuntime:
    def __init__(self, runtime: Runtime, disk: Any) -> None:
        self._runtime = runtime
        self.disk = disk

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runtime, name)


class _Passing:
    """Hands every call on."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _EarlyDisk(_Passing):
    async def open(self, path: str, **how: int) -> Any:
        return _EarlyFile(await self._inner.open(path, **how))


class _EarlyFile(_Passing):
    async def append_and_sync(self, data: bytes) -> None:
        await self._inner.append(data)


class _NamelessDisk(_Passing):
    async def sync_directory(self, path: str = "") -> None:
        return None


class _StubbornDisk(_Passing):
    async def open(self, path: str, **how: int) -> Any:
        file = await self._inner.open(path, **how)
        return _StubbornFile(file, self._inner, path)


class _StubbornFile(_Passing):
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
