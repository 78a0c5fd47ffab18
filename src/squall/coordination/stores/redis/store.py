"""The store on Redis: one script per operation, one connection for commands and one for waits.

It needs Redis 6.2 or newer with `noeviction`: every key of the library has an expiry, so any other
policy could evict leases and signals when memory runs short. Its guarantees are those of one Redis
primary; see docs/coordination/stores.md about failovers.

The store must never use KEYS or SCAN, nor touch a key outside of its prefix.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Mapping, Sequence
from typing import Any

from squall.coordination.store_errors import (
    StaleClaimError,
    StaleEpochError,
    StoreError,
    StoreTimeoutError,
    StoreUnavailableError,
    StreamFullError,
    UnsafeStoreError,
    VersionConflict,
)
from squall.coordination.stores.interface import (
    ABSENT,
    ANY,
    DEFAULT_PREFIX,
    REMEMBERED_S,
    Append,
    Capabilities,
    Check,
    Claim,
    Condition,
    Delete,
    Depth,
    Fence,
    Item,
    Listed,
    Page,
    Put,
    Record,
    Remove,
    Watch,
    Write,
    check_ids,
    check_prefix,
    make_key,
)
from squall.coordination.stores.probe import probe
from squall.coordination.stores.recent_takes import TAKE_REMEMBERED_MS
from squall.coordination.stores.redis import scripts
from squall.coordination.stores.redis.connection import (
    RedisAddress,
    RedisConnection,
    RedisConnectionLost,
    RedisErrorReply,
    RedisTimeout,
)
from squall.coordination.stores.redis.waits import SLICE_S, RedisWaits
from squall.runtime.interfaces import Clock
from squall.runtime.log import Log
from squall.runtime.tasks import TaskRunner

OLDEST_VERSION = (6, 2)
ANSWER_S = 5.0
TOKEN_BYTES = 12
REMEMBERED_MS = round(REMEMBERED_S * 1000)
# Larger commands have a connection of their own: a heartbeat must not wait behind them.
BULK_BYTES = 256 * 1024
BULK_ANSWER_S = 30.0
UNAVAILABLE_CODES = frozenset(
    {
        *("LOADING", "READONLY", "TRYAGAIN", "CLUSTERDOWN", "MASTERDOWN", "OOM", "BUSY"),
        *("NOREPLICAS", "MISCONF", "UNBLOCKED"),
    }
)
"""Error codes of a server that cannot do it now."""
TOO_MANY_CLIENTS = "ERR max number of clients"
SCRIPT_ERROR = re.compile(r"ERR Error running script .*: -([A-Z]+) ")
"""Redis 6.2 wraps an error inside a script in this text; the code is inside."""
ACCESS_DENIED_CODES = frozenset({"NOAUTH", "WRONGPASS", "NOPERM"})
SWEEP_PAGE = 100
TAKE_MAX = 1000
CAPABILITIES = Capabilities(
    transactions=True,
    blocking_wait=True,
    native_expiry=True,
    store_clock=True,
    conditional_delete=True,
    cross_process=True,
    cross_host=True,
)


class RedisStore:
    """A store on one Redis server; use `open_store`, which also probes it."""

    def __init__(
        self,
        url: str,
        clock: Clock,
        source: random.Random,
        *,
        prefix: str = DEFAULT_PREFIX,
        allow_eviction: bool = False,
        log: Log | None = None,
    ) -> None:
        self._url = shown_url(url)
        self._tag = "{" + check_prefix(prefix) + "}"
        self._random = source
        self._allow_eviction = allow_eviction
        self._log = log
        self._shas: dict[str, str] = {}
        try:
            address = RedisAddress.of(url)
        except ValueError as error:
            raise StoreError(f"{self.url} is not the address of a Redis: {error}") from None
        self._connection = RedisConnection(address, clock, ANSWER_S)
        self._bulk_connection = RedisConnection(address, clock, BULK_ANSWER_S)
        self._tasks = TaskRunner(clock, source)
        waits_connection = RedisConnection(address, clock, SLICE_S + ANSWER_S)
        self._waits = RedisWaits(
            self, waits_connection, clock, self._tasks, self._tag, self._token()
        )

    @property
    def url(self) -> str:
        return self._url

    @property
    def capabilities(self) -> Capabilities:
        return CAPABILITIES

    async def now_ms(self) -> int:
        seconds, micros = await self.command("TIME")
        return int(seconds) * 1000 + int(micros) // 1000

    async def get(self, *keys: str) -> tuple[Record | None, ...]:
        read_ms, *found = await self.script(scripts.GET, *keys)
        return _records(keys, found, read_ms)

    async def write(self, *writes: Write, fence: Fence | None = None) -> tuple[str, ...]:
        answer = await self.script(scripts.WRITE, *self._request(writes, fence))
        return tuple([part.decode() for part in _accepted(answer, writes, fence)])

    async def write_and_get(
        self, writes: Sequence[Write], keys: Sequence[str]
    ) -> tuple[tuple[str, ...], tuple[Record | None, ...]]:
        """Writes and then reads, in one step of the server."""
        *versions, (read_ms, *found) = _accepted(
            await self.script(scripts.WRITE, *self._request(writes, None, keys)), writes, None
        )
        return tuple([part.decode() for part in versions]), _records(keys, found, read_ms)

    def _request(
        self, writes: Sequence[Write], fence: Fence | None, keys: Sequence[str] = ()
    ) -> list[str | int | bytes]:
        """The arguments of `WRITE`."""
        check_ids(writes)
        flat: list[str | int | bytes] = ["", 0] if fence is None else [fence.scope, fence.epoch]
        flat += (self._token(), REMEMBERED_MS, len(keys), *keys)
        for write in writes:
            fields = self._encoded(write)
            flat.append(len(fields))
            flat += fields
        return flat

    async def list(self, kind: str, *, idle_ms: int = 0, after: str = "", limit: int = 100) -> Page:
        begin, _, key = after.partition(":")
        read_ms, *found = await self.script(
            scripts.LIST, make_key(kind), idle_ms, begin or "-inf", key, limit + 1
        )
        entries: list[Listed] = []
        for at in range(0, min(len(found), 2 * limit), 2):
            modified_ms = int(float(found[at + 1]))
            idle_ms, name = max(0, read_ms - modified_ms), found[at].decode()
            entries.append(Listed(key=name, modified_ms=modified_ms, idle_ms=idle_ms))
        more = len(found) > 2 * limit
        return Page(
            entries=tuple(entries),
            after=f"{entries[-1].modified_ms}:{entries[-1].key}" if more else "",
        )

    async def sweep(self, kind: str, *, limit: int = 100, idle_ms: int = 0) -> int:
        removed, after = 0, ""
        while removed < limit:
            page = await self.list(kind, idle_ms=idle_ms, after=after, limit=SWEEP_PAGE)
            if page.entries:
                keys = [entry.key for entry in page.entries]
                removed += int(await self.script(scripts.SWEEP, kind, *keys))
            after = page.after
            if not after:
                break
        return removed

    async def count(self) -> Mapping[str, int]:
        found = await self.script(scripts.COUNT)
        counts: dict[str, int] = {}
        for at in range(0, len(found), 2):
            kind = found[at].decode()
            counts[kind] = counts.get(kind, 0) + int(found[at + 1])
        return {kind: number for kind, number in counts.items() if number}

    async def read(self, stream: str, *, after: str = "", limit: int = 100) -> Sequence[Item]:
        birth, number = split_cursor(after)
        read_ms, found_birth, *found = await self.script(scripts.READ, stream, birth, number, limit)
        return tuple(
            _item(found_birth, found[at], found[at + 1], read_ms) for at in range(0, len(found), 2)
        )

    async def take(
        self,
        stream: str,
        owner: str,
        *,
        lease_s: float,
        limit: int = 1,
        request: str = "",
        provided: Check | None = None,
    ) -> Sequence[Claim]:
        lease_ms, limit = round(lease_s * 1000), min(limit, TAKE_MAX)
        condition = () if provided is None else (provided.key, *_condition(provided.expect))
        read_ms, birth, *found = await self.script(
            *(scripts.TAKE, stream, make_key(owner), request),
            *(lease_ms, limit, TAKE_REMEMBERED_MS, *condition),
        )
        if read_ms < 0 and provided is not None:
            raise VersionConflict(provided.key)
        claims: list[Claim] = []
        for at in range(0, len(found), 4):
            number, body, attempt, until_ms = found[at : at + 4]
            claims.append(
                Claim(
                    item=_item(birth, number, body, read_ms),
                    claim=f"{owner}:{int(attempt)}:{int(number)}",
                    attempt=int(attempt),
                    until_ms=int(float(until_ms)),
                )
            )
        return tuple(claims)

    async def depth(self, stream: str) -> Depth:
        items, held, oldest_ms = await self.script(scripts.DEPTH, stream)
        return Depth(items=items, held=held, oldest_ms=max(0, oldest_ms))

    async def wait(self, *watches: Watch, timeout_s: float) -> frozenset[Watch]:
        return await self._waits.wait(watches, timeout_s)

    async def listen(self, stream: str, *, after: str, timeout_s: float) -> Sequence[Item]:
        """Waits for items. Returns those that were carried; if it returns none, call `read`."""
        return [
            _item(birth, number, body, int(body.partition(b"|")[0]), versions)
            for birth, number, body, versions in await self._waits.listen(stream, after, timeout_s)
        ]

    async def probe(self) -> None:
        """Checks the version, the eviction policy and the conditions."""
        server = await self.info("server")
        version = server.get("redis_version", "0.0")
        if tuple(int(part) for part in version.split(".")[:2]) < OLDEST_VERSION:
            raise UnsafeStoreError(f"{self.url} is Redis {version}: 6.2 or newer is needed")
        memory = await self.info("memory")
        policy, limit = memory.get("maxmemory_policy", ""), int(memory.get("maxmemory", "0"))
        if limit > 0 and policy != "noeviction":
            what = (
                f"{self.url} evicts keys when its memory is full (maxmemory-policy {policy}), and "
                "every coordination key has a TTL and could be evicted: set noeviction"
            )
            if not self._allow_eviction:
                raise UnsafeStoreError(what)
            if self._log is not None:
                self._log.warning("store_may_evict", message=what)
        await probe(self, scratch=self._token())

    async def memory(self) -> tuple[int, int]:
        """Bytes in use, and the limit (0: none)."""
        memory = await self.info("memory")
        return int(memory.get("used_memory", "0")), int(memory.get("maxmemory", "0"))

    async def close(self) -> None:
        await self._waits.close()
        await self._tasks.shutdown(ANSWER_S)
        self._connection.close()
        self._bulk_connection.close()

    async def info(self, section: str) -> dict[str, str]:
        found: bytes = await self.command("INFO", section)
        lines = found.decode().splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line)

    async def script(self, text: str, *arguments: str | int | bytes) -> Any:
        """Runs a script by its SHA. Sends its text if the server does not have it."""
        sha = self._shas.get(text)
        if sha is None:
            sha = self._shas[text] = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
        packed = self._connection.packed("EVALSHA", sha, 1, self._tag, *arguments)
        try:
            return await self._connection_for(packed).call(packed)
        except RedisErrorReply as reply:
            error = self._error(reply)
            if not isinstance(error, ScriptMissing):
                raise error from None
        except RedisConnectionLost as error:
            raise self._lost(error) from error
        return await self.command("EVAL", text, 1, self._tag, *arguments)

    async def command(
        self, *arguments: str | int | bytes, connection: RedisConnection | None = None
    ) -> Any:
        packed = self._connection.packed(*arguments)
        try:
            return await (connection or self._connection_for(packed)).call(packed)
        except RedisErrorReply as reply:
            raise self._error(reply) from None
        except RedisConnectionLost as error:
            raise self._lost(error) from error

    def _connection_for(self, packed: bytes) -> RedisConnection:
        return self._connection if len(packed) <= BULK_BYTES else self._bulk_connection

    def _lost(self, error: RedisConnectionLost) -> StoreUnavailableError:
        kind = StoreTimeoutError if isinstance(error, RedisTimeout) else StoreUnavailableError
        return kind(f"{self.url}: {error}")

    def _error(self, reply: RedisErrorReply) -> StoreError:
        code = reply.code
        if code == "NOSCRIPT":
            return ScriptMissing(str(reply))
        if code in ACCESS_DENIED_CODES or "invalid password" in str(reply):
            return StoreError(f"{self.url} refuses the credentials: {reply}")
        if _is_unavailable(reply):
            return StoreUnavailableError(f"{self.url}: {reply}")
        return StoreError(f"{self.url}: {reply}")

    def _encoded(self, write: Write) -> Sequence[str | int | bytes]:
        if isinstance(write, Put):
            ttl_s, token = write.ttl_s, write.token or self._token()
            ttl_ms = -1 if ttl_s is None else max(1, round(ttl_s * 1000))
            condition = _condition(write.expect)
            return (1, write.key, write.value, *condition, ttl_ms, int(write.silent), token)
        if isinstance(write, Check):
            return (3, write.key, *_condition(write.expect))
        if isinstance(write, Remove):
            return (6, write.stream, *split_cursor(write.cursor), write.claim)
        if isinstance(write, Append):
            ttl_ms, carried = round(write.ttl_s * 1000), int(write.carried)
            fields = (4, write.stream, write.id, write.value, ttl_ms, write.limit, carried)
            return (*fields, *write.versions_of) if carried else fields
        if isinstance(write, Delete):
            return (2, write.key, *_condition(write.expect), int(write.silent))
        lease_ms = round(write.lease_s * 1000)
        return (5, write.stream, *split_cursor(write.cursor), write.claim, lease_ms)

    def _token(self) -> str:
        return self._random.randbytes(TOKEN_BYTES).hex()


class ScriptMissing(StoreError):
    """The server does not have a script: it was restarted, or its scripts were flushed."""


def _is_unavailable(reply: RedisErrorReply) -> bool:
    text = str(reply)
    hidden = SCRIPT_ERROR.match(text)
    return (hidden[1] if hidden else reply.code) in UNAVAILABLE_CODES or text.startswith(
        TOO_MANY_CLIENTS
    )


def shown_url(url: str) -> str:
    """The URL without user and password."""
    scheme, _, rest = url.partition("://")
    place = rest.rpartition("@")[2].partition("?")[0]
    return f"{scheme}://{place}"


def split_cursor(cursor: str) -> tuple[str, str]:
    birth, _, number = cursor.rpartition(".")
    return birth, number or "0"


def _condition(expect: Condition) -> tuple[int, str]:
    if expect is ANY:
        return 0, ""
    if expect is ABSENT:
        return 1, ""
    return 2, str(expect)


def _records(keys: Sequence[str], found: Sequence[Any], read_ms: int) -> tuple[Record | None, ...]:
    return tuple([_record(key, fields, read_ms) for key, fields in zip(keys, found, strict=True)])


def _record(key: str, fields: Sequence[bytes | None], read_ms: int) -> Record | None:
    value, version, epoch, modified_ms, expires_ms = fields
    if value is None or version is None or epoch is None or modified_ms is None:
        return None
    return Record(
        key=key,
        value=value,
        version=version.decode(),
        epoch=int(epoch),
        modified_ms=int(modified_ms),
        read_ms=read_ms,
        expires_ms=int(expires_ms) if expires_ms else None,
    )


def _item(birth: bytes, number: bytes, body: bytes, read_ms: int, versions: bytes = b"") -> Item:
    appended_ms, item_id, value = body.split(b"|", 2)
    pairs = versions.decode().split("|") if versions else ()
    return Item(
        cursor=f"{birth.decode()}.{int(number)}",
        id=item_id.decode(),
        value=value,
        appended_ms=int(appended_ms),
        read_ms=read_ms,
        versions=dict(zip(pairs[::2], pairs[1::2], strict=True)),
    )


def _accepted(answer: list[Any], writes: Sequence[Write], fence: Fence | None) -> list[Any]:
    """The answer of `WRITE` without its code; raises the error that the code stands for."""
    code, *rest = answer
    if code:
        raise _refusal(code, rest[0], writes, fence)
    return rest


def _refusal(code: int, detail: Any, writes: Sequence[Write], fence: Fence | None) -> Exception:
    if code == 1:
        return VersionConflict(detail.decode())
    if code == 2:
        stream = detail.decode()
        return StaleClaimError(stream, f"a claim of {stream} no longer holds its item")
    if code == 3 and fence is not None:
        return StaleEpochError(fence.scope, fence.epoch, int(detail) if detail else None)
    stream = next(write.stream for write in writes if isinstance(write, Append))
    return StreamFullError(stream, int(detail))
