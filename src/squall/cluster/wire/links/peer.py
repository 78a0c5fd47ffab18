"""The dialling side: two links to one address, dialled again whenever they break.

The control link is kept up from `start` on; the bulk link is dialled at its first use. The
size class of a message decides which link carries it. Redials back off (`WireLimits.redial`).
When a dial fails, queued messages fail with `NotSent`: the caller knows best whether to ask
another peer.

An address may be a name ("dns:", "srv:") of one node, whose addresses are tried in turn. A name of
several nodes is first taken apart by `NamedAddresses`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from squall.cluster.wire.catalogue import LIGHT_MAX_BYTES, SizeClass
from squall.cluster.wire.errors import WRONG_SECRET, HandshakeFailed, UnknownType, WireError
from squall.cluster.wire.links.channel import Channel
from squall.cluster.wire.links.dispatch import TASK_GROUP
from squall.cluster.wire.links.handshake import DiallerHandshake, Session
from squall.cluster.wire.links.link import Link
from squall.cluster.wire.links.switchboard import Switchboard
from squall.cluster.wire.negotiation import LinkKind
from squall.cluster.wire.roles import Role
from squall.runtime.addresses import is_name, shown_address
from squall.runtime.backoff import Retries
from squall.runtime.interfaces import Address, BootId, NodeId, NotResolved
from squall.runtime.tasks import TaskToken

DRAIN_POLL_S = 0.01


def _ignore(*_: object) -> None:
    pass


class Peer:
    """The links to the listener at `address`, which must have the role `expects` and, where it is
    known, the id `node`."""

    def __init__(
        self,
        board: Switchboard,
        address: Address,
        *,
        expects: Role = Role.NODE,
        node: NodeId | None = None,
        on_connected: Callable[[Session], None] = _ignore,
        on_disconnected: Callable[[LinkKind, Exception | None], None] = _ignore,
    ) -> None:
        self.address = address
        # The one that the control link was dialled with last, if `address` is a name.
        self.dialled = address
        # The process that the last control link led to.
        self.reached: BootId | None = None
        self._board = board
        self._diallers = tuple(
            _LinkDialler(board, self, kind, expects, node, on_connected, on_disconnected)
            for kind in LinkKind
        )

    @property
    def control(self) -> Channel:
        return self._diallers[LinkKind.CONTROL].channel

    @property
    def bulk(self) -> Channel:
        return self._diallers[LinkKind.BULK].channel

    @property
    def last_error(self) -> Exception | None:
        """The error of the latest dial or loss; None while the links are up."""
        return self._diallers[LinkKind.CONTROL].error or self._diallers[LinkKind.BULK].error

    def start(self) -> None:
        for dialler in self._diallers:
            dialler.start()

    def send(self, message: msgspec.Struct) -> None:
        self.channel_of(message).send(message)

    def request(self, message: msgspec.Struct, timeout_s: float) -> Coroutine[Any, Any, Any]:
        """Await it; see `Channel.request`. A light request takes the control link, where it
        leaves in one send with other messages of its turn. The bulk link is dialled all the
        same, so that the other side can send something large over it."""
        row = self._board.catalogue.by_struct.get(type(message))
        if row is None or not row.light or self.control.link is None:
            return self.channel_of(message).request(message, timeout_s)
        row, body = self._board.catalogue.encode(message)
        if len(body) > LIGHT_MAX_BYTES:
            return self.bulk.request_body(row, body, timeout_s)
        self.bulk.wanted.set()
        return self.control.request_body(row, body, timeout_s)

    def channel_of(self, message: msgspec.Struct) -> Channel:
        row = self._board.catalogue.by_struct.get(type(message))
        if row is None:
            raise UnknownType(f"{type(message).__name__} is not in the message catalogue")
        return self.bulk if row.size is SizeClass.BULK else self.control

    async def connected(self, timeout_s: float) -> Session:
        """Waits for the control link; raises `HandshakeFailed` with the last error as its cause."""
        dialler = self._diallers[LinkKind.CONTROL]
        try:
            async with asyncio.timeout(timeout_s):
                await dialler.up.wait()
        except TimeoutError:
            why = dialler.error or TimeoutError("no answer")
            code = why.code if isinstance(why, HandshakeFailed) else ""
            # A name that has no address is part of its error.
            where = "" if isinstance(why, NotResolved) else f"{shown_address(self.address)}: "
            raise HandshakeFailed(f"{where}{why}", code=code) from why
        session = self.control.session
        if session is None:
            raise HandshakeFailed(WRONG_SECRET)
        return session

    async def close(self, drain_s: float = 0.0) -> None:
        """Waits up to `drain_s` for queued messages and answers, then closes both links."""
        clock = self._board.runtime.clock
        until = clock.now() + drain_s
        channels = (self.control, self.bulk)
        while any(c.link is not None and (c.waiting or c.pending) for c in channels):
            if clock.now() >= until:
                break
            await clock.sleep(DRAIN_POLL_S)
        for dialler in self._diallers:
            await dialler.stop()


class _LinkDialler:
    """Keeps one of the two links: its channel, and the task that dials again."""

    def __init__(
        self,
        board: Switchboard,
        peer: Peer,
        kind: LinkKind,
        expects: Role,
        node: NodeId | None,
        on_connected: Callable[[Session], None],
        on_disconnected: Callable[[LinkKind, Exception | None], None],
    ) -> None:
        self.channel = Channel(board, on_established=self._established, on_lost=self._lost)
        self.up = asyncio.Event()
        self.error: Exception | None = None
        self._board = board
        self._peer = peer
        self._kind = kind
        self._expects = expects
        self._node = node
        self._on_connected = on_connected
        self._on_disconnected = on_disconnected
        self._task: TaskToken | None = None
        self._over: asyncio.Future[None] | None = None
        self._redials = Retries(board.limits.redial, board.runtime.random.uniform)
        # The addresses of a name that are not tried yet.
        self._untried: list[Address] = []

    def start(self) -> None:
        if self._task is None:
            name = f"{self._kind.name.lower()} link to {shown_address(self._peer.address)}"
            self._task = self._board.tasks.start(name, self._keep(), group=TASK_GROUP)

    async def stop(self) -> None:
        self.channel.close("this peer was closed")
        task, self._task = self._task, None
        if task is not None:
            self._board.tasks.cancel(task)
            await self._board.tasks.stopped(task)

    async def _keep(self) -> None:
        while True:
            if self._kind is LinkKind.BULK:
                await self.channel.wanted.wait()
            if self._is_superseded():
                # Both would replace each other's link for ever.
                self.error = WireError("there is a link to the same process over another address")
            else:
                await self._attempt()
            self.channel.wanted.clear()
            self.channel.abandon(self._no_link())
            await self._board.runtime.clock.sleep(self._redials.next_delay_s() or 0.0)

    def _no_link(self) -> str:
        # The error of a name that has no address says all.
        if isinstance(self.error, NotResolved):
            return str(self.error)
        return f"no link to {shown_address(self._peer.address)}: {self.error or 'closed'}"

    def _is_superseded(self) -> bool:
        """Whether another peer of this process has a link to the one that this one led to. The
        control links decide for both: a peer with the control link and another one with the bulk
        link could not ask for anything large."""
        if self._peer.reached is None:
            return False
        newest = self._board.newest.get(self._peer.reached)
        return newest is not None and newest is not self._peer.control

    async def _address(self) -> Address:
        """The address to dial. Of a name: the next one; the bulk link goes where the control link
        is."""
        given = self._peer.address
        if not is_name(given):
            return given
        if self._kind is LinkKind.BULK and not is_name(self._peer.dialled):
            return self._peer.dialled
        if not self._untried:
            self._untried = await self._board.names.addresses(given)
        found = self._untried.pop(0)
        if not self._untried:
            # The last one: if it fails too, they are looked up again.
            self._board.names.failed(given)
        if self._kind is LinkKind.CONTROL:
            self._peer.dialled = found
        return found

    async def _attempt(self) -> None:
        """One link, from the dial to its end."""
        board = self._board
        handshake = DiallerHandshake(
            board.keyring, board.profile, self._kind, expects=self._expects, node=self._node
        )
        link = Link(
            handshake,
            self.channel,
            clock=board.runtime.clock,
            limits=board.limits,
            counters=board.counters,
            keepalive=board.keepalive,
            budget=board.budget,
            claims=board.claims,
        )
        over = self._over = asyncio.get_running_loop().create_future()
        try:
            await board.runtime.network.dial(
                await self._address(),
                link,
                timeout_s=board.limits.dial_timeout_s,
                tls=board.tls.dial if board.tls is not None else None,
            )
            await over
        except OSError as error:
            # Refused, unreachable, timed out: normal while a peer restarts.
            self.error = error
        finally:
            # A link that was closed in order still sends its queue.
            if not link.over:
                link.abort()

    def _established(self, channel: Channel) -> None:
        self._redials.succeeded()
        self.error = None
        self.up.set()
        self._untried = []
        session = channel.session
        if session is not None:
            if self._kind is LinkKind.CONTROL:
                self._peer.reached = session.peer.boot
                self._board.newest[session.peer.boot] = channel
            self._on_connected(session)

    def _lost(self, channel: Channel, error: Exception | None) -> None:
        was_up = self.up.is_set()
        self.up.clear()
        self.error = error
        reached, newest = self._peer.reached, self._board.newest
        if reached is not None and newest.get(reached) is channel:
            del newest[reached]
        if self._over is not None and not self._over.done():
            self._over.set_result(None)
        if was_up:
            self._on_disconnected(self._kind, error)
