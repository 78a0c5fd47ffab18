"""A Redis that accepts connections and answers nothing: callers do not wait for each other."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from squall.coordination.store_errors import StoreUnavailableError
from squall.coordination.stores import guarded_store
from squall.coordination.stores.breaker import BreakerState
from squall.coordination.stores.guarded_store import GuardedStore, RetrySettings
from squall.coordination.stores.open import make_store
from squall.coordination.stores.redis import store as redis_store
from squall.runtime.real.runtime import RealClock

pytestmark = pytest.mark.asyncio
ANSWER_S = 0.4
# A database other than 0 is selected before the connection counts as open.
PATHS = ("/0", "/1")


@asynccontextmanager
async def hung_redis(path: str) -> AsyncIterator[GuardedStore]:
    ended = asyncio.Event()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await ended.wait()
        writer.transport.abort()

    async with await asyncio.start_server(accept, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        clock, source = RealClock(), random.Random(1)
        store = make_store(f"redis://127.0.0.1:{port}{path}", clock, source)
        try:
            yield GuardedStore(store, clock, source, retry=RetrySettings(first_delay_s=0.1))
        finally:
            await store.close()
            ended.set()


async def failed_calls(store: GuardedStore, number: int) -> float:
    """How long it took until all of them had failed."""
    begun = time.monotonic()
    errors = await asyncio.gather(
        *(store.get("state/a") for _ in range(number)), return_exceptions=True
    )
    assert all(isinstance(error, StoreUnavailableError) for error in errors), errors
    return time.monotonic() - begun


@pytest.mark.parametrize("callers", [1, 2, 12])
@pytest.mark.parametrize("path", PATHS)
async def test_any_number_of_callers_fail_after_two_limits_and_the_circuit_opens(
    path: str, callers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_store, "ANSWER_S", ANSWER_S)
    monkeypatch.setattr(guarded_store, "HUNG_S", ANSWER_S / 2.0)
    async with hung_redis(path) as store:
        # Two time limits and the pause between them; a third try would take another limit.
        assert await failed_calls(store, callers) < 2.9 * ANSWER_S
        assert store.state is BreakerState.OPEN
