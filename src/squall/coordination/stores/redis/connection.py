"""One connection to Redis that all commands of a process share.

Commands of one turn of the event loop share packets, and replies come in the order of the commands:
a thousand members or workers cost one connection and few system calls. A packet leaves as soon as
it has `PACKET_COMMANDS` commands, or at once if the server is idle. If all commands of a turn left
at its end, server and process would take turns waiting for each other. redis-py parses the address
and its TLS settings, hiredis parses the replies.

A connection that breaks, or leaves a command without a reply for too long, fails all commands that
await a reply; the next command opens a new connection. If a caller gives up on a slow connection,
the next command opens a new one as well; the old one may still answer the other callers, and is
closed after the last reply. A caller that is cancelled affects no other.

Large commands and blocking commands need a connection of their own: the commands behind them wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import ssl
from collections import deque
from dataclasses import dataclass, field
from typing import Any, cast

from squall.coordination.stores.optional_libraries import load_extra
from squall.runtime.interfaces import Clock
from squall.runtime.real.pem_files import PemError, load_authorities, load_certificate

# A caller that gives up after this long has seen the connection hang: the next command does not use
# it. A caller that was cancelled sooner says nothing about the connection.
DISTRUST_AFTER_S = 1.0
# How many commands leave in one packet while others await their replies. Larger packets would leave
# later, and the server idle until then.
PACKET_COMMANDS = 2
_INCOMPLETE = object()


@dataclass(frozen=True)
class RedisAddress:
    """The address of a server; `path` is a Unix socket. Its text must never show the password."""

    host: str
    port: int
    path: str | None
    tls: ssl.SSLContext | None
    db: int
    username: str = field(repr=False)
    password: str = field(repr=False)

    @classmethod
    def of(cls, url: str) -> RedisAddress:
        """Parses a URL. Raises `ValueError` if it is no address of a Redis."""
        redis = load_extra("redis.asyncio", "redis")
        try:
            found: Any = redis.Redis.from_url(url).connection_pool.make_connection()
            context = getattr(found, "ssl_context", None)
            tls = None if context is None else _tls_context(context)
        except TypeError as error:
            option = re.search(r"keyword argument '(\w+)'", str(error))
            raise ValueError(f"unknown option {option[1]}" if option else str(error)) from None
        except (redis.RedisError, OSError, PemError) as error:
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


def _tls_context(wanted: Any) -> ssl.SSLContext:
    """The context of the options in a URL. The files are loaded here and not by redis-py: its
    errors name no file, and for an encrypted key OpenSSL asks in the terminal."""
    files = wanted.certfile, wanted.keyfile, wanted.ca_certs, wanted.password
    certificate, key, authorities, password = files
    wanted.certfile = wanted.keyfile = wanted.ca_certs = None
    context: ssl.SSLContext = wanted.get()
    if key and not certificate:
        raise PemError(f"{key} is the key of which certificate? name its file (ssl_certfile)")
    if certificate:
        load_certificate(context, certificate, key, password or "")
    if authorities:
        load_authorities(context, authorities)
    return context


class RedisConnectionLost(Exception):
    """The connection broke or was never made: whether a command took effect is unknown."""


class RedisTimeout(RedisConnectionLost):
    """The server left a command, or the opening of a connection, unanswered for the time limit."""


class RedisErrorReply(Exception):
    """An error that the server replied."""

    @property
    def code(self) -> str:
        """Its first word, such as `NOSCRIPT`."""
        return str(self).partition(" ")[0]


class RedisConnection:
    """Sends commands over one socket, and opens a new one when that breaks."""

    def __init__(self, address: RedisAddress, clock: Clock, answer_s: float) -> None:
        self._hiredis = load_extra("hiredis", "redis")
        self._address = address
        self._clock = clock
        self._answer_s = answer_s
        self._protocol: RedisProtocol | None = None
        self._open_protocols: set[RedisProtocol] = set()
        self._opening = asyncio.Lock()
        self._is_closed = False

    def packed(self, *arguments: str | int | bytes) -> bytes:
        """A command in the protocol of Redis."""
        return self._hiredis.pack_command(arguments)

    async def call(self, packed: bytes) -> Any:
        """The reply. Raises `RedisErrorReply` or `RedisConnectionLost`."""
        # Before the connection is opened: one time limit covers the opening and the reply.
        begun = self._clock.now()
        protocol = self._protocol
        if protocol is None or not protocol.is_open:
            protocol = await self._open()
        answer = protocol.send(packed, begun)
        try:
            return await answer
        except asyncio.CancelledError:
            if self._clock.now() - begun >= DISTRUST_AFTER_S and self._protocol is protocol:
                self._protocol = None
                protocol.retire()
            raise

    def close(self) -> None:
        """Closes the connection. Commands that await a reply fail, and so do later ones."""
        self._is_closed = True
        self._protocol = None
        for protocol in list(self._open_protocols):
            protocol.abort("closed")

    async def _open(self) -> RedisProtocol:
        try:
            # The limit includes the wait for the lock: when a server accepts connections and never
            # answers, all callers fail after one limit and not one after another.
            async with asyncio.timeout(self._answer_s), self._opening:
                # Another caller may have opened it while this one waited for the lock.
                if self._protocol is not None and self._protocol.is_open:
                    return self._protocol
                if self._is_closed:
                    raise RedisConnectionLost("closed")
                self._protocol = protocol = await self._connect()
                return protocol
        except TimeoutError:
            raise RedisTimeout(f"no connection within {self._answer_s:g} s") from None
        except OSError as error:
            raise RedisConnectionLost(self._refusal(error)) from error

    async def _connect(self) -> RedisProtocol:
        address, loop = self._address, asyncio.get_running_loop()
        if address.path is not None:
            _, protocol = await loop.create_unix_connection(self._make_protocol, address.path)
        else:
            place = (address.host, address.port)
            _, protocol = await loop.create_connection(self._make_protocol, *place, ssl=address.tls)
        try:
            # `close` did not see a socket that was being opened.
            if self._is_closed:
                raise RedisConnectionLost("closed")
            await self._authenticate(protocol)
        except BaseException:
            protocol.abort("not opened")
            raise
        return protocol

    @staticmethod
    def _refusal(error: OSError) -> str:
        """Why no connection could be opened, in the words of the other clients."""
        match getattr(error, "reason", ""):
            case "CERTIFICATE_VERIFY_FAILED":
                why = getattr(error, "verify_message", "") or str(error)
                hint = "name its authority in the URL: ?ssl_ca_certs=FILE"
                return f"TLS: certificate verify failed: {why}; {hint}"
            case "WRONG_VERSION_NUMBER" | "RECORD_LAYER_FAILURE":
                return "it does not speak TLS; write redis:// for plain connections"
            case _:
                # asyncio puts the address into words of its own.
                number = error.errno or 0
                text = os.strerror(number) if number > 0 else error.strerror
                return (text or str(error) or type(error).__name__).lower()

    async def _authenticate(self, protocol: RedisProtocol) -> None:
        address, now = self._address, self._clock.now()
        if address.password:
            user = (address.username,) if address.username else ()
            await protocol.send(self.packed("AUTH", *user, address.password), now)
        if address.db:
            await protocol.send(self.packed("SELECT", address.db), now)

    def _make_protocol(self) -> RedisProtocol:
        reader = self._hiredis.Reader(replyError=RedisErrorReply, notEnoughData=_INCOMPLETE)
        is_plain = self._address.tls is None and self._address.path is None
        hint = "; if it speaks TLS, write rediss://" if is_plain else ""
        return RedisProtocol(reader, self._clock, self._answer_s, self._open_protocols, hint)


class RedisProtocol(asyncio.Protocol):
    """One socket. It must never give a reply to a command that did not ask for it: replies carry
    no id, so after any doubt about their order the socket is closed."""

    def __init__(
        self,
        reader: Any,
        clock: Clock,
        answer_s: float,
        connected_protocols: set[RedisProtocol],
        hint: str,
    ) -> None:
        self.is_open = True
        self._reader = reader
        self._clock = clock
        self._answer_s = answer_s
        # All connected sockets, for `close`. A socket joins in `connection_made` and not here: one
        # that never connects would never be removed.
        self._connected_protocols = connected_protocols
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._unsent: list[bytes] = []
        self._awaiting_reply: deque[tuple[asyncio.Future[Any], float]] = deque()
        self._timeout_timer: asyncio.TimerHandle | None = None
        self._is_retired = False
        self._has_replied = False
        self._hint = hint

    def send(self, packed: bytes, now: float) -> asyncio.Future[Any]:
        answer: asyncio.Future[Any] = self._loop.create_future()
        if not self.is_open:
            answer.set_exception(RedisConnectionLost("the connection was closed"))
            return answer
        self._awaiting_reply.append((answer, now))
        self._unsent.append(packed)
        if len(self._awaiting_reply) == 1 or len(self._unsent) >= PACKET_COMMANDS:
            self._flush()
        elif len(self._unsent) == 1:
            self._loop.call_soon(self._flush)
        if self._timeout_timer is None:
            left_s = now + self._answer_s - self._clock.now()
            self._timeout_timer = self._loop.call_later(left_s, self._check_timeout)
        return answer

    def retire(self) -> None:
        """No new command will use it: it closes after the last reply."""
        self._is_retired = True
        if not self._awaiting_reply:
            self.abort("retired")

    def abort(self, why: str, kind: type[RedisConnectionLost] = RedisConnectionLost) -> None:
        if self._transport is not None:
            self._transport.abort()
        self._end(why, kind)

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._connected_protocols.add(self)
        # Without it, uvloop keeps what is written until the end of the turn.
        self._transport.set_write_buffer_limits(high=0)

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        while True:
            try:
                reply = self._reader.gets()
            except Exception as error:
                self.abort(f"the server does not speak the protocol of Redis: {error}")
                return
            if reply is _INCOMPLETE:
                return
            self._has_replied = True
            if not self._awaiting_reply:
                self.abort("the server sent a reply without a command")
                return
            answer, _ = self._awaiting_reply.popleft()
            # The reply of a cancelled caller is dropped, but takes its place in the order.
            if not answer.done():
                if isinstance(reply, RedisErrorReply):
                    answer.set_exception(reply)
                else:
                    answer.set_result(reply)
            if self._is_retired and not self._awaiting_reply:
                self.abort("retired")
                return

    def connection_lost(self, exc: Exception | None) -> None:
        why = str(exc) if exc else "the server closed the connection"
        if not self._has_replied:
            # A port that speaks TLS ends connections that begin otherwise.
            why += f" without a reply{self._hint}"
        self._end(why)

    # Inside.

    def _flush(self) -> None:
        packets, self._unsent = self._unsent, []
        if packets and self._transport is not None:
            with contextlib.suppress(OSError):
                # `connection_lost` reports a write that failed.
                self._transport.write(packets[0] if len(packets) == 1 else b"".join(packets))

    def _check_timeout(self) -> None:
        """Closes the socket if the oldest command has waited too long. One timer per socket, not
        per command."""
        self._timeout_timer = None
        if not self._awaiting_reply:
            return
        left_s = self._awaiting_reply[0][1] + self._answer_s - self._clock.now()
        if left_s <= 0.0:
            self.abort(f"no answer within {self._answer_s:g} s", RedisTimeout)
        else:
            self._timeout_timer = self._loop.call_later(left_s, self._check_timeout)

    def _end(self, why: str, kind: type[RedisConnectionLost] = RedisConnectionLost) -> None:
        self.is_open = False
        self._connected_protocols.discard(self)
        if self._timeout_timer is not None:
            self._timeout_timer.cancel()
            self._timeout_timer = None
        awaiting_reply, self._awaiting_reply = self._awaiting_reply, deque()
        self._unsent.clear()
        for answer, _ in awaiting_reply:
            if not answer.done():
                answer.set_exception(kind(why))
