"""Ports, requests and answers of the group scenario, and its datagram transport."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from squall.cluster.ledger.group_member.group_ledger import GroupLedger
from squall.cluster.wire.blob_transfer import BlobSource, Holder, chunk_of
from squall.cluster.wire.errors import OutcomeUnknown, RemoteError
from squall.cluster.wire.messages import BlobChunk, BlobFetch, ErrorCode
from squall.runtime.interfaces import Address, DatagramSocket, NodeId, Runtime
from squall.runtime.tasks import TaskRunner

REPLICA_PORT = 7300
MEMBER_PORT = 7301
CLIENT_PORT = 7302
WORKER_PORT = 7303
LEDGER, FETCH, CHUNK = b"l", b"f", b"c"
"""First byte of a datagram between members: a ledger message, a fetch, or a chunk of a blob."""
PIECE_BYTES = 48_000
RESEND_S = 0.1
"""Resend interval, because a request or its answer may be lost."""
SESSION_S = 0.25
SEEN_WITHIN_S = 1.0
LOST_FACTOR = 1.1
LOST_MARGIN_S = 0.2


class Ask(msgspec.Struct, frozen=True, tag="ask"):
    """A client's operation; a strong read if it has no value."""

    client: str
    seq: int
    key: str
    value: str | None = None
    expected: str | None = None
    blob: bytes = b""
    junk: bool = False
    burst: tuple[int, int] = (1, 0)
    """How many junk commands the member submits in one turn of its loop, and their size."""


class Answer(msgspec.Struct, frozen=True, tag="answer"):
    """A member's answer. `how` is done, refused (it will never be in the log) or unknown."""

    seq: int
    how: str
    op: int = 0
    result: str = ""


class Order(msgspec.Struct, frozen=True, tag="order"):
    """An operator's request: status, members, hand_over or activate."""

    number: int
    what: str
    members: tuple[tuple[str, str], ...] = ()
    version: int = 0


class Report(msgspec.Struct, frozen=True, tag="report"):
    """A member's answer to an operator: its status and members."""

    number: int
    node: str
    storage: str
    is_primary: bool
    status: str
    epoch: int
    view: int
    members: tuple[tuple[str, str], ...]
    applied: int
    text: str = ""


class Renew(msgspec.Struct, frozen=True, tag="renew"):
    """A worker's session request, sent to all members."""

    worker: str
    boot: str
    request: int


class Grant(msgspec.Struct, frozen=True, tag="grant"):
    """Allows a worker to run the attempt until `lease_s` after it sent the request (R5)."""

    epoch: int
    view: int
    boot: str
    request: int
    attempt: int
    lease_s: float


ToMember = Ask | Order | Renew
ToClient = Answer | Report
_fetch = msgspec.msgpack.Decoder(tuple[int, BlobFetch])
_chunk = msgspec.msgpack.Decoder(tuple[int, BlobChunk | None])


class Datagrams:
    """The replica's transport, best effort like the wire. It carries messages of the ledger,
    requests for chunks of blobs, and chunks; the first byte says which."""

    def __init__(self, tasks: TaskRunner) -> None:
        self._tasks = tasks
        self._socket: DatagramSocket
        self._receive: Callable[[NodeId, bytes], None] | None = None
        self._blobs: BlobSource | None = None
        self._number = 0
        self._asked: dict[int, asyncio.Future[BlobChunk | None]] = {}

    async def bind(self, runtime: Runtime) -> None:
        self._socket = await runtime.network.bind_datagrams(("", REPLICA_PORT), self)

    def serve(self, ledger: GroupLedger) -> None:
        self._blobs = ledger.blobs.own

    def holder(self, node: NodeId) -> Holder:
        return BlobsOf(self, node)

    async def request(self, to: NodeId, ask: BlobFetch, timeout_s: float) -> BlobChunk:
        """Fetches a chunk in pieces that fit a datagram."""
        data = b""
        while True:
            length = min(ask.length - len(data), PIECE_BYTES)
            piece = msgspec.structs.replace(ask, offset=ask.offset + len(data), length=length)
            chunk = await self._piece(to, piece, timeout_s)
            data += chunk.data
            if len(data) >= min(ask.length, chunk.size - ask.offset) or not chunk.data:
                return msgspec.structs.replace(chunk, offset=ask.offset, data=data)

    async def _piece(self, to: NodeId, ask: BlobFetch, timeout_s: float) -> BlobChunk:
        self._number += 1
        number = self._number
        answered = self._asked[number] = asyncio.get_running_loop().create_future()
        question = FETCH + msgspec.msgpack.encode((number, ask))
        try:
            async with asyncio.timeout(timeout_s):
                while not answered.done():
                    self._socket.send(question, (to, REPLICA_PORT))
                    await asyncio.wait([answered], timeout=RESEND_S)
        except TimeoutError:
            raise OutcomeUnknown("no answer") from None
        finally:
            del self._asked[number]
        chunk = answered.result()
        if chunk is None:
            raise RemoteError(ErrorCode.NOT_FOUND)
        return chunk

    async def _answer(self, sender: NodeId, number: int, ask: BlobFetch) -> None:
        chunk = None
        if self._blobs is not None:
            with contextlib.suppress(RemoteError, OSError):
                chunk = await chunk_of(ask, self._blobs)
        answer = CHUNK + msgspec.msgpack.encode((number, chunk))
        self._socket.send(answer, (sender, REPLICA_PORT))

    def listen(self, receive: Callable[[NodeId, bytes], None]) -> None:
        self._receive = receive

    def send(self, to: NodeId, data: bytes) -> None:
        self._socket.send(LEDGER + data, (to, REPLICA_PORT))

    def on_datagram(self, data: bytes, sender: Address) -> None:
        kind, data, node = data[:1], data[1:], NodeId(sender[0])
        if kind == FETCH:
            number, ask = _fetch.decode(data)
            self._tasks.start("blob chunk", self._answer(node, number, ask))
        elif kind == CHUNK:
            number, chunk = _chunk.decode(data)
            asked = self._asked.get(number)
            if asked is not None and not asked.done():
                asked.set_result(chunk)
        elif self._receive is not None:
            self._receive(node, data)


class BlobsOf:
    """Reads the blobs of another member."""

    def __init__(self, transport: Datagrams, node: NodeId) -> None:
        self._transport = transport
        self._node = node

    def request(self, message: BlobFetch, timeout_s: float) -> Coroutine[Any, Any, BlobChunk]:
        return self._transport.request(self._node, message, timeout_s)
