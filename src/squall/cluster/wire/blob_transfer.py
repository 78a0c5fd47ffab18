"""The one way in which a blob travels: announced by hash and size, pulled in chunks.

Managers, workers and clients all fetch like this. The receiver asks for chunk after chunk,
with at most eight requests in flight, and hashes each chunk as it arrives, so that the cost
is linear in the size. A transfer that broke goes on where it ended, from the same or another
holder. Content is stored only when its SHA-256 is the announced one; anything else is thrown
away, counted, and the next holder is asked. A fetcher never keeps more than it asked for.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections import deque
from collections.abc import Coroutine, Sequence
from typing import Any, Protocol

from squall.cluster.wire.counters import WireCounters
from squall.cluster.wire.errors import (
    BlobError,
    BlobRefused,
    NotSent,
    OutcomeUnknown,
    RemoteError,
    WireError,
)
from squall.cluster.wire.links.dispatch import TASK_GROUP, Handlers, Incoming
from squall.cluster.wire.messages import BlobChunk, BlobFetch, ErrorCode
from squall.runtime.tasks import TaskRunner, TaskToken

CHUNK_BYTES = 256 * 1024
IN_FLIGHT_MAX = 8
BLOB_MAX_BYTES = 1024 * 1024 * 1024
CHUNK_TIMEOUT_S = 30.0
PARTS_MAX_BYTES = 256 * 1024 * 1024
"""Bound on blobs that are being fetched and on parts that broken transfers left behind."""

_HASH = re.compile(r"[0-9a-f]{64}")


class BlobSource(Protocol):
    """Where blobs are read from. Calls may raise `OSError`."""

    async def size(self, blob: str) -> int | None:
        """The size of a blob on this node; None if the node does not have it."""
        ...

    async def read(self, blob: str, offset: int, length: int) -> bytes:
        """A piece of a blob on this node. Its hash is not checked: the receiver does that."""
        ...


class BlobTarget(Protocol):
    """Where fetched blobs go. Calls may raise `OSError`."""

    def has(self, blob: Any, /) -> Coroutine[Any, Any, bool]:
        """Whether this node has the blob; asks no other node."""
        ...

    async def store(self, blob: str, content: bytes) -> None:
        """Stores content whose hash was checked; it is durable when this returns."""
        ...


class Holder(Protocol):
    """A peer that can be asked for chunks: its bulk channel, or the peer itself."""

    def request(self, message: Any, timeout_s: float) -> Coroutine[Any, Any, Any]: ...


def blob_hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def serve_blobs(handlers: Handlers, source: BlobSource, own: BlobSource | None = None) -> None:
    """Answers fetches from `source`, or only from this node's own blobs (`own`) if the request asks
    for no more."""

    async def fetch(message: BlobFetch, incoming: Incoming) -> BlobChunk:
        return await chunk_of(message, own or source if message.own else source)

    handlers.on(BlobFetch, fetch)


async def chunk_of(ask: BlobFetch, source: BlobSource) -> BlobChunk:
    """Raises RemoteError if this node cannot provide it."""
    size = await source.size(ask.blob) if _HASH.fullmatch(ask.blob) else None
    if size is None:
        raise RemoteError(ErrorCode.NOT_FOUND, "this blob is not held here")
    if not (0 <= ask.offset <= size and 0 < ask.length <= CHUNK_BYTES):
        raise RemoteError(ErrorCode.BAD_MESSAGE, "no such part of the blob")
    length = min(ask.length, size - ask.offset)
    try:
        data = await source.read(ask.blob, ask.offset, length) if length else b""
    except FileNotFoundError:
        # Deleted since its size was read.
        raise RemoteError(ErrorCode.NOT_FOUND, "this blob is not held here") from None
    return BlobChunk(ask.blob, ask.offset, size, data)


class _Part:
    """The beginning of a blob, and the fetches that want it. It outlives a broken transfer,
    so that the next one goes on behind it."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.users = 0
        self.content = bytearray()
        self.hash = hashlib.sha256()

    def append(self, data: bytes) -> None:
        self.content += data
        self.hash.update(data)

    def clear(self) -> None:
        self.content = bytearray()
        self.hash = hashlib.sha256()


class _Request:
    """One requested chunk and its outcome."""

    __slots__ = ("length", "offset", "outcome", "token")

    def __init__(self, offset: int, length: int) -> None:
        self.offset = offset
        self.length = length
        self.token: TaskToken | None = None
        self.outcome: bytes | WireError | None = None


