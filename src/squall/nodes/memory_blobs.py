"""Blobs in the memory of a worker or a client: what it offers, and what it fetches.

Bundles, values and results pass through here; a worker's records stay until they are
freed. It is what the wire's blob transfer reads from and writes to, and it forgets
everything with its process.
"""

from __future__ import annotations

from squall.wire.blobs import blob_hash


class MemoryBlobs:
    """See `squall.wire.blobs.BlobStore`."""

    def __init__(self) -> None:
        self._held: dict[str, bytes] = {}
        self._parts: dict[str, bytearray] = {}
        self.arrived = 0
        """Bytes that were fetched since the start: they say that something moves."""

    def put(self, content: bytes) -> str:
        digest = blob_hash(content)
        self._held[digest] = content
        return digest

    def take(self, blob: str) -> bytes:
        """Gives a whole blob away, which is then forgotten here."""
        return self._held.pop(blob)

    def drop(self, blob: str) -> None:
        self._held.pop(blob, None)

    async def size(self, blob: str) -> int | None:
        held = self._held.get(blob)
        return None if held is None else len(held)

    async def read(self, blob: str, offset: int, length: int) -> bytes:
        return self._held[blob][offset : offset + length]

    async def part_size(self, blob: str) -> int:
        return len(self._parts.get(blob, b""))

    async def read_part(self, blob: str, offset: int, length: int) -> bytes:
        return bytes(self._parts[blob][offset : offset + length])

    async def append_part(self, blob: str, data: bytes) -> None:
        self._parts.setdefault(blob, bytearray()).extend(data)
        self.arrived += len(data)

    async def discard_part(self, blob: str) -> None:
        self._parts.pop(blob, None)

    async def commit(self, blob: str) -> None:
        self._held[blob] = bytes(self._parts.pop(blob, b""))
