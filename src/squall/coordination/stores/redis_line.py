"""One connection to Redis that all commands of a process share.

Commands that are asked for in one turn of the loop share packets, and answers come back in the
order of the commands: a thousand members or workers cost one connection and few system calls.
A packet leaves as soon as it has a few commands, or when the server has nothing else to do: were
all of a turn to leave at its end, server and process would take turns in waiting for each other.
redis-py reads the address and its TLS settings, hiredis reads the answers.

A line that breaks, or leaves a command without an answer for too long, fails everything that
is under way on it; the next command opens a new one. A caller that gave up after a while makes
the next one use a new line as well, while the old one may still answer the others; it is closed
with the last answer. A caller that is cancelled disturbs nobody.

Large commands and those that block must have a line of their own: what is behind them waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections import deque
from dataclasses import dataclass, field
from typing import Any, cast

from squall.coordination.stores.extras import load_extra
from squall.runtime.interfaces import Clock

SUSPICIOUS_S = 1.0
"""A caller that gives up after so long does not trust the line any more."""
TOGETHER = 2
"""Commands that leave in one packet while others are under way."""
_MORE = object()


@dataclass(frozen=True)
class Address:
    """Of a server; a `path` is a socket of this machine. Nothing may show the password."""

    host: str
    port: int
    path: str | None
    tls: ssl.SSLContext | None
    db: int
    username: str = field(repr=False)
    password: str = field(repr=False)

    @classmethod
    def of(cls, url: str) -> Address:
        """`ValueError` if it is none."""
        redis = load_extra("redis.asyncio", "redis")
        try:
            found: Any = redis.Redis.from_url(url).connection_pool.make_connection()
            context = getattr(found, "ssl_context", None)
            tls = None if context is None else context.get()
        except (redis.RedisError, TypeError, OSError) as error:
            # An option that it does not know, or a certificate that cannot be read.
            raise ValueError(str(error)) from None
        host: str = getattr(found, "host", "")
        host.encode("idna")
        return cls(
            host=host,
            port=int(getattr(found, "port", 0)),
            path=getattr(found, "path", None),
            tls=tls,
            db=int(found.db or 0),
            username=found.username or "",
            password=found.password or "",
        )


class LineLost(Exception):
    """The connection is gone, or never was: whether a command was carried out is not known."""


class Refused(Exception):
    """An answer of the server that is an error."""

    @property
    def code(self) -> str:
        """Its first word, as `NOSCRIPT`."""
        return str(self).partition(" ")[0]


class Line:
    """Opens wires when they are needed."""

    def __init__(self, address: Address, clock: Clock, answer_s: float) -> None:
        self._hiredis = load_extra("hiredis", "redis")
        self._address = address
        self._clock = clock
        self._answer_s = answer_s
        self._wire: Wire | None = None
        self._open_wires: set[Wire] = set()
        self._opening = asyncio.Lock()
        self._is_closed = False

    def packed(self, *arguments: str | int | bytes) -> bytes:
        """A command as the server reads it."""
        return self._hiredis.pack_command(arguments)

    async def call(self, packed: bytes) -> Any:
        """The answer; `Refused` or `LineLost`."""
        wire = self._wire
        if wire is None or not wire.is_open:
            wire = await self._open()
        begun = self._clock.now()
        answer = wire.send(packed, begun)
        try:
            return await answer
        except asyncio.CancelledError:
            if self._clock.now() - begun >= SUSPICIOUS_S and self._wire is wire:
                self._wire = None
                wire.retire()
            raise

    def close(self) -> None:
        """Everything that is under way fails, and so does what is asked later."""
        self._is_closed = True
        self._wire = None
        for wire in list(self._open_wires):
            wire.hang_up("closed")

    async def _open(self) -> Wire:
        async with self._opening:
            if self._wire is not None and self._wire.is_open:
                return self._wire
            if self._is_closed:
                raise LineLost("closed")
            try:
                async with asyncio.timeout(self._answer_s):
                    wire = await self._connected()
            except TimeoutError:
                raise LineLost(f"no connection within {self._answer_s:g} s") from None
            except OSError as error:
                raise LineLost(str(error) or type(error).__name__) from error
            self._wire = wire
            return wire

    async def _connected(self) -> Wire:
        address, loop = self._address, asyncio.get_running_loop()
        if address.path is not None:
            _, wire = await loop.create_unix_connection(self._make_wire, address.path)
        else:
            place = (address.host, address.port)
            _, wire = await loop.create_connection(self._make_wire, *place, ssl=address.tls)
        try:
            if self._is_closed:
                raise LineLost("closed")
            await self._greet(wire)
        except BaseException:
            wire.hang_up("not opened")
            raise
        return wire

    async def _greet(self, wire: Wire) -> None:
        address, now = self._address, self._clock.now()
        if address.password:
            user = (address.username,) if address.username else ()
            await wire.send(self.packed("AUTH", *user, address.password), now)
        if address.db:
            await wire.send(self.packed("SELECT", address.db), now)

    def _make_wire(self) -> Wire:
        reader = self._hiredis.Reader(replyError=Refused, notEnoughData=_MORE)
        return Wire(reader, self._clock, self._answer_s, self._open_wires)


class Wire(asyncio.Protocol):
    """One connection. It must never give an answer to a command that did not ask for it."""

    def __init__(self, reader: Any, clock: Clock, answer_s: float, among: set[Wire]) -> None:
        self.is_open = True
        self._reader = reader
        self._clock = clock
        self._answer_s = answer_s
        self._among = among
        """Those that are connected. One whose connection fails before is told of no end."""
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._outbox: list[bytes] = []
        self._under_way: deque[tuple[asyncio.Future[Any], float]] = deque()
        self._watch: asyncio.TimerHandle | None = None
        self._is_retired = False

    def send(self, packed: bytes, now: float) -> asyncio.Future[Any]:
        answer: asyncio.Future[Any] = self._loop.create_future()
        if not self.is_open:
            answer.set_exception(LineLost("the connection was closed"))
            return answer
        self._under_way.append((answer, now))
        self._outbox.append(packed)
        if len(self._under_way) == 1 or len(self._outbox) >= TOGETHER:
            self._flush()
        elif len(self._outbox) == 1:
            self._loop.call_soon(self._flush)
        if self._watch is None:
            self._watch = self._loop.call_later(self._answer_s, self._look)
        return answer

    def retire(self) -> None:
        """Nobody will use it any more: it ends with the last answer."""
        self._is_retired = True
        if not self._under_way:
            self.hang_up("retired")

    def hang_up(self, why: str) -> None:
        if self._transport is not None:
            self._transport.abort()
        self._end(why)

    # What the loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._among.add(self)
        # uvloop would keep what is written until the end of the turn.
        self._transport.set_write_buffer_limits(high=0)

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        while True:
            try:
                reply = self._reader.gets()
            except Exception as error:
                self.hang_up(f"the server does not speak as a Redis does: {error}")
                return
            if reply is _MORE:
                return
            if not self._under_way:
                self.hang_up("an answer came that nobody asked for")
                return
            answer, _ = self._under_way.popleft()
            if not answer.done():
                if isinstance(reply, Refused):
                    answer.set_exception(reply)
                else:
                    answer.set_result(reply)
            if self._is_retired and not self._under_way:
                self.hang_up("retired")
                return

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(str(exc) if exc else "the server closed the connection")

    # Inside.

    def _flush(self) -> None:
        packets, self._outbox = self._outbox, []
        if packets and self._transport is not None:
            with contextlib.suppress(OSError):
                # One that fails is told by `connection_lost`.
                self._transport.write(packets[0] if len(packets) == 1 else b"".join(packets))

    def _look(self) -> None:
        """Once per time limit while something is under way, not once per command."""
        self._watch = None
        if not self._under_way:
            return
        left_s = self._under_way[0][1] + self._answer_s - self._clock.now()
        if left_s <= 0.0:
            self.hang_up(f"no answer within {self._answer_s:g} s")
        else:
            self._watch = self._loop.call_later(left_s, self._look)

    def _end(self, why: str) -> None:
        self.is_open = False
        self._among.discard(self)
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        under_way, self._under_way = self._under_way, deque()
        self._outbox.clear()
        for answer, _ in under_way:
            if not answer.done():
                answer.set_exception(LineLost(why))
