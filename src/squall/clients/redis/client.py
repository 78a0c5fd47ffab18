"""The Redis client of one virtual user: `self.client.redis`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any, cast

import hiredis

from squall.api.arguments import URL
from squall.api.errors import CallError
from squall.api.protocols.redis import RedisResponse, Word
from squall.clients.calls.address import PreparedAddress
from squall.clients.calls.connections import Connections
from squall.clients.calls.probe import PingAnswer
from squall.clients.redis.connection import (
    CommandConnection,
    RedisCall,
    error_key,
    open_connection,
    pack,
)

if TYPE_CHECKING:
    from squall.clients.http.client import HTTPClient

# What the verbs of one command return: the coroutine of `_command` itself, because each coroutine
# between the author's and the future costs.
Reply = Coroutine[Any, Any, RedisResponse]
# Replies to these have no end.
_ENDLESS = frozenset({"SUBSCRIBE", "PSUBSCRIBE", "SSUBSCRIBE", "MONITOR", "SYNC", "PSYNC"})


class RedisClient:
    """Sends the commands of one user."""

    __slots__ = ("_connections", "_counters", "_http", "_limit", "_shared")

    def __init__(self, http: HTTPClient) -> None:
        self._http = http
        self._shared = http.shared
        self._limit = http.limit
        self._connections: Connections[CommandConnection] = Connections(http, "redis", self._open)
        self._counters = self._connections.counters

    async def _open(self, address: PreparedAddress, limit_s: float) -> CommandConnection:
        return await open_connection(self._shared, address, self._http.vu_index, limit_s)

    async def call(
        self,
        url: URL,
        *command: Word,
        timeout: str | float | None = None,  # noqa: ASYNC109
    ) -> RedisResponse:
        if not command:
            raise CallError('redis.call needs a command, such as "GET", "key"')
        name = command[0]
        if name.__class__ is str and cast("str", name).upper() in _ENDLESS:
            raise CallError(f"redis.call does not send {name}: its replies have no end")
        return await self._command(url, command, timeout)

    async def pipeline(
        self,
        url: URL,
        commands: Iterable[Sequence[Word]],
        *,
        transaction: bool = False,
        timeout: str | float | None = None,  # noqa: ASYNC109
    ) -> RedisResponse:
        words = [tuple(command) for command in commands]
        if not words:
            raise CallError("redis.pipeline needs commands")
        sent = [("MULTI",), *words, ("EXEC",)] if transaction else words
        read = _read_transaction if transaction else _read_pipeline
        return await self._command(url, sent, timeout, read)

    def get(self, url: URL, key: Word) -> Reply:
        return self._command(url, ("GET", key))

    def set(self, url: URL, key: Word, value: Word, *, expires: str | float | None = None) -> Reply:
        command: tuple[Word, ...] = ("SET", key, value)
        if expires is not None:
            command += ("PX", max(round(self._shared.seconds(expires) * 1e3), 1))
        return self._command(url, command)

    def delete(self, url: URL, *keys: Word) -> Reply:
        return self._command(url, ("DEL", *keys))

    def exists(self, url: URL, *keys: Word) -> Reply:
        return self._command(url, ("EXISTS", *keys))

    def incr(self, url: URL, key: Word, by: int = 1) -> Reply:
        return self._command(url, ("INCRBY", key, by))

    def mget(self, url: URL, *keys: Word) -> Reply:
        return self._command(url, ("MGET", *keys))

    def hset(self, url: URL, key: Word, fields: Mapping[str, Word]) -> Reply:
        words = [word for pair in fields.items() for word in pair]
        return self._command(url, ("HSET", key, *words))

    def hget(self, url: URL, key: Word, name: Word) -> Reply:
        return self._command(url, ("HGET", key, name))

    def hgetall(self, url: URL, key: Word) -> Reply:
        return self._command(url, ("HGETALL", key))

    def lpush(self, url: URL, key: Word, *values: Word) -> Reply:
        return self._command(url, ("LPUSH", key, *values))

    def rpush(self, url: URL, key: Word, *values: Word) -> Reply:
        return self._command(url, ("RPUSH", key, *values))

    def lpop(self, url: URL, key: Word) -> Reply:
        return self._command(url, ("LPOP", key))

    def lrange(self, url: URL, key: Word, first: int = 0, last: int = -1) -> Reply:
        return self._command(url, ("LRANGE", key, first, last))

    def sadd(self, url: URL, key: Word, *values: Word) -> Reply:
        return self._command(url, ("SADD", key, *values))

    def publish(self, url: URL, channel: Word, message: Word) -> Reply:
        return self._command(url, ("PUBLISH", channel, message))

    async def probe(self, url: URL) -> PingAnswer:
        response = await self.call(url, "INFO", "server")
        found: dict[str, str] = {}
        for line in response.text.splitlines():
            name, _, value = line.partition(":")
            found[name] = value
        return PingAnswer(f"Redis {found.get('redis_version', '')}".strip(), response)

    async def _command(
        self,
        url: Any,
        commands: Any,
        timeout: str | float | None = None,  # noqa: ASYNC109
        read: Callable[[RedisResponse], None] | None = None,
    ) -> RedisResponse:
        """Sends one command, or the commands of a pipeline; `read` makes the response."""
        count, data = 1, b""
        if read is None:
            data = packed(commands)
        else:
            count, data = len(commands), b"".join(map(packed, commands))
        connections, http = self._connections, self._http
        conn = connections.free
        if timeout is None and conn is not None and conn.address is url and conn.is_open:
            connections.free = None
            conn.connect_s = 0.0
            call = RedisCall(conn.address, commands)
            limit_s = http.own_timeout_s if connections.plain else http.timeout_s
        else:
            call = RedisCall(connections.address_of(url), commands)
            limit_s = connections.limit_s(timeout)
            conn = await connections.take(call.to, call.operation, limit_s)
            self._shared.expect_timeout(limit_s, perf_counter() + limit_s - conn.connect_s)
        started = perf_counter()
        if started > self._limit[0] and not self._shared.allows(started):
            connections.drop(conn)
            raise asyncio.CancelledError
        counters = self._counters
        counters.sent += count
        future = conn.send(data, call, count, limit_s, started)
        try:
            response = await future
        except BaseException as error:
            # The future holds the error, whose traceback holds this frame: break the cycle.
            del future
            raise connections.broken(conn, error, call.operation, count) from None
        counters.replies += count
        if connections.keeps and connections.free is None:
            connections.free = conn
        else:
            connections.give_back(conn)
        if read is not None:
            read(response)
        if connections.plain:
            http.last = response
            return response
        return connections.done(response)


def packed(command: tuple[Word, ...]) -> bytes:
    try:
        return pack(command)
    except TypeError as error:
        kinds = ", ".join(sorted({type(word).__name__ for word in command}))
        raise CallError(
            f"a command of Redis has text, bytes and numbers, not {kinds}: {error}"
        ) from None


def _first_error(replies: list[Any]) -> str:
    for reply in replies:
        if isinstance(reply, hiredis.ReplyError):
            return error_key(reply)
    return ""


def _read_pipeline(response: RedisResponse) -> None:
    """The reply of one command, or the list of the replies of several."""
    if response.exchanges == 1:
        response.value = [response.value]
    else:
        response.error = _first_error(response.value)


def _read_transaction(response: RedisResponse) -> None:
    """The replies of the commands are those of `EXEC`, None if a watched key changed."""
    replies = response.value
    result = replies[-1]
    if isinstance(result, hiredis.ReplyError):
        # Why a command was refused says more than that the transaction was.
        response.value, response.error = None, _first_error(replies)
        return
    response.value = result
    if result is None:
        response.error = "transaction not executed: a watched key changed"
    else:
        response.error = _first_error(result)
