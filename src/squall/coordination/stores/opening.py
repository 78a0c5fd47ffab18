"""From a URL to a store that was tried.

memory://                                   one process
sqlite:///relative.db  sqlite:////abs/file  several processes of one machine
redis://host:6379/0  rediss://  unix://     Redis
s3://bucket/prefix?endpoint=...&region=...  S3 or what speaks like it
"""

from __future__ import annotations

import random
import re
from pathlib import Path

from squall.coordination.errors import ConfigurationError
from squall.coordination.metrics import CoordinationMetrics
from squall.coordination.stores import memory, redis, s3, sqlite
from squall.coordination.stores.guard import GuardedStore
from squall.coordination.stores.interface import DEFAULT_PREFIX, Capabilities, Store
from squall.coordination.stores.memory import MemoryStore
from squall.coordination.stores.redis import RedisStore
from squall.coordination.stores.s3 import S3Store
from squall.coordination.stores.sqlite import SqliteStore
from squall.runtime.interfaces import Clock
from squall.runtime.log import Log

DATABASE = re.compile(r"rediss?://[^/?#]*/([^/?#]+)")
CAPABILITIES: dict[type[Store], Capabilities] = {
    MemoryStore: memory.CAPABILITIES,
    SqliteStore: sqlite.CAPABILITIES,
    RedisStore: redis.CAPABILITIES,
    S3Store: s3.CAPABILITIES,
}


def make_store(
    url: str,
    clock: Clock,
    source: random.Random,
    *,
    prefix: str = DEFAULT_PREFIX,
    environment: str = "",
    log: Log | None = None,
) -> Store:
    """Not connected, not probed, not guarded."""
    made = _class_of(url)
    if made is MemoryStore:
        return MemoryStore(clock)
    if made is SqliteStore:
        path = url.removeprefix("sqlite:///")
        return SqliteStore(Path(path), clock, source, prefix=prefix)
    if made is S3Store:
        return S3Store(url, clock, source, prefix=prefix, log=log)
    return RedisStore(
        url,
        clock,
        source,
        prefix=prefix,
        allow_eviction=environment == "development",
        log=log,
    )


def capabilities_of(url: str) -> Capabilities:
    """Before anything is opened."""
    return CAPABILITIES[_class_of(url)]


def _class_of(url: str) -> type[Store]:
    scheme, found, rest = url.partition(":")
    if scheme == "memory" and found:
        return MemoryStore
    if scheme == "sqlite" and rest.startswith("///") and len(rest) > 3:
        return SqliteStore
    if scheme in {"redis", "rediss", "unix"} and found:
        database = DATABASE.match(url)
        if database and not database[1].isdecimal():
            # What stands there may be a part of a password with an unescaped slash.
            raise ConfigurationError(
                f"{scheme}: the database behind the slash is a number: redis://host:6379/0 is"
                " right, and a / in a password is %2F"
            )
        return RedisStore
    if scheme == "s3" and rest.startswith("//") and len(rest) > 2:
        return S3Store
    raise ConfigurationError(
        f"{scheme}: is not a store: use memory://, sqlite:///file, redis://host:6379/0 or "
        "s3://bucket/prefix"
    )


async def open_store(
    url: str,
    clock: Clock,
    source: random.Random,
    *,
    prefix: str = DEFAULT_PREFIX,
    environment: str = "",
    metrics: CoordinationMetrics | None = None,
    log: Log | None = None,
) -> GuardedStore:
    """A store that keeps its conditions, with retries and a circuit breaker. What cannot
    be used is refused here, and nothing stays open."""
    store = make_store(url, clock, source, prefix=prefix, environment=environment, log=log)
    try:
        await store.probe()
    except BaseException:
        await store.close()
        raise
    return GuardedStore(store, clock, source, metrics=metrics, log=log)
