"""The dialling side of a pair: two links to one address, made again whenever they break.

The control link is kept up from `start` on; the bulk link is made at its first use. A
message's size class decides which one carries it. After a failure the next attempt waits
a random part of an exponentially growing time, so that a thousand workers do not return
at once. What waits when an attempt fails is given back as `NotSent`: the caller knows
best whether to ask another peer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from squall.runtime.interfaces import Address, NodeId
from squall.runtime.tasks import TaskToken
from squall.wire.catalogue import LIGHT_MAX_BYTES, SizeClass
from squall.wire.channel import Channel
from squall.wire.dispatch import TASK_GROUP
from squall.wire.errors import WRONG_SECRET, HandshakeFailed, UnknownType
from squall.wire.handshake import DiallerHandshake, Session
from squall.wire.link import Link
from squall.wire.outbox import Pressure
from squall.wire.profile import LinkKind
from squall.wire.roles import Role
from squall.wire.switchboard import Switchboard

BACKOFF_DOUBLINGS_MAX = 16
DRAIN_POLL_S = 0.01


def _nobody(*_: object) -> None:
    pass


class Peer:
    """`expects` is the role of who listens at `address`; `node` its id, where known."""

    def __init__(
        self,
        board: Switchboard,
        address: Address,
        *,
        expects: Role = Role.NODE,
        node: NodeId | None = None,
        on_connected: Callable[[Session], None] = _nobody,
        on_disconnected: Callable[[LinkKind, Exception | None], None] = _nobody,
    ) -> None:
        self.address = address
        self._board = board
        self._keepers = tuple(
            _Keeper(board, self, kind, expects, node, on_connected, on_disconnected)
            for kind in LinkKind
        )

    @property
    def control(self) -> Channel:
        return self._keepers[LinkKind.CONTROL].channel

    @property
    def bulk(self) -> Channel:
        return self._keepers[LinkKind.BULK].channel

    @property
    def last_error(self) -> Exception | None:
        """Of the latest attempt or loss; None while all is well."""
        return self._keepers[LinkKind.CONTROL].error or self._keepers[LinkKind.BULK].error

    def start(self) -> None:
        for keeper in self._keepers:
            keeper.start()

    def send(self, message: msgspec.Struct) -> Pressure:
        return self.channel_of(message).send(message)

    def request(self, message: msgspec.Struct, timeout_s: float) -> Coroutine[Any, Any, Any]:
        """To be awaited; see `Channel.request`. What is light takes the control link, where
        it leaves and arrives together with other requests of its turn; the bulk link is made
        all the same, so that the other side has it when it wants something large."""
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
        """Waits for the control link; `HandshakeFailed` or the last error if it stays away."""
        keeper = self._keepers[LinkKind.CONTROL]
        try:
            async with asyncio.timeout(timeout_s):
                await keeper.up.wait()
        except TimeoutError:
            host, port = self.address
            why = keeper.error or TimeoutError("no answer")
            code = why.code if isinstance(why, HandshakeFailed) else ""
            raise HandshakeFailed(f"{host}:{port}: {why}", code=code) from why
        session = self.control.session
        if session is None:
            raise HandshakeFailed(WRONG_SECRET)
        return session

    async def close(self, drain_s: float = 0.0) -> None:
        """Lets queued messages leave and answers arrive for so long, then ends both links."""
        clock = self._board.runtime.clock
        until = clock.now() + drain_s
        channels = (self.control, self.bulk)
        while any(c.link is not None and (c.waiting or c.pending) for c in channels):
            if clock.now() >= until:
                break
            await clock.sleep(DRAIN_POLL_S)
        for keeper in self._keepers:
            await keeper.stop()


class _Keeper:
    """One of the two links, and the task that makes it again."""

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
        self._failures = 0

    def start(self) -> None:
        if self._task is None:
            host, port = self._peer.address
            name = f"{self._kind.name.lower()} link to {host}:{port}"
            self._task = self._board.tasks.start(name, self._keep(), group=TASK_GROUP)

    async def stop(self) -> None:
        self.channel.close("this peer was closed")
        task, self._task = self._task, None
        if task is not None:
            self._board.tasks.cancel(task)
            await self._board.tasks.stopped(task)

    async def _keep(self) -> None:
        runtime, limits = self._board.runtime, self._board.limits
        while True:
            if self._kind is LinkKind.BULK:
                await self.channel.wanted.wait()
            await self._attempt()
            self.channel.wanted.clear()
            host, port = self._peer.address
            self.channel.abandon(f"no link to {host}:{port}: {self.error or 'closed'}")
            self._failures = min(self._failures + 1, BACKOFF_DOUBLINGS_MAX)
            most_s = min(limits.backoff_cap_s, limits.backoff_base_s * 2.0**self._failures)
            await runtime.clock.sleep(runtime.random.uniform(0.0, most_s))

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
                self._peer.address,
                link,
                timeout_s=board.limits.dial_timeout_s,
                tls=board.dial_tls,
            )
            await over
        except OSError as error:
            # Refused, unreachable, timed out: what a peer that restarts looks like.
            self.error = error
        finally:
            # One that was closed in order still sends what it has.
            if not link.over:
                link.abort()

    def _established(self, channel: Channel) -> None:
        self._failures = 0
        self.error = None
        self.up.set()
        session = channel.session
        if session is not None:
            self._on_connected(session)

    def _lost(self, channel: Channel, error: Exception | None) -> None:
        was_up = self.up.is_set()
        self.up.clear()
        self.error = error
        if self._over is not None and not self._over.done():
            self._over.set_result(None)
        if was_up:
            self._on_disconnected(self._kind, error)
