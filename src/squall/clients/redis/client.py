"""The Redis client of one virtual user: `self.client.redis`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any, cast

import hiredis

from squall.api.arguments import URL
from squall.api.errors import CallError
from squall.api.protocols.redis import RedisResponse, Word
from squall.clients.calls.address import PreparedAddress
from squall.clients.calls.connections import Connections
from squall.clients.calls.probe import Probe
from squall.clients.redis.connection import (
    RedisCall,
    RedisConnection,
    error_key,
    open_connection,
    pack,
)

if TYPE_CHECKING:
    from squall.clients.http.client import HTTPClient

# Replies to these have no end.
_ENDLESS = frozenset({"SUBSCRIBE", "PSUBSCRIBE", "SSUBSCRIBE", "MONITOR", "SYNC", "PSYNC"})


class RedisClient:
    """Sends the commands of one user."""

    __slots__ = ("_connections", "_counters", "_http", "_limit", "_shared")

    def __init__(self, http: HTTPClient) -> None:
        self._http = http
        self._shared = http.shared
        self._limit = http.limit
        self._connections: Connections[RedisConnection] = Connections(http, "redis", self._open)
        self._counters = self._connections.counters

    async def _open(self, address: PreparedAddress, limit_s: float) -> RedisConnection:
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
        return await self._send(url, packed(command), command, 1, timeout)

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
        data = b"".join([packed(command) for command in sent])
        read = _read_transaction if transaction else _read_pipeline
        return await self._send(url, data, sent, len(sent), timeout, read)

    async def get(self, url: URL, key: Word) -> RedisResponse:
        command = ("GET", key)
        return await self._send(url, packed(command), command, 1, None)

    async def set(
        self, url: URL, key: Word, value: Word, *, expires: str | float | None = None
    ) -> RedisResponse:
        command: tuple[Word, ...] = ("SET", key, value)
        if expires is not None:
            command += ("PX", max(round(self._shared.seconds(expires) * 1e3), 1))
        return await self._send(url, packed(command), command, 1, None)

    async def delete(self, url: URL, *keys: Word) -> RedisResponse:
        return await self.call(url, "DEL", *keys)

    async def exists(self, url: URL, *keys: Word) -> RedisResponse:
        return await self.call(url, "EXISTS", *keys)

    async def incr(self, url: URL, key: Word, by: int = 1) -> RedisResponse:
        return await self.call(url, "INCRBY", key, by)

    async def mget(self, url: URL, *keys: Word) -> RedisResponse:
        return await self.call(url, "MGET", *keys)

    async def hset(self, url: URL, key: Word, fields: Mapping[str, Word]) -> RedisResponse:
        return await self.call(
            url, "HSET", key, *(word for pair in fields.items() for word in pair)
        )

    async def hget(self, url: URL, key: Word, name: Word) -> RedisResponse:
        return await self.call(url, "HGET", key, name)

    async def hgetall(self, url: URL, key: Word) -> RedisResponse:
        return await self.call(url, "HGETALL", key)

    async def lpush(self, url: URL, key: Word, *values: Word) -> RedisResponse:
        return await self.call(url, "LPUSH", key, *values)

    async def rpush(self, url: URL, key: Word, *values: Word) -> RedisResponse:
        return await self.call(url, "RPUSH", key, *values)

    async def lpop(self, url: URL, key: Word) -> RedisResponse:
        return await self.call(url, "LPOP", key)

    async def lrange(self, url: URL, key: Word, first: int = 0, last: int = -1) -> RedisResponse:
        return await self.call(url, "LRANGE", key, first, last)

    async def sadd(self, url: URL, key: Word, *values: Word) -> RedisResponse:
        return await self.call(url, "SADD", key, *values)

    async def publish(self, url: URL, channel: Word, message: Word) -> RedisResponse:
        return await self.call(url, "PUBLISH", channel, message)

    async def probe(self, url: URL) -> Probe:
        response = await self.call(url, "INFO", "server")
        found: dict[str, str] = {}
        for line in response.text.splitlines():
            name, _, value = line.partition(":")
            found[name] = value
        return Probe(f"Redis {found.get('redis_version', '')}".strip(), response)

    async def _send(
        self,
        url: Any,
        data: bytes,
        commands: Any,
        count: int,
        timeout: str | float | None,  # noqa: ASYNC109
        read: Callable[[RedisResponse], None] | None = None,
    ) -> RedisResponse:
        connections, http = self._connections, self._http
        conn = connections.free
        if (
            timeout is None
            and conn is not None
            and conn.address is url
            and conn.transport is not None  # pyright: ignore[reportUnnecessaryComparison]
        ):
            connections.free = None
            conn.connect_s = 0.0
            call = RedisCall(conn.address, commands)
            limit_s = http.own_timeout_s if connections.plain else http.timeout_s
        else:
            call = RedisCall(connections.address_of(url), commands)
            limit_s = connections.limit_s(timeout)
            conn = await connections.take(call.to, call.operation, limit_s)
        started = perf_counter()
        if started > self._limit[0] and not self._shared.allows(started):
            connections.drop(conn)
            raise asyncio.CancelledError
        if timeout is not None or conn.connect_s:
            self._shared.expect_timeout(limit_s, started + limit_s - conn.connect_s)
        self._counters.sent += count
        future = conn.send(data, call, count, limit_s, started)
        try:
            response = await future
        except BaseException as error:
            # The future holds the error, whose traceback holds this frame: break the cycle.
            del future
            raise connections.broken(conn, error, call.operation, count) from None
        self._counters.replies += count
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
    """One command has its reply alone; several have a list."""
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
