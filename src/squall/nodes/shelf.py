"""Blobs of a node as the wire wants them: read in chunks, collected from chunks.

What is being fetched is kept in memory until it is whole, because only whole blobs may
be stored under their name; what is being read is kept for a few moments, because a
transfer asks for many chunks of the same blob.
"""

from __future__ import annotations

from collections import OrderedDict

from squall.ledger.interface import Blobs, Digest

READ_KEPT = 4
PARTS_MAX_BYTES = 256 * 1024 * 1024


class BlobShelf:
    """Over a node's `Blobs`; see `squall.wire.blobs.BlobStore`."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs
        self._parts: dict[str, bytearray] = {}
        self._read: OrderedDict[str, bytes] = OrderedDict()

    async def size(self, blob: str) -> int | None:
        content = await self._content(blob)
        return None if content is None else len(content)

    async def read(self, blob: str, offset: int, length: int) -> bytes:
        content = await self._content(blob)
        if content is None:
            raise OSError(f"blob {blob[:12]} is not held any more")
        return content[offset : offset + length]

    async def part_size(self, blob: str) -> int:
        return len(self._parts.get(blob, b""))

    async def read_part(self, blob: str, offset: int, length: int) -> bytes:
        return bytes(self._parts[blob][offset : offset + length])

    async def append_part(self, blob: str, data: bytes) -> None:
        held = sum(len(part) for part in self._parts.values())
        if held + len(data) > PARTS_MAX_BYTES:
            raise OSError("too much is being fetched at once")
        self._parts.setdefault(blob, bytearray()).extend(data)

    async def discard_part(self, blob: str) -> None:
        self._parts.pop(blob, None)

    async def commit(self, blob: str) -> None:
        await self._blobs.put(bytes(self._parts.pop(blob)))

    async def _content(self, blob: str) -> bytes | None:
        known = self._read.get(blob)
        if known is not None:
            self._read.move_to_end(blob)
            return known
        try:
            # Not only what is here: a member of a group fetches what it lacks.
            content = await self._blobs.get(Digest(blob))
        except KeyError:
            return None
        self._read[blob] = content
        while len(self._read) > READ_KEPT:
            self._read.popitem(last=False)
        return content
