"""The blobs of a log that lies in a store: named by their SHA-256, durable before named.

    blob/<scope>/<digest>              the content, or of how many parts it is made
    blobpart/<scope>/<digest>.<t>.<n>  a part of a large one; <t> is unique to one put

A blob counts when its record is there; the parts come first. What does not read back right
is as good as absent: KeyError.

A blob goes only when nothing referred to it for `blob_keep_s`. As with members of a group
that time starts anew when it was put, when somebody was told that it is here, when its last
reference was seen to be gone, and with a new leader. A leader that lost its lead may still
delete, so a delete names the version that was looked at, and whoever is told "it is here"
has made a new version of a record that is half as old as that.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Callable, Generator, Iterable
from contextlib import contextmanager

import msgspec

from squall.coordination.stores.errors import StoreError, VersionConflict
from squall.coordination.stores.interface import (
    ABSENT,
    ANY,
    Condition,
    Delete,
    Put,
    Record,
    Store,
    make_key,
)
from squall.ledger.blobs import BlobTooLarge, digest_of
from squall.ledger.interface import Digest
from squall.nodes.agent.slots import StoreLogSettings

INLINE_BYTES = 256 * 1024
"""Up to here a blob is one record, and so one request."""
TOKEN_BYTES = 8
PAGE = 100
KIND, PART = "blob", "blobpart"


class Blob(msgspec.Struct, frozen=True, array_like=True):
    size: int
    content: bytes = b""
    token: str = ""
    parts: int = 0


_decoder = msgspec.msgpack.Decoder(Blob)


class StoreBlobs:
    """`group_ms` reads the group clock; `entropy` gives the names of parts."""

    def __init__(
        self,
        store: Store,
        scope: str,
        settings: StoreLogSettings,
        *,
        group_ms: Callable[[], int],
        entropy: Callable[[int], bytes],
    ) -> None:
        self._store = store
        self._scope = scope
        self._settings = settings
        self._group_ms = group_ms
        self._entropy = entropy
        self._unreferenced: dict[Digest, int] = {}
        """Since when, in group time, as this leader saw it."""
        self._damaged: set[Digest] = set()
        """Did not read back right: the next put replaces them."""

    async def put(self, data: bytes) -> Digest:
        limit = self._settings.blob_max_bytes
        if len(data) > limit:
            raise BlobTooLarge(f"a blob of {len(data)} bytes is over {limit}")
        digest = await digest_of(data)
        with _as_disk_errors():
            if len(data) > INLINE_BYTES and await self._has(digest):
                return digest
            blob = await self._stored(digest, data)
            while not await self._is_named(digest, blob):
                pass
        return digest

    async def get(self, digest: Digest) -> bytes:
        with _as_disk_errors():
            record = await self._read(digest)
            if record is None:
                raise KeyError(digest)
            content = await self._content(digest, _blob_of(record))
        if content is None or await digest_of(content) != digest:
            self._damaged.add(digest)
            raise KeyError(digest)
        return content

    async def has(self, digest: Digest) -> bool:
        """Who is told yes can rely on it for half of the time that blobs are kept."""
        with _as_disk_errors():
            return await self._has(digest)

    async def _is_named(self, digest: Digest, blob: Blob) -> bool:
        """False: another try is needed."""
        try:
            await self._write(digest, blob, ANY if digest in self._damaged else ABSENT)
        except VersionConflict:
            return await self._has(digest)
        self._damaged.discard(digest)
        return True

    async def _has(self, digest: Digest) -> bool:
        record = await self._read(digest)
        if record is None:
            return False
        blob = _blob_of(record)
        if blob is None:
            self._damaged.add(digest)
        if blob is None or digest in self._damaged:
            return False
        self._unreferenced.pop(digest, None)
        if record.age_s * 2.0 < self._settings.blob_keep_s:
            return True
        try:
            await self._write(digest, blob, record.version)
        except VersionConflict:
            # Another one did the same, or it was deleted a moment ago.
            return await self._read(digest) is not None
        return True

    async def collect(self, referenced: Iterable[Digest]) -> int:
        """Deletes what has been unreferenced for long enough; says how many. The caller
        leads, and has applied all that is committed. It lists."""
        named, now = set(referenced), self._group_ms()
        keep_ms = int(self._settings.blob_keep_s * 1000.0)
        for digest in named:
            self._unreferenced.pop(digest, None)
        deleted = 0
        async for digest in self._listed(KIND, keep_ms):
            if digest in named:
                continue
            since = self._unreferenced.setdefault(digest, now)
            if now - since >= keep_ms and await self._delete(digest, keep_ms):
                deleted += 1
        async for name in self._listed(PART, keep_ms):
            await self._delete_part(name)
        return deleted

    # Records.

    async def _stored(self, digest: Digest, data: bytes) -> Blob:
        """The record of a blob; the parts of a large one are durable when it returns."""
        if len(data) <= INLINE_BYTES:
            return Blob(len(data), data)
        token, step = self._entropy(TOKEN_BYTES).hex(), self._settings.part_bytes
        starts = range(0, len(data), step)
        for number, start in enumerate(starts):
            part = data[start : start + step]
            key = self._part(digest, token, number)
            await self._store.write(Put(key, part, expect=ANY, ttl_s=None, silent=True))
        return Blob(len(data), token=token, parts=len(starts))

    async def _content(self, digest: Digest, blob: Blob | None) -> bytes | None:
        if blob is None or not blob.parts:
            return None if blob is None else blob.content
        content = bytearray()
        for number in range(blob.parts):
            (part,) = await self._store.get(self._part(digest, blob.token, number))
            if part is None:
                return None
            content += part.value
            await asyncio.sleep(0)
        return bytes(content)

    async def _write(self, digest: Digest, blob: Blob, expect: Condition) -> None:
        value = msgspec.msgpack.encode(blob)
        put = Put(self._key(digest), value, expect=expect, ttl_s=None, silent=True)
        await self._store.write(put)

    async def _read(self, digest: Digest) -> Record | None:
        return (await self._store.get(self._key(digest)))[0]

    # Deleting.

    async def _delete(self, digest: Digest, keep_ms: int) -> bool:
        record = await self._read(digest)
        if record is None or record.age_s * 1000.0 < keep_ms:
            return False
        try:
            await self._store.write(Delete(record.key, record.version, silent=True))
        except VersionConflict:
            return False
        self._unreferenced.pop(digest, None)
        blob = _blob_of(record)
        for number in range(blob.parts if blob is not None else 0):
            assert blob is not None
            key = self._part(digest, blob.token, number)
            await self._store.write(Delete(key, ANY, silent=True))
        return True

    async def _delete_part(self, name: str) -> None:
        """One that no record names: its writer ended before it was done."""
        digest, token, _ = name.split(".")
        record = await self._read(Digest(digest))
        blob = None if record is None else _blob_of(record)
        if blob is None or blob.token != token:
            await self._store.write(Delete(make_key(PART, self._scope, name), ANY, silent=True))

    async def _listed(self, kind: str, idle_ms: int) -> AsyncIterator[Digest]:
        prefix, after = make_key(kind, self._scope) + "/", ""
        while True:
            page = await self._store.list(kind, idle_ms=idle_ms, after=after, limit=PAGE)
            for entry in page.entries:
                if entry.key.startswith(prefix):
                    yield Digest(entry.key.removeprefix(prefix))
            after = page.after
            if not after:
                return

    def _key(self, digest: Digest) -> str:
        return make_key(KIND, self._scope, digest)

    def _part(self, digest: Digest, token: str, number: int) -> str:
        return make_key(PART, self._scope, f"{digest}.{token}.{number}")


@contextmanager
def _as_disk_errors() -> Generator[None]:
    """A store that does not answer is to a transfer what a disk is that cannot be written."""
    try:
        yield
    except StoreError as error:
        raise OSError(errno.EIO, str(error)) from error


def _blob_of(record: Record) -> Blob | None:
    try:
        return _decoder.decode(record.value)
    except msgspec.DecodeError:
        return None
