"""The blobs of one member: named by their SHA-256, durable before they are named.

A blob is a file of its own, written whole, synced and renamed. What cannot be read back
right is as good as absent: it is fetched again if there is anybody to ask, else KeyError.

A blob goes only when nothing has referred to it for an hour of group time. The hour
starts anew when it was put, when somebody was told that it is here, when its last
reference was seen to be gone, and at a start of the node; it is never shorter than
that, only longer.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable
from hashlib import sha256

from squall.api.errors import SquallError
from squall.ledger.directories import make_directories
from squall.ledger.interface import Digest
from squall.runtime.interfaces import Disk

HASH_BYTES = 1 << 20
"""Hashed between two turns of the loop: about a millisecond."""
_DIGEST = re.compile(r"[0-9a-f]{64}")

Fetch = Callable[[Digest], Awaitable[bytes]]
"""Asks peers; raises KeyError when nobody has it."""


class BlobTooLarge(SquallError):
    """Over the limit of the settings; nothing was stored."""


class BlobStore:
    """`group_ms` reads the group clock; `fetch` is for members of a larger group."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        group_ms: Callable[[], int],
        *,
        max_bytes: int,
        keep_ms: int,
        fetches: int = 8,
        fetch: Fetch | None = None,
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._group_ms = group_ms
        self._max_bytes = max_bytes
        self._keep_ms = keep_ms
        self._fetch = fetch
        self._turns = asyncio.Semaphore(fetches)
        self._since: dict[Digest, int] = {}
        """When each blob was last wanted, in group time."""
        self._writing: dict[Digest, asyncio.Lock] = {}

    async def open(self) -> None:
        """Finds what is there. Everything gets its full hour."""
        await make_directories(self._disk, self._directory)
        now = self._group_ms()
        for name in await self._disk.list(self._directory):
            if _DIGEST.fullmatch(name):
                self._since[Digest(name)] = now

    @property
    def count(self) -> int:
        return len(self._since)

    async def put(self, data: bytes) -> Digest:
        if len(data) > self._max_bytes:
            raise BlobTooLarge(f"a blob of {len(data)} bytes is over {self._max_bytes}")
        digest = await digest_of(data)
        async with self._lock(digest):
            if digest not in self._since:
                await self._disk.write_atomic(self._path(digest), data)
            self._since[digest] = self._group_ms()
        return digest

    async def get(self, digest: Digest) -> bytes:
        data = await self._read(digest)
        if data is not None:
            return data
        if self._fetch is None:
            raise KeyError(digest)
        async with self._lock(digest):
            # Another caller may have fetched it while this one waited.
            data = await self._read(digest)
            if data is None:
                async with self._turns:
                    data = await self._fetch(digest)
                if len(data) > self._max_bytes or await digest_of(data) != digest:
                    raise KeyError(digest)
                await self._disk.write_atomic(self._path(digest), data)
                self._since[digest] = self._group_ms()
            return data

    def digests(self) -> list[Digest]:
        """Of all that is here."""
        return list(self._since)

    async def check(self, digest: Digest) -> int:
        """Its size; negative when it was here and cannot be read back right."""
        async with self._lock(digest):
            if digest not in self._since:
                return 0
            data = await self._read(digest)
        return -1 if data is None else len(data)

    async def has(self, digest: Digest) -> bool:
        """Who is told yes can rely on it for the next hour."""
        if digest not in self._since:
            return False
        self._since[digest] = self._group_ms()
        return True

    async def collect(self, referenced: Iterable[Digest]) -> int:
        """Deletes what has been unreferenced for long enough; says how many. The caller
        has applied all that is committed."""
        now = self._group_ms()
        for digest in referenced:
            if digest in self._since:
                self._since[digest] = now
        old = [digest for digest, since in self._since.items() if now - since >= self._keep_ms]
        deleted = 0
        for digest in old:
            async with self._lock(digest):
                # Somebody may have asked for it meanwhile.
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
        for idle in [d for d, lock in self._writing.items() if not lock.locked()]:
            if idle != digest:
                del self._writing[idle]
        return self._writing.setdefault(digest, asyncio.Lock())


async def digest_of(data: bytes) -> Digest:
    """SHA-256 in slices, so that a large blob does not hold the loop."""
    hashed = sha256()
    for start in range(0, len(data), HASH_BYTES):
        if start:
            await asyncio.sleep(0)
        hashed.update(memoryview(data)[start : start + HASH_BYTES])
    return Digest(hashed.hexdigest())
