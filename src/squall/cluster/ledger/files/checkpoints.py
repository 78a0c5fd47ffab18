"""Checkpoints: the state after one entry, in a file that is either complete or absent.

    frame    kind 1, length 4, CRC 4, content; the CRC continues that of the previous frame
    file     a head ("H", `CheckpointHead`), the slices ("S"), an end ("E", their number)

The member writes a checkpoint under a temporary name, syncs it, reads it back, renames it
and syncs the directory. It keeps several checkpoints, and the log back to the oldest of them,
so that recovery can skip a damaged one. The newest checkpoint is the one with the highest op
number, whatever the file times say.
"""

from __future__ import annotations

import asyncio
import re
import struct
import zlib
from collections.abc import Iterator

import msgspec

from squall.cluster.ledger.durable_directories import make_directories
from squall.cluster.ledger.interface import Capture, Fence
from squall.cluster.ledger.replica.types import NO_FENCE, Base
from squall.runtime.interfaces import Disk, File

FORMAT = 1
PARTIAL = ".new"
WRITE_BYTES = 256 * 1024
READ_BYTES = 1 << 20
MAX_FRAME_BYTES = 64 << 20
_FRAME = struct.Struct("<cII")
_SEED = zlib.crc32(b"SqCP")
_NAME = re.compile(r"checkpoint_(\d{20})\.ckpt")
_HEAD, _SLICE, _END = b"H", b"S", b"E"


class CheckpointHead(msgspec.Struct, frozen=True):
    """The first frame of a checkpoint: its base, the promise, and where the log continues."""

    storage_id: str
    base: Base
    first_lsn: int
    """The first LSN that replay needs on top of this state."""
    fence: Fence = NO_FENCE
    last_normal: Fence = NO_FENCE
    wall_ms: int = 0
    """Wall-clock time at which the group clock read `base.group_ms`. After a restart the
    difference to the wall clock is the time that the group clock missed (R10)."""
    format: int = FORMAT
    boot_ms: int = 0
    """CLOCK_BOOTTIME of the same moment, which counts for a reader under the same kernel."""
    kernel: int = 0
    """A sum of the id of the kernel boot; 0: unknown."""


class CheckpointDamaged(Exception):
    """The checkpoint is incomplete or damaged; an older one may be usable."""


def checkpoint_name(op: int) -> str:
    return f"checkpoint_{op:020d}.ckpt"


