"""A Redis that accepts connections and answers nothing: callers do not wait for each other."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from squall.coordination.store_errors import StoreUnavailableError
from squall.coordination.stores.breaker import BreakerState
from squall.coordination.stores.guarded_store import GuardedStore, RetrySettings
from squall.coordination.stores.open import make_store
from squall.coordination.stores.redis import store as redis_store
from squall.coordination.stores.redis.connection import (
    RedisAddress,
    RedisConnection,
    RedisTimeout,
)
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


@pytest.mark.parametrize("callers", [1, 2, 12])
@pytest.mark.parametrize("path", PATHS)
async def test_any_number_of_callers_fail_after_one_limit_and_the_circuit_opens(
    path: str, callers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Long enough for many callers that a machine which stands still for seconds changes nothing.
    answer_s = 1.0 if callers > 2 else ANSWER_S
    monkeypatch.setattr(redis_store, "ANSWER_S", answer_s)
    async with hung_redis(path) as store:
        begun = time.monotonic()
        errors = await asyncio.gather(
            *(store.get("state/a") for _ in range(callers)), return_exceptions=True
        )
        # Half of what twelve callers would take one after another.
        assert callers <= 2 or time.monotonic() - begun < 6.0 * answer_s
        assert store.state is BreakerState.OPEN
        for error in errors:
            assert isinstance(error, StoreUnavailableError) and error.attempts == 1, error
            assert str(error).endswith("(1 try; the circuit is open)")


async def test_one_limit_covers_the_opening_of_the_connection_and_the_reply() -> None:
    answer_s = 3.0
    selected, ended = asyncio.Event(), asyncio.Event()

    async def answer_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1024)
        await asyncio.sleep(answer_s * 0.9)
        writer.write(b"+OK\r\n")
        selected.set()
        await ended.wait()
        writer.transport.abort()

    async with await asyncio.start_server(answer_one, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        connection = RedisConnection(
            RedisAddress.of(f"redis://127.0.0.1:{port}/1"), RealClock(), answer_s
        )
        call = asyncio.ensure_future(connection.call(connection.packed("PING")))
        await selected.wait()
        begun = time.monotonic()
        with pytest.raises(RedisTimeout, match="no answer within 3 s"):
            await call
        # The opening took most of the limit: a tenth of it was left, not a whole one.
        assert time.monotonic() - begun < answer_s * 0.9
        connection.close()
        ended.set()
