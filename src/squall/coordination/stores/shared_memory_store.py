"""Opens the store of a member by URL, with shared memory stores.

Members of one process that name the same `memory:` URL on the same event loop share one store, so
that they form a group without passing a store object around.
"""

from __future__ import annotations

import asyncio
from weakref import WeakKeyDictionary

from squall.coordination.stores.interface import Store
from squall.coordination.stores.memory.store import MemoryStore
from squall.coordination.stores.open import make_store
from squall.runtime.interfaces import Runtime
from squall.runtime.log import Log

_memory: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[str, str], MemoryStore]] = (
    WeakKeyDictionary()
)


def open_store(
    url: str, prefix: str, runtime: Runtime, environment: str, log: Log | None = None
) -> Store:
    """The store of a URL, not probed."""
    if url.partition(":")[0] == "memory":
        shared = _memory.setdefault(asyncio.get_running_loop(), {})
        return shared.setdefault((url, prefix), MemoryStore(runtime.clock))
    return make_store(
        url, runtime.clock, runtime.random, prefix=prefix, environment=environment, log=log
    )
