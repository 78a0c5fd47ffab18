"""The author's Redis API: responses, and the verbs of `self.client.redis`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Protocol, cast

import msgspec

from squall.api.arguments import URL
from squall.api.protocols.response import ProtocolResponse

Word = str | bytes | int | float
"""A part of a command; text is sent as UTF-8."""


class RedisResponse(ProtocolResponse, eq=False, gc=False):
    """The reply to one command, or to the commands of a pipeline."""

    protocol: ClassVar[str] = "redis"

    value: Any = None
    """The reply: bytes, a number, None, or a list, set or dict of these. A pipeline has a list
    with a reply for each command, in which an error reply is an exception object."""

    @property
    def text(self) -> str:
        """The reply as text; of a list, one line for each item."""
        return self.error or _text(self.value)

    def json(self) -> Any:
        """The reply as JSON. Raises a `ValueError` that says where it is malformed."""
        return msgspec.json.decode(self.value)


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, dict):
        fields = cast("dict[Any, Any]", value)
        return "\n".join([f"{_text(key)}: {_text(each)}" for key, each in fields.items()])
    if isinstance(value, list | set):
        return "\n".join(map(_text, cast("list[Any]", value)))
    return "" if value is None else str(value)


class RedisVerbs(Protocol):
    """`self.client.redis`: commands on a connection of this user.

    An error reply is a failed response. A verb raises `TransportError` if there is no reply: the
    server is gone, it refuses the log-in, or the time is up.
    """

    async def call(
        self,
        url: URL,
        *command: Word,
        timeout: str | float | None = None,  # noqa: ASYNC109
    ) -> RedisResponse:
        """Sends any command: `call(url, "ZADD", "board", 7, "ada")`. Subscriptions and `MONITOR`
        are refused, because their replies have no end."""
        ...

    async def pipeline(
        self,
        url: URL,
        commands: Iterable[Sequence[Word]],
        *,
        transaction: bool = False,
        timeout: str | float | None = None,  # noqa: ASYNC109
    ) -> RedisResponse:
        """Sends commands together and waits for all replies: `[("INCR", "n"), ("GET", "n")]`. With
        `transaction` they are one: `MULTI` and `EXEC` are sent around them."""
        ...

    async def get(self, url: URL, key: Word) -> RedisResponse:
        """`GET`: the value of a key, None if there is none."""
        ...

    async def set(
        self, url: URL, key: Word, value: Word, *, expires: str | float | None = None
    ) -> RedisResponse:
        """`SET`: writes a key; with `expires="30s"` it is deleted after that time."""
        ...

    async def delete(self, url: URL, *keys: Word) -> RedisResponse:
        """`DEL`: the number of keys that existed."""
        ...

    async def exists(self, url: URL, *keys: Word) -> RedisResponse:
        """`EXISTS`: how many of the keys exist."""
        ...

    async def incr(self, url: URL, key: Word, by: int = 1) -> RedisResponse:
        """`INCRBY`: the number after adding to it."""
        ...

    async def mget(self, url: URL, *keys: Word) -> RedisResponse:
        """`MGET`: the values of several keys."""
        ...

    async def hset(self, url: URL, key: Word, fields: Mapping[str, Word]) -> RedisResponse:
        """`HSET`: writes fields of a hash; the number of new ones."""
        ...

    async def hget(self, url: URL, key: Word, name: Word) -> RedisResponse:
        """`HGET`: a field of a hash."""
        ...

    async def hgetall(self, url: URL, key: Word) -> RedisResponse:
        """`HGETALL`: all fields of a hash; a dict with RESP3, else a list."""
        ...

    async def lpush(self, url: URL, key: Word, *values: Word) -> RedisResponse:
        """`LPUSH`: puts values before a list; its new length."""
        ...

    async def rpush(self, url: URL, key: Word, *values: Word) -> RedisResponse:
        """`RPUSH`: puts values behind a list; its new length."""
        ...

    async def lpop(self, url: URL, key: Word) -> RedisResponse:
        """`LPOP`: the first value of a list, which it removes."""
        ...

    async def lrange(self, url: URL, key: Word, first: int = 0, last: int = -1) -> RedisResponse:
        """`LRANGE`: values of a list."""
        ...

    async def sadd(self, url: URL, key: Word, *values: Word) -> RedisResponse:
        """`SADD`: the number of values that are new in a set."""
        ...

    async def publish(self, url: URL, channel: Word, message: Word) -> RedisResponse:
        """`PUBLISH`: the number of clients that received the message."""
        ...