class BlobFetcher:
    """Fetches blobs into one target; all its transfers share the eight requests."""

    def __init__(
        self,
        target: BlobTarget,
        counters: WireCounters,
        tasks: TaskRunner,
        *,
        blob_max_bytes: int = BLOB_MAX_BYTES,
        chunk_timeout_s: float = CHUNK_TIMEOUT_S,
        own: bool = False,
    ) -> None:
        """`own`: holders answer only from what they hold themselves."""
        # Bytes fetched since the start: a measure of progress.
        self.arrived = 0
        self._target = target
        self._counters = counters
        self._tasks = tasks
        self._blob_max_bytes = blob_max_bytes
        self._chunk_timeout_s = chunk_timeout_s
        self._own = own
        self._slots = asyncio.Semaphore(IN_FLIGHT_MAX)
        # By blob, in the order in which they were begun.
        self._parts: dict[str, _Part] = {}

    async def fetch(self, blob: str, size: int, holders: Sequence[Holder]) -> None:
        """Returns when the blob is in the target. `BlobRefused` if no holder's content was
        the announced one, `BlobError` if none could be reached; a part may then remain.
        `OSError` if it cannot be stored."""
        if not _HASH.fullmatch(blob):
            raise BlobRefused("a blob is named by its SHA-256 in lower-case hexadecimal")
        if not 0 <= size <= self._blob_max_bytes:
            self._counters.blob_refused += 1
            raise BlobRefused(
                f"blob {blob[:12]} has {size} bytes, at most {self._blob_max_bytes} are taken"
            )
        part = self._parts.setdefault(blob, _Part())
        part.users += 1
        try:
            async with part.lock:
                await self._fetch_once(blob, size, holders, part)
        finally:
            part.users -= 1
            if not part.users and not part.content:
                del self._parts[blob]

    async def size(self, blob: str, holder: Holder) -> int:
        """The size of a blob, as a holder reports it. Raises WireError."""
        answer = await holder.request(BlobFetch(blob, 0, 1, self._own), self._chunk_timeout_s)
        if not isinstance(answer, BlobChunk) or answer.blob != blob:
            raise BlobRefused(f"blob {blob[:12]}: another chunk than asked for")
        return answer.size

    async def _fetch_once(
        self, blob: str, size: int, holders: Sequence[Holder], part: _Part
    ) -> None:
        if await self._target.has(blob):
            part.clear()
            return
        failure = BlobError(f"blob {blob[:12]}: no holder to fetch it from")
        for holder in holders:
            try:
                # The part may contain wrong bytes of another holder, so start again from the
                # beginning.
                if part.content and await self._complete(holder, blob, size, part):
                    return
                if await self._complete(holder, blob, size, part):
                    return
                failure = BlobRefused(f"blob {blob[:12]}: the content has another hash")
            except BlobRefused as error:
                self._counters.blob_refused += 1
                part.clear()
                failure = error
            except (NotSent, OutcomeUnknown, RemoteError) as error:
                failure = BlobError(f"blob {blob[:12]}: {error}")
        raise failure

    async def _complete(self, holder: Holder, blob: str, size: int, part: _Part) -> bool:
        """Fetches the missing chunks; drops the part and returns False if its hash is wrong."""
        await self._fetch_from(holder, blob, size, part)
        if part.hash.hexdigest() == blob:
            content = bytes(part.content)
            part.clear()
            await self._target.store(blob, content)
            return True
        self._counters.blob_refused += 1
        part.clear()
        return False

    async def _fetch_from(self, holder: Holder, blob: str, size: int, part: _Part) -> None:
        """Appends the missing chunks to the part."""
        if len(part.content) > size:
            part.clear()
        asked, requests = len(part.content), deque[_Request]()
        try:
            while len(part.content) < size:
                while asked < size and len(requests) < IN_FLIGHT_MAX:
                    request = _Request(asked, min(CHUNK_BYTES, size - asked))
                    name = f"blob {blob[:12]} from {asked}"
                    work = self._chunk(holder, blob, size, request)
                    request.token = self._tasks.start(name, work, group=TASK_GROUP)
                    requests.append(request)
                    asked += request.length
                data = await self._arrived(requests[0])
                requests.popleft()
                self._make_room(len(data))
                part.append(data)
                self.arrived += len(data)
        finally:
            for request in requests:
                if request.token is not None:
                    self._tasks.cancel(request.token)
            for request in requests:
                if request.token is not None:
                    await self._tasks.stopped(request.token)

    def _make_room(self, size: int) -> None:
        """Drops the parts of broken transfers, oldest first, until `size` more bytes fit."""
        held = size + sum(len(part.content) for part in self._parts.values())
        for blob in [blob for blob, part in self._parts.items() if not part.users]:
            if held <= PARTS_MAX_BYTES:
                return
            held -= len(self._parts.pop(blob).content)
        if held > PARTS_MAX_BYTES:
            raise OSError("too much is being fetched at once")

    async def _arrived(self, request: _Request) -> bytes:
        if request.token is not None:
            await self._tasks.stopped(request.token)
        if isinstance(request.outcome, bytes):
            return request.outcome
        raise request.outcome or NotSent("this node stops")

    async def _chunk(self, holder: Holder, blob: str, size: int, request: _Request) -> None:
        """Stores the outcome in the request: a failed chunk must not fail the task."""
        ask = BlobFetch(blob, request.offset, request.length, self._own)
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
            request.outcome = BlobRefused(f"blob {blob[:12]}: its size is not the announced one")
        else:
            request.outcome = answer.data
