"""Blobs by pull: announced by hash and size, fetched in chunks, checked by SHA-256.

Whoever needs a blob asks for it, chunk by chunk, with at most eight requests in flight; a
transfer that broke goes on where its part ends, from the same or another holder. Content
is committed only when its hash is the announced one; anything else is thrown away,
counted, and the next holder is asked. It must never keep more than it asked for.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections import deque
from collections.abc import Coroutine, Sequence
from typing import Any, Protocol

from squall.runtime.tasks import TaskRunner, TaskToken
from squall.wire.counters import WireCounters
from squall.wire.dispatch import TASK_GROUP, Handlers, Incoming
from squall.wire.errors import (
    BlobError,
    BlobRefused,
    NotSent,
    OutcomeUnknown,
    RemoteError,
    WireError,
)
from squall.wire.messages import BlobChunk, BlobFetch, ErrorCode

CHUNK_BYTES = 256 * 1024
IN_FLIGHT_MAX = 8
BLOB_MAX_BYTES = 1024 * 1024 * 1024
CHUNK_TIMEOUT_S = 30.0

_HASH = re.compile(r"[0-9a-f]{64}")


class BlobStore(Protocol):
    """Where blobs are kept. Calls may raise `OSError`. One fetch of a blob at a time."""

    async def size(self, blob: str) -> int | None:
        """Of a whole blob that is held; None if it is not."""
        ...

    async def read(self, blob: str, offset: int, length: int) -> bytes:
        """Of a whole blob."""
        ...

    async def part_size(self, blob: str) -> int:
        """Bytes of it that an earlier fetch left behind; 0 if there are none."""
        ...

    async def read_part(self, blob: str, offset: int, length: int) -> bytes: ...
    async def append_part(self, blob: str, data: bytes) -> None: ...
    async def discard_part(self, blob: str) -> None: ...
    async def commit(self, blob: str) -> None:
        """The part is the whole blob: durable under its name when this returns."""
        ...


class Holder(Protocol):
    """Who can be asked for chunks: a peer's bulk channel, or the peer itself."""

    def request(self, message: Any, timeout_s: float) -> Coroutine[Any, Any, Any]: ...


def blob_hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def serve_blobs(handlers: Handlers, store: BlobStore) -> None:
    """Answers the fetches of others from this store."""

    async def fetch(message: BlobFetch, incoming: Incoming) -> BlobChunk:
        size = await store.size(message.blob) if _HASH.fullmatch(message.blob) else None
        if size is None:
            raise RemoteError(ErrorCode.NOT_FOUND, "this blob is not held here")
        if not (0 <= message.offset <= size and 0 < message.length <= CHUNK_BYTES):
            raise RemoteError(ErrorCode.BAD_MESSAGE, "no such part of the blob")
        length = min(message.length, size - message.offset)
        data = await store.read(message.blob, message.offset, length) if length else b""
        return BlobChunk(message.blob, message.offset, size, data)

    handlers.on(BlobFetch, fetch)