class Checkpoints:
    """Reads, writes and prunes the checkpoints of one member; it allows one writer at a time."""

    def __init__(self, disk: Disk, directory: str, storage_id: str) -> None:
        self._disk = disk
        self._directory = directory
        self._storage_id = storage_id
        # Heads of the valid checkpoints, oldest first, that were read or written so far.
        self.heads: list[CheckpointHead] = []
        # Damaged files that recovery skipped, with the reason.
        self.skipped: list[str] = []
        # The reason why the newest file was skipped; "" if it is the one in use.
        self.newest_skipped = ""
        # Size of the newest checkpoint.
        self.last_bytes = 0

    async def newest(self) -> tuple[CheckpointHead, list[bytes]] | None:
        """Reads the newest valid checkpoint, and the heads of the older ones."""
        await make_directories(self._disk, self._directory)
        best: tuple[CheckpointHead, list[bytes]] | None = None
        self.heads, self.skipped, self.newest_skipped = [], [], ""
        for op in sorted(await self._ops(), reverse=True):
            path = self._path(op)
            try:
                if best is None:
                    head, slices = await self.read(path)
                    best = head, slices
                    self.last_bytes = sum(map(len, slices))
                else:
                    head = await self.read_head(path)
            except CheckpointDamaged as error:
                self.skipped.append(f"{path}: {error}")
                if best is None:
                    self.newest_skipped = self.skipped[0]
                continue
            self.heads.insert(0, head)
        return best

    async def write(self, head: CheckpointHead, capture: Capture) -> None:
        """Returns when the checkpoint is durable. The event loop runs between two slices."""
        path = self._path(head.base.op)
        partial = path + PARTIAL
        file = await self._disk.open(partial)
        try:
            if file.size:
                await file.truncate(0)
            await _fill(file, head, capture.slices())
            await file.sync()
        finally:
            await file.close()
        # Read back before the rename: the caller then deletes log that only this file covers.
        try:
            await self.read(partial, keep=False)
        except CheckpointDamaged as error:
            raise OSError(f"{partial} is damaged after it was written: {error}") from None
        self.last_bytes = await self._disk.size(partial)
        await self._disk.rename(partial, path)
        await self._disk.sync_directory(self._directory)
        self.heads = [*(h for h in self.heads if h.base.op < head.base.op), head]

    async def prune(self, keep: int) -> None:
        """Deletes all but the newest `keep` checkpoints, and unfinished files. Damaged
        checkpoints newer than the oldest kept one stay."""
        self.heads = self.heads[-keep:]
        kept = {checkpoint_name(head.base.op) for head in self.heads}
        oldest = checkpoint_name(self.heads[0].base.op) if self.heads else ""
        for name in await self._disk.list(self._directory):
            stale = _NAME.fullmatch(name) is not None and name not in kept and name < oldest
            if stale or name.endswith(PARTIAL):
                await self._disk.remove(f"{self._directory}/{name}")
        await self._disk.sync_directory(self._directory)

    async def read(self, path: str, *, keep: bool = True) -> tuple[CheckpointHead, list[bytes]]:
        """Reads and checks the whole file. Without `keep` it returns no slices."""
        frames = _Frames(self._disk, path)
        head = await self._head(frames)
        slices: list[bytes] = []
        count = 0
        while True:
            kind, content = await frames.next()
            if kind == _END:
                break
            if kind != _SLICE:
                raise CheckpointDamaged(f"a frame has the unknown kind {kind!r}")
            count += 1
            if keep:
                slices.append(content)
        if content != count.to_bytes(8, "little") or not await frames.at_end():
            raise CheckpointDamaged(f"its end does not match its {count} slices")
        return head, slices

    async def read_head(self, path: str) -> CheckpointHead:
        return await self._head(_Frames(self._disk, path))

    async def _head(self, frames: _Frames) -> CheckpointHead:
        kind, content = await frames.next()
        if kind != _HEAD:
            raise CheckpointDamaged("it has no head")
        try:
            head = msgspec.msgpack.decode(content, type=CheckpointHead)
        except msgspec.DecodeError as error:
            raise CheckpointDamaged(f"its head cannot be decoded: {error}") from None
        if head.format > FORMAT:
            raise CheckpointDamaged(f"its format {head.format} is newer than {FORMAT}")
        if head.storage_id != self._storage_id:
            raise CheckpointDamaged("it belongs to another data directory")
        return head

    async def _ops(self) -> list[int]:
        matches = map(_NAME.fullmatch, await self._disk.list(self._directory))
        return [int(match[1]) for match in matches if match is not None]

    def _path(self, op: int) -> str:
        return f"{self._directory}/{checkpoint_name(op)}"


class _Frames:
    """Reads a checkpoint frame by frame; each frame's CRC also covers the frames before it."""

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._path = path
        self._offset = 0
        self._data = b""
        self._crc = _SEED

    async def next(self) -> tuple[bytes, bytes]:
        head = await self._take(_FRAME.size)
        kind, length, checksum = _FRAME.unpack(head)
        if length > MAX_FRAME_BYTES:
            raise CheckpointDamaged(f"a frame claims {length} bytes")
        content = await self._take(length)
        self._crc = zlib.crc32(content, zlib.crc32(head[:5], self._crc))
        if self._crc != checksum:
            raise CheckpointDamaged("a checksum is wrong")
        return kind, content

    async def at_end(self) -> bool:
        return not self._data and not await self._disk.read(self._path, self._offset, 1)

    async def _take(self, size: int) -> bytes:
        while len(self._data) < size:
            more = await self._disk.read(
                self._path, self._offset, max(READ_BYTES, size - len(self._data))
            )
            if not more:
                raise CheckpointDamaged("it ends too early")
            self._offset += len(more)
            self._data += more
        taken, self._data = self._data[:size], self._data[size:]
        return taken


async def _fill(file: File, head: CheckpointHead, slices: Iterator[bytes]) -> None:
    crc = _SEED
    waiting: list[bytes] = []
    size = 0

    def add(kind: bytes, content: bytes) -> None:
        nonlocal crc, size
        start = struct.pack("<cI", kind, len(content))
        crc = zlib.crc32(content, zlib.crc32(start, crc))
        waiting.extend((start, crc.to_bytes(4, "little"), content))
        size += _FRAME.size + len(content)

    add(_HEAD, msgspec.msgpack.encode(head))
    count = 0
    for piece in slices:
        add(_SLICE, piece)
        count += 1
        if size >= WRITE_BYTES:
            await file.append(b"".join(waiting))
            waiting.clear()
            size = 0
        else:
            await asyncio.sleep(0)
    add(_END, count.to_bytes(8, "little"))
    await file.append(b"".join(waiting))
