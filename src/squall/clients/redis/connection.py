"""A Redis connection: the log-in, then calls one after the other.

Arrival is stamped when bytes come, not when the waiting task runs. A call may have several
commands; its future ends with the last reply.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, Any, cast

import hiredis
import msgspec

from squall.api.errors import CallError, TransportError
from squall.api.protocols.redis import RedisResponse, Word
from squall.clients.calls.address import PreparedAddress
from squall.clients.calls.payload import shown
from squall.clients.http.connect import Dial, dial
from squall.clients.http.failure_reasons import reason_of
from squall.clients.http.shared import NO_ALPN

if TYPE_CHECKING:
    from squall.clients.http.shared import HTTPShared

# Its annotation knows commands of one word only.
pack: Callable[[tuple[Word, ...]], bytes] = cast("Any", hiredis).pack_command
# What the parser returns for a reply that is not complete; False is a reply.
_INCOMPLETE = object()
# Classes of replies that are values and nothing else.
_PLAIN = frozenset({bytes, int, float, bool, type(None)})
# Commands whose words messages must not show.
_SECRET = frozenset({"AUTH", "HELLO", "ACL", "MIGRATE", "CONFIG"})
# Characters of an error reply that make its key.
_MOST_REASON = 120


class RedisCall(msgspec.Struct, eq=False, gc=False):
    """The commands of a call, as messages show them: one command, or the list of a pipeline."""

    to: PreparedAddress
    commands: Any

    @property
    def address(self) -> str:
        return self.to.shown

    @property
    def operation(self) -> str:
        if self.commands.__class__ is not list:
            return command_text(self.commands)
        commands: list[Any] = self.commands
        return shown(f"{len(commands)} commands: {'; '.join(map(command_text, commands[:5]))}")


def command_text(command: Any) -> str:
    words = [
        word.decode("utf-8", "replace") if isinstance(word, bytes) else str(word)
        for word in command
    ]
    name = words[0].upper() if words else ""
    return name if name in _SECRET else shown(" ".join([name, *words[1:]]))


class CommandConnection(asyncio.Protocol):
    """One connection, which has at most one call at a time."""

    __slots__ = (
        "_call",
        "_feed",
        "_has_data",
        "_next",
        "_replies",
        "_sent",
        "_wanted",
        "address",
        "connect_s",
        "counters",
        "create_future",
        "first_byte",
        "future",
        "is_open",
        "received",
        "setup",
        "shared",
        "spent_s",
        "started",
        "timeout_s",
        "transport",
    )

    def __init__(self, shared: HTTPShared, address: PreparedAddress) -> None:
        self.shared = shared
        self.address = address
        self.counters = shared.counters_of("redis")
        self.create_future = asyncio.get_running_loop().create_future
        self.transport: asyncio.Transport = cast("asyncio.Transport", None)
        self.setup: tuple[float, float, float] | None = None
        self.connect_s = 0.0
        self.is_open = False
        # Set while a call waits for its replies.
        self.future: asyncio.Future[RedisResponse] | None = None
        self.started = 0.0
        self.timeout_s = shared.timeout_s
        self.spent_s = 0.0
        self.first_byte = 0.0
        self.received = 0
        self._call = RedisCall(address, ())
        self._sent = 0
        # Replies that the call still waits for, and those before the last one.
        self._wanted = 0
        self._replies: list[Any] = []
        reader = hiredis.Reader(notEnoughData=_INCOMPLETE)
        self._feed = reader.feed
        self._next = reader.gets
        self._has_data = reader.has_data

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.is_open = True
        self.shared.live.add(self)
        self.counters.connections += 1

    def send(
        self, data: bytes, call: RedisCall, count: int, timeout_s: float, started: float
    ) -> asyncio.Future[RedisResponse]:
        """Sends packed commands; the future ends with the last of `count` replies."""
        self.future = future = self.create_future()
        self._call = call
        self._wanted = count
        self._sent = size = len(data)
        self.timeout_s = timeout_s
        self.spent_s = self.connect_s
        self.started = started
        self.counters.bytes_sent += size
        if self.is_open:
            self.transport.write(data)
        else:
            self._end("connection closed by the server", started)
        return future

    def data_received(self, data: bytes) -> None:
        now = perf_counter()
        size = len(data)
        self.counters.bytes_received += size
        future = self.future
        try:
            self._feed(data)
            if future is not None and not self.received and self._wanted == 1:
                # The usual call: one command, one reply, all of it here.
                reply = self._next()
                if reply.__class__ in _PLAIN and not future.done():
                    self.future = None
                    future.set_result(
                        RedisResponse(
                            self._call,
                            self.started,
                            now,
                            now,
                            self.connect_s,
                            "",
                            self._sent,
                            size,
                            True,
                            1,
                            reply,
                        )
                    )
                    if not self._has_data():
                        return
                    size = 0
                elif reply is not _INCOMPLETE:
                    self.received = size
                    self._take(reply, now)
                    size = 0
            self.received += size
            while (reply := self._next()) is not _INCOMPLETE:
                self._take(reply, now)
        except hiredis.ProtocolError:
            self.fail("not a Redis reply", now)
            return
        if self.future is None:
            self.received, self.first_byte = 0, 0.0
        else:
            self.first_byte = self.first_byte or now
            if self.received > self.shared.most_bytes:
                self.fail(f"replies larger than {self.shared.most_bytes >> 20} MiB", now)

    def _take(self, reply: Any, now: float) -> None:
        if reply.__class__ is hiredis.PushNotification:
            # Sent without being asked (RESP3).
            return
        future = self.future
        if future is None:
            # Nothing was asked: the server says why it closes, or is out of step.
            self.abort()
            return
        self._wanted -= 1
        if self._wanted:
            self._replies.append(reply)
            return
        self.future = None
        if future.done():
            # Cancelled a moment ago: its task has not run yet and will drop the connection.
            return
        error, count = "", 1
        if self._replies:
            self._replies.append(reply)
            reply, self._replies = self._replies, []
            count = len(reply)
        elif reply.__class__ is hiredis.ReplyError:
            error, reply = error_key(reply), None
        future.set_result(
            RedisResponse(
                self._call,
                self.started,
                self.first_byte or now,
                now,
                self.connect_s,
                error,
                self._sent,
                self.received,
                True,
                count,
                reply,
            )
        )

    def connection_lost(self, exc: Exception | None) -> None:
        self.shared.live.discard(self)
        self.transport = cast("asyncio.Transport", None)
        self.is_open = False
        reason = "connection closed by the server" if exc is None else reason_of(exc)
        self._end(reason, perf_counter())

    def _end(self, reason: str, now: float) -> None:
        future, self.future = self.future, None
        if future is not None and not future.done():
            future.set_exception(TransportError(reason, started=self.started, ended=now))

    def fail(self, reason: str, now: float) -> None:
        """Ends the waiting call and the connection: a later reply could belong to any call."""
        self._end(reason, now)
        self.abort()

    def close(self) -> None:
        self.is_open = False
        if self.transport is not None:  # pyright: ignore[reportUnnecessaryComparison]
            self.transport.close()

    def abort(self) -> None:
        self.future = None
        self.is_open = False
        if self.transport is not None:  # pyright: ignore[reportUnnecessaryComparison]
            self.transport.abort()


def error_key(reply: Exception) -> str:
    """The key under which an error reply is counted."""
    text = str(reply)
    code = text.partition(" ")[0]
    if code in ("MOVED", "ASK"):
        return f"{code}: the key is on another node of the cluster"
    if code == "ERR" and "unknown command" in text:
        # The rest repeats the arguments.
        return text.partition(", with args")[0][:_MOST_REASON]
    return text[:_MOST_REASON]


async def open_connection(
    shared: HTTPShared, address: PreparedAddress, index: int, limit_s: float
) -> CommandConnection:
    """Connects, logs in and selects the database. Raises `TransportError` if the server refuses."""
    database = address.path.strip("/")
    if database and not database.isdecimal():
        raise CallError(f"{address.shown}: the path is the number of a database, such as /3")
    version = address.query.get("protocol", "3")
    if version not in ("2", "3"):
        raise CallError(f"{address.shown}: protocol= is 2 or 3")
    began = perf_counter()
    conn = await dial(
        shared,
        Dial(address.origin, (NO_ALPN,)),
        lambda: CommandConnection(shared, address),
        index,
        limit_s,
        limit_s,
    )
    try:
        if version == "3" and await _greet(conn, address, limit_s):
            version = "greeted"
        if version != "greeted" and address.password:
            user = (address.user,) if address.user else ()
            await _ask(conn, ("AUTH", *user, address.password), limit_s)
        if database and int(database):
            await _ask(conn, ("SELECT", database), limit_s)
    except _Refused as refusal:
        conn.abort()
        reason = f"log-in refused: {refusal}"
        raise TransportError(reason, started=began, ended=perf_counter()) from None
    except BaseException:
        conn.abort()
        raise
    return conn


class _Refused(Exception):
    """The server answered a command of the log-in with an error."""


async def _greet(conn: CommandConnection, address: PreparedAddress, limit_s: float) -> bool:
    """Asks for RESP3; false if the server is too old for it (before Redis 6)."""
    words = ("HELLO", "3")
    if address.password:
        words += ("AUTH", address.user or "default", address.password)
    try:
        await _ask(conn, words, limit_s)
    except _Refused as refusal:
        if str(refusal).startswith(("ERR unknown command", "NOPROTO")):
            return False
        raise
    return True


async def _ask(conn: CommandConnection, command: tuple[str, ...], limit_s: float) -> None:
    call = RedisCall(conn.address, command)
    future = conn.send(pack(command), call, 1, limit_s, perf_counter())
    conn.shared.expect_timeout(limit_s, conn.started + limit_s)
    try:
        response = await future
    finally:
        del future
    if response.error:
        raise _Refused(response.error)
