"""The blobs on one member's disk, named by their SHA-256 and durable before a command names
them (R9).

Each blob is one file, written under a temporary name, synced and renamed. A file whose content
does not match its name counts as absent (KeyError) and may be stored again.

The store deletes a blob only after an hour of group time without a reference. The hour
restarts when the blob is put, when the store confirms to a caller that it has the blob, at
each collection that finds a reference, and when the node starts: it may last longer, but
never shorter.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable
from hashlib import sha256

from squall.api.errors import SquallError
from squall.cluster.ledger.durable_directories import make_directories
from squall.cluster.ledger.interface import Digest
from squall.runtime.interfaces import Disk

HASH_BYTES = 1 << 20
"""Bytes hashed between two turns of the event loop, in about a millisecond."""
_DIGEST = re.compile(r"[0-9a-f]{64}")


class BlobTooLarge(SquallError):
    """The blob exceeds `blob_max_bytes`; the store did not keep it."""


class BlobStore:
    """Stores blobs as files and deletes those that stay unreferenced; `group_ms` reads the
    group clock."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        group_ms: Callable[[], int],
        *,
        max_bytes: int,
        keep_ms: int,
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._group_ms = group_ms
        self._max_bytes = max_bytes
        self._keep_ms = keep_ms
        # Group time at which each blob was last stored, confirmed or referenced.
        self._since: dict[Digest, int] = {}
        self._writing: dict[Digest, asyncio.Lock] = {}

    async def open(self) -> None:
        """Lists the blobs on disk. Each one gets its full hour."""
        await make_directories(self._disk, self._directory)
        # A former process may have ended between a rename and its sync. What this one confirms
        # must survive a loss of power.
        await self._disk.sync_directory(self._directory)
        now = self._group_ms()
        for name in await self._disk.list(self._directory):
            if _DIGEST.fullmatch(name):
                self._since[Digest(name)] = now

    @property
    def count(self) -> int:
        return len(self._since)

    async def put(self, data: bytes) -> Digest:
        if len(data) > self._max_bytes:
            raise BlobTooLarge(
                f"a blob of {len(data)} bytes is over the limit of {self._max_bytes} bytes"
            )
        digest = await digest_of(data)
        await self.store(digest, data)
        return digest

    async def store(self, blob: str, content: bytes) -> None:
        """Stores content whose hash the caller has checked."""
        digest = Digest(blob)
        async with self._lock(digest):
            if digest not in self._since:
                await self._disk.write_atomic(self._path(digest), content)
            self._since[digest] = self._group_ms()

    async def size(self, blob: str) -> int | None:
        """The blob's size, or None. A caller that gets a size can rely on the blob for an hour."""
        digest = Digest(blob)
        if digest not in self._since:
            return None
        try:
            size = await self._disk.size(self._path(digest))
        except FileNotFoundError:
            self._since.pop(digest, None)
            return None
        self._since[digest] = self._group_ms()
        return size

    async def read(self, blob: str, offset: int, length: int) -> bytes:
        """Reads a part of a blob. The receiver checks the hash once it has all parts."""
        return await self._disk.read(self._path(Digest(blob)), offset, length)

    async def get(self, digest: Digest) -> bytes:
        data = await self._read(digest)
        if data is not None:
            return data
        raise KeyError(digest)

    def digests(self) -> list[Digest]:
        """The names of all blobs in this store."""
        return list(self._since)

    async def check(self, digest: Digest) -> int:
        """The blob's size; 0 if the store does not have it, negative if its file is damaged."""
        async with self._lock(digest):
            if digest not in self._since:
                return 0
            data = await self._read(digest)
        return -1 if data is None else len(data)

    async def has(self, digest: Digest) -> bool:
        """A caller that gets True can rely on the blob for an hour."""
        if digest not in self._since:
            return False
        self._since[digest] = self._group_ms()
        return True

    async def collect(self, referenced: Iterable[Digest]) -> int:
        """Deletes the blobs that have been unreferenced long enough, and returns how many. The
        caller has applied everything committed, so `referenced` is complete (R9)."""
        now = self._group_ms()
        for digest in referenced:
            if digest in self._since:
                self._since[digest] = now
        old = [digest for digest, since in self._since.items() if now - since >= self._keep_ms]
        deleted = 0
        for digest in old:
            async with self._lock(digest):
                # While this task waited for the lock, a caller may have stored the blob again
                # or received a confirmation.
                since = self._since.get(digest)
                if since is None or now - since < self._keep_ms:
                    continue
                del self._since[digest]
                await self._disk.remove(self._path(digest))
                deleted += 1
        return deleted

    async def _read(self, digest: Digest) -> bytes | None:
        if digest not in self._since:
            return None
        try:
            data = await self._disk.read(self._path(digest))
        except OSError:
            self._since.pop(digest, None)
            return None
        if await digest_of(data) != digest:
            self._since.pop(digest, None)
            return None
        return data

    def _path(self, digest: Digest) -> str:
        return f"{self._directory}/{digest}"

    def _lock(self, digest: Digest) -> asyncio.Lock:
        # Drop idle locks, so that the table holds only blobs in use.
        for idle in [d for d, lock in self._writing.items() if not lock.locked()]:
            if idle != digest:
                del self._writing[idle]
        return self._writing.setdefault(digest, asyncio.Lock())


async def digest_of(data: bytes) -> Digest:
    """Computes the SHA-256 in slices, so that a large blob does not block the event loop."""
    hashed = sha256()
    for start in range(0, len(data), HASH_BYTES):
        if start:
            await asyncio.sleep(0)
        hashed.update(memoryview(data)[start : start + HASH_BYTES])
    return Digest(hashed.hexdigest())
