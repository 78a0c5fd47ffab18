"""Opens and probes the store of agents and their clients; errors are one line.

Everything of store mode lies under one prefix. The store is probed before use: one that does not
honour conditional writes is refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from squall.api.errors import UsageError
from squall.coordination.errors import StoreUnavailableError
from squall.coordination.stores.interface import Store
from squall.coordination.stores.open import make_store
from squall.runtime.interfaces import Runtime

DEFAULT_PREFIX = "squall"
SCHEMES = ("redis", "rediss", "unix", "s3", "sqlite")
OPENS_S = 20.0


def check_url(url: str, flag: str = "--store") -> str:
    """The address of a store that several processes can share."""
    scheme, colon, _ = url.partition(":")
    if scheme == "memory":
        raise UsageError(
            f"{flag} {url}: a memory store lives in one process and cannot be shared; use "
            "redis://, s3:// or sqlite:///file"
        )
    if not colon or scheme not in SCHEMES:
        raise UsageError(
            f"{flag} {url}: write redis://host:6379/0, s3://bucket/prefix or sqlite:///file"
        )
    return url


@asynccontextmanager
async def opened_store(url: str, prefix: str, runtime: Runtime) -> AsyncGenerator[Store]:
    """The probed store, closed at the end. Retries are the caller's."""
    store = make_store(check_url(url), runtime.clock, runtime.random, prefix=prefix)
    try:
        await _probe(store)
        yield store
    finally:
        await store.close()


async def _probe(store: Store) -> None:
    try:
        async with asyncio.timeout(OPENS_S):
            await store.probe()
    except TimeoutError:
        raise StoreUnavailableError(f"{store.url}: no answer within {OPENS_S:g} s") from None
    except StoreUnavailableError as error:
        why = str(error).removeprefix(f"{store.url}: ")
        raise StoreUnavailableError(f"{store.url}: the store does not answer: {why}") from None
