"""Checkpoints: the state as of one entry, in a file that is whole or is not there.

    frame    kind 1, length 4, CRC 4, content; the CRC goes on from the frame before
    file     a head ("H", `CheckpointHead`), the slices ("S"), an end ("E", their number)

Written under another name, synced, read back, renamed, the directory synced. Several are
kept; the log is kept back to the oldest of them, so that a damaged one can be skipped.
The newest is the one with the highest op number, never the youngest file.
"""

from __future__ import annotations

import asyncio
import re
import struct
import zlib
from collections.abc import Iterator

import msgspec

from squall.ledger.directories import make_directories
from squall.ledger.interface import Capture, Fence
from squall.ledger.replica.types import NO_FENCE, Base
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
    storage_id: str
    base: Base
    first_lsn: int
    """The log is needed from here on to go on from this state."""
    fence: Fence = NO_FENCE
    last_normal: Fence = NO_FENCE
    wall_ms: int = 0
    """When `base.group_ms` was read, for the gap after a restart."""
    format: int = FORMAT


class CheckpointDamaged(Exception):
    """Not whole; an older one may be."""


def checkpoint_name(op: int) -> str:
    return f"checkpoint_{op:020d}.ckpt"


class Checkpoints:
    """Those of one member. One writer at a time."""

    def __init__(self, disk: Disk, directory: str, storage_id: str) -> None:
        self._disk = disk
        self._directory = directory
        self._storage_id = storage_id
        self.heads: list[CheckpointHead] = []
        """Of the whole ones, oldest first, as far as they were read or written."""
        self.skipped: list[str] = []
        """Damaged files that recovery passed over, and why."""
        self.last_bytes = 0
        """Size of the newest."""

    async def newest(self) -> tuple[CheckpointHead, list[bytes]] | None:
        """The newest whole one; the heads of the older ones are read too."""
        await make_directories(self._disk, self._directory)
        best: tuple[CheckpointHead, list[bytes]] | None = None
        self.heads, self.skipped = [], []
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
                continue
            self.heads.insert(0, head)
        return best

    async def write(self, head: CheckpointHead, capture: Capture) -> None:
        """Durable when it returns. Between two slices the loop has its turn."""
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
        try:
            await self.read(partial, keep=False)
        except CheckpointDamaged as error:
            raise OSError(f"{partial} does not read back: {error}") from None
        self.last_bytes = await self._disk.size(partial)
        await self._disk.rename(partial, path)
        await self._disk.sync_directory(self._directory)
        self.heads = [*(h for h in self.heads if h.base.op < head.base.op), head]

    async def prune(self, keep: int) -> None:
        """Removes all but the newest `keep`, damaged ones below them, and leftovers."""
        self.heads = self.heads[-keep:]
        kept = {checkpoint_name(head.base.op) for head in self.heads}
        oldest = checkpoint_name(self.heads[0].base.op) if self.heads else ""
        for name in await self._disk.list(self._directory):
            stale = _NAME.fullmatch(name) is not None and name not in kept and name < oldest
            if stale or name.endswith(PARTIAL):
                await self._disk.remove(f"{self._directory}/{name}")
        await self._disk.sync_directory(self._directory)

    async def read(self, path: str, *, keep: bool = True) -> tuple[CheckpointHead, list[bytes]]:
        """All of it, checked; without `keep` the slices are checked and dropped."""
        frames = _Frames(self._disk, path)
        head = await self._head(frames)
        slices: list[bytes] = []
        count = 0
        while True:
            kind, content = await frames.next()
            if kind == _END:
                break
            if kind != _SLICE:
                raise CheckpointDamaged(f"a frame of kind {kind!r}")
            count += 1
            if keep:
                slices.append(content)
        if content != count.to_bytes(8, "little") or not await frames.at_end():
            raise CheckpointDamaged(f"{count} slices are not all, or too many")
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
            raise CheckpointDamaged(f"its head cannot be understood: {error}") from None
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
    """Reads a file frame by frame; every frame vouches for those before it."""

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