class _Turn:
    """Who fetches a blob now, and how many want to."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.users = 0


class _Request:
    """One chunk that was asked for, and what came of it."""

    __slots__ = ("length", "offset", "outcome", "token")

    def __init__(self, offset: int, length: int) -> None:
        self.offset = offset
        self.length = length
        self.token: TaskToken | None = None
        self.outcome: bytes | WireError | None = None


class BlobFetcher:
    """Fetches into one store; all its transfers share the eight requests."""

    def __init__(
        self,
        store: BlobStore,
        counters: WireCounters,
        tasks: TaskRunner,
        *,
        blob_max_bytes: int = BLOB_MAX_BYTES,
        chunk_timeout_s: float = CHUNK_TIMEOUT_S,
    ) -> None:
        self._store = store
        self._counters = counters
        self._tasks = tasks
        self._blob_max_bytes = blob_max_bytes
        self._chunk_timeout_s = chunk_timeout_s
        self._slots = asyncio.Semaphore(IN_FLIGHT_MAX)
        self._busy: dict[str, _Turn] = {}

    async def fetch(self, blob: str, size: int, holders: Sequence[Holder]) -> None:
        """Returns when the blob is in the store. `BlobRefused` if no holder's content was
        the announced one, `BlobError` if none could be reached; a part may then remain."""
        if not _HASH.fullmatch(blob):
            raise BlobRefused("a blob is named by its SHA-256 in lower-case hexadecimal")
        if not 0 <= size <= self._blob_max_bytes:
            self._counters.blob_refused += 1
            raise BlobRefused(
                f"blob {blob[:12]} has {size} bytes, at most {self._blob_max_bytes} are taken"
            )
        turn = self._busy.setdefault(blob, _Turn())
        turn.users += 1
        try:
            async with turn.lock:
                await self._fetch_once(blob, size, holders)
        finally:
            turn.users -= 1
            if not turn.users:
                del self._busy[blob]

    async def _fetch_once(self, blob: str, size: int, holders: Sequence[Holder]) -> None:
        if await self._store.size(blob) is not None:
            return
        failure = BlobError(f"blob {blob[:12]}: nobody to fetch it from")
        for holder in holders:
            try:
                # A part may hold what another holder got wrong: from the start, then.
                if await self._store.part_size(blob) and await self._complete(holder, blob, size):
                    return
                if await self._complete(holder, blob, size):
                    return
                failure = BlobRefused(f"blob {blob[:12]}: the content has another hash")
            except BlobRefused as error:
                self._counters.blob_refused += 1
                await self._store.discard_part(blob)
                failure = error
            except (NotSent, OutcomeUnknown, RemoteError) as error:
                failure = BlobError(f"blob {blob[:12]}: {error}")
        raise failure

    async def _complete(self, holder: Holder, blob: str, size: int) -> bool:
        """Fetches what is missing; False, without the part, if it was not the content."""
        if await self._fetch_from(holder, blob, size) == blob:
            await self._store.commit(blob)
            return True
        self._counters.blob_refused += 1
        await self._store.discard_part(blob)
        return False

    async def _fetch_from(self, holder: Holder, blob: str, size: int) -> str:
        """Appends the missing chunks to the part; the hash of the whole."""
        digest, offset = await self._resume(blob, size)
        asked, requests = offset, deque[_Request]()
        try:
            while offset < size:
                while asked < size and len(requests) < IN_FLIGHT_MAX:
                    request = _Request(asked, min(CHUNK_BYTES, size - asked))
                    name = f"blob {blob[:12]} from {asked}"
                    work = self._chunk(holder, blob, size, request)
                    request.token = self._tasks.start(name, work, group=TASK_GROUP)
                    requests.append(request)
                    asked += request.length
                data = await self._arrived(requests[0])
                requests.popleft()
                digest.update(data)
                await self._store.append_part(blob, data)
                offset += len(data)
        finally:
            for request in requests:
                if request.token is not None:
                    self._tasks.cancel(request.token)
            for request in requests:
                if request.token is not None:
                    await self._tasks.stopped(request.token)
        return digest.hexdigest()

    async def _arrived(self, request: _Request) -> bytes:
        if request.token is not None:
            await self._tasks.stopped(request.token)
        if isinstance(request.outcome, bytes):
            return request.outcome
        raise request.outcome or NotSent("this node stops")

    async def _chunk(self, holder: Holder, blob: str, size: int, request: _Request) -> None:
        """What came of it goes into the request: a failed chunk is no failed task."""
        ask = BlobFetch(blob, request.offset, request.length)
        try:
            async with self._slots:
                answer = await holder.request(ask, self._chunk_timeout_s)
        except WireError as error:
            request.outcome = error
            return
        wanted = (blob, request.offset)
        if not isinstance(answer, BlobChunk) or (answer.blob, answer.offset) != wanted:
            request.outcome = BlobRefused(f"blob {blob[:12]}: another chunk than asked for")
        elif answer.size != size or len(answer.data) != request.length:
            request.outcome = BlobRefused(f"blob {blob[:12]}: it has not the announced size")
        else:
            request.outcome = answer.data

    async def _resume(self, blob: str, size: int) -> tuple[Any, int]:
        """The hash of what is there already, and where to go on."""
        digest = hashlib.sha256()
        held = await self._store.part_size(blob)
        if held > size:
            await self._store.discard_part(blob)
            return digest, 0
        for offset in range(0, held, CHUNK_BYTES):
            length = min(CHUNK_BYTES, held - offset)
            digest.update(await self._store.read_part(blob, offset, length))
        return digest, held
