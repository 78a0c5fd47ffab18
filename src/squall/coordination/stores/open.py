"""Opens the store that a URL names.

memory://                                   one process
sqlite:///relative.db  sqlite:////abs/file  several processes of one machine
redis://host:6379/0  rediss://  unix://     Redis
s3://bucket/prefix?endpoint=...&region=...  S3 or a compatible service
"""

from __future__ import annotations

import random
import re
from pathlib import Path

from squall.coordination.errors import ConfigurationError
from squall.coordination.metrics import CoordinationMetrics
from squall.coordination.stores.guarded_store import GuardedStore
from squall.coordination.stores.interface import DEFAULT_PREFIX, Capabilities, Store
from squall.coordination.stores.memory import store as memory
from squall.coordination.stores.memory.store import MemoryStore
from squall.coordination.stores.redis import store as redis
from squall.coordination.stores.redis.store import RedisStore
from squall.coordination.stores.s3 import store as s3
from squall.coordination.stores.s3.store import S3Store
from squall.coordination.stores.sqlite import store as sqlite
from squall.coordination.stores.sqlite.store import SqliteStore
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
    """The store itself: not connected, not probed, without retries."""
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
    """What the store of a URL can do, without opening it."""
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
            # The message does not show it: it may be a part of a password with an unescaped slash.
            raise ConfigurationError(
                f"{scheme}: the database after the slash must be a number: redis://host:6379/0 is"
                " right; write a / in a password as %2F"
            )
        return RedisStore
    if scheme == "s3" and rest.startswith("//") and len(rest) > 2:
        return S3Store
    raise ConfigurationError(
        f"{scheme}: is not a store: use memory://, sqlite:///file,"
        " redis://host:6379/0 or s3://bucket/prefix"
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
    """A store that passed its probe, with retries and a circuit breaker. Refuses a store that
    cannot be used, and leaves nothing open then."""
    store = make_store(url, clock, source, prefix=prefix, environment=environment, log=log)
    try:
        await store.probe()
    except BaseException:
        await store.close()
        raise
    return GuardedStore(store, clock, source, metrics=metrics, log=log)
