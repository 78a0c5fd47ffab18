"""Ports, requests and answers of the group scenario, and its transport of datagrams."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from squall.runtime.interfaces import Address, DatagramSocket, NodeId, Runtime

REPLICA_PORT = 7300
MEMBER_PORT = 7301
CLIENT_PORT = 7302
WORKER_PORT = 7303
SESSION_S = 0.25
HEARD_S = 1.0
LOST_FACTOR = 1.1
LOST_MARGIN_S = 0.2


class Ask(msgspec.Struct, frozen=True, tag="ask"):
    """A client's operation. Without a value: a strong read."""

    client: str
    seq: int
    key: str
    value: str | None = None
    expected: str | None = None
    blob: bytes = b""
    junk: bool = False


class Answer(msgspec.Struct, frozen=True, tag="answer"):
    """`how`: done, refused (not in the log, never will be), unknown."""

    seq: int
    how: str
    op: int = 0
    result: str = ""


class Order(msgspec.Struct, frozen=True, tag="order"):
    """What an operator asks: status, members, hand_over, activate."""

    number: int
    what: str
    members: tuple[tuple[str, str], ...] = ()
    version: int = 0


class Report(msgspec.Struct, frozen=True, tag="report"):
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
    """A worker's session request, to all members."""

    worker: str
    boot: str
    request: int


class Grant(msgspec.Struct, frozen=True, tag="grant"):
    """Run this attempt until `lease_s` after you sent that request."""

    epoch: int
    view: int
    boot: str
    request: int
    attempt: int
    lease_s: float


ToMember = Ask | Order | Renew
ToClient = Answer | Report


class Datagrams:
    """The replica's transport: best effort, as the wire is."""

    def __init__(self) -> None:
        self._socket: DatagramSocket
        self._receive: Callable[[NodeId, bytes], None] | None = None

    async def bind(self, runtime: Runtime) -> None:
        self._socket = await runtime.network.bind_datagrams(("", REPLICA_PORT), self)

    def listen(self, receive: Callable[[NodeId, bytes], None]) -> None:
        self._receive = receive

    def send(self, to: NodeId, data: bytes) -> None:
        self._socket.send(data, (to, REPLICA_PORT))

    def on_datagram(self, data: bytes, sender: Address) -> None:
        if self._receive is not None:
            self._receive(NodeId(sender[0]), data)
