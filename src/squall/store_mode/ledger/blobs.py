"""The blobs of a log in a store: named by SHA-256, and durable before a command names them (R9).

    blob/<scope>/<digest>              the content, or the number of its parts
    blobpart/<scope>/<digest>.<t>.<n>  a part of a large blob; <t> is unique to one put

A blob exists once its record does; its parts are written first. A blob whose content does not
match its digest counts as absent (`KeyError`).

The leader deletes a blob only after nothing has referred to it for `blob_keep_s`. As in a
replicated group, that time starts again when the blob is put, when `has` answers yes, when the
leader sees the last reference go, and when a new leader takes over. A former leader may still
delete. So a delete names the version that was read, and `has` rewrites a record that is older
than half of `blob_keep_s`, which makes such a delete fail.
"""

from __future__ import annotations

import asyncio
import errno
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Generator, Iterable
from contextlib import contextmanager

import msgspec

from squall.cluster.ledger.blobs.on_disk import BlobTooLarge, digest_of
from squall.cluster.ledger.interface import Digest
from squall.coordination.store_errors import StoreError, VersionConflict
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
from squall.store_mode.ledger.layout import StoreLogSettings

INLINE_BYTES = 256 * 1024
"""A blob up to this size is one record, and so costs one request."""
TOKEN_BYTES = 8
RECENT_MAX = 4
"""Contents that are cached; usually no more blobs than this are transferred at a time."""
PAGE = 100
KIND, PART = "blob", "blobpart"


class Blob(msgspec.Struct, frozen=True, array_like=True):
    """The record of a blob: its content, or the token and number of its parts."""

    size: int
    content: bytes = b""
    token: str = ""
    parts: int = 0


_decoder = msgspec.msgpack.Decoder(Blob)


class StoreBlobs:
    """Stores blobs as records of a store. `group_ms` reads the group clock; `entropy` makes the
    names of parts unique."""

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
        # Group time at which this leader first saw that nothing refers to the blob.
        self._unreferenced: dict[Digest, int] = {}
        # Blobs whose content did not match; the next put replaces them.
        self._damaged: set[Digest] = set()
        self._recent: OrderedDict[str, bytes] = OrderedDict()

    async def put(self, data: bytes) -> Digest:
        limit = self._settings.blob_max_bytes
        if len(data) > limit:
            raise BlobTooLarge(f"a blob of {len(data)} bytes is over {limit}")
        digest = await digest_of(data)
        await self.store(digest, data)
        return digest

    async def store(self, blob: str, content: bytes) -> None:
        digest = Digest(blob)
        with _as_disk_errors():
            if len(content) > INLINE_BYTES and await self._has(digest):
                return
            record = await self._stored(digest, content)
            while not await self._is_named(digest, record):
                pass

    async def size(self, blob: str) -> int | None:
        content = await self._recent_content(blob)
        return None if content is None else len(content)

    async def read(self, blob: str, offset: int, length: int) -> bytes:
        content = await self._recent_content(blob)
        if content is None:
            raise FileNotFoundError(errno.ENOENT, "the blob is no longer in the store", blob[:12])
        return content[offset : offset + length]

    @property
    def own(self) -> StoreBlobs:
        """This object: all agents share the store, so there is no separate local copy."""
        return self

    async def _recent_content(self, blob: str) -> bytes | None:
        """Reads through a small cache: a transfer asks for many chunks of the same blob, and
        each request to a store costs."""
        known = self._recent.get(blob)
        if known is None:
            try:
                known = await self.get(Digest(blob))
            except KeyError:
                return None
            self._recent[blob] = known
            while len(self._recent) > RECENT_MAX:
                self._recent.popitem(last=False)
        self._recent.move_to_end(blob)
        return known

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
        """After True, the blob stays for at least half of `blob_keep_s`."""
        with _as_disk_errors():
            return await self._has(digest)

    async def ensure(self, digest: Digest) -> bool:
        """A blob in the store is durable, so it is enough that the store has it."""
        return await self.has(digest)

    async def _is_named(self, digest: Digest, blob: Blob) -> bool:
        """Writes the record that names the blob; False if the caller must try again."""
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
        # A new version makes a pending delete by a former leader fail.
        try:
            await self._write(digest, blob, record.version)
        except VersionConflict:
            # Another process renewed the record too, or a former leader just deleted it.
            return await self._read(digest) is not None
        return True

    async def collect(self, referenced: Iterable[Digest]) -> int:
        """Deletes blobs that have been unreferenced for long enough; returns how many. Only for
        a leader that has applied every committed entry. Lists keys, which costs requests."""
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
        """Returns the record of a blob, after writing the parts of a large one."""
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
        # The version guards against a `has` that has just promised the blob to a caller (R9).
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
        """Deletes a part if no record names it, because its writer died before it finished."""
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
    """Turns errors of the store into `OSError`, which blob transfers expect from a disk."""
    try:
        yield
    except StoreError as error:
        raise OSError(errno.EIO, str(error)) from error


def _blob_of(record: Record) -> Blob | None:
    try:
        return _decoder.decode(record.value)
    except msgspec.DecodeError:
        return None
