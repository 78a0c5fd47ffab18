"""Holds the blobs that a worker or a client offers and fetches, in memory.

Bundles, values and results pass through it; a worker's records stay until the worker drops
them. The wire's blob transfer reads from it and stores into it. Its content ends with the
process.
"""

from __future__ import annotations

from squall.cluster.wire.blob_transfer import blob_hash


class MemoryBlobs:
    """Keeps blobs in a dictionary, as `BlobSource` and `BlobTarget` of the blob transfer."""

    def __init__(self) -> None:
        self._held: dict[str, bytes] = {}

    def put(self, content: bytes) -> str:
        digest = blob_hash(content)
        self._held[digest] = content
        return digest

    def take(self, blob: str) -> bytes:
        """Removes a blob and returns its content."""
        return self._held.pop(blob)

    def drop(self, blob: str) -> None:
        self._held.pop(blob, None)

    async def has(self, blob: str) -> bool:
        return blob in self._held

    async def size(self, blob: str) -> int | None:
        held = self._held.get(blob)
        return None if held is None else len(held)

    async def read(self, blob: str, offset: int, length: int) -> bytes:
        return self._held[blob][offset : offset + length]

    async def store(self, blob: str, content: bytes) -> None:
        self._held[blob] = content
