"""The same as `hello_databases.py` with the libraries alone, in loops: prints how many calls were
made, and the CPU time that they took."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

import uvloop

Call = Callable[[int], Awaitable[Any]]


async def _postgres(url: str) -> Call:
    import asyncpg

    connection = await asyncpg.connect(url)
    statement = await connection.prepare("SELECT abalance FROM pgbench_accounts WHERE aid = $1")
    return lambda number: statement.fetch(number % 100_000 + 1)


async def _mysql(url: str) -> Call:
    import asyncmy

    parts = urlsplit(url)
    connection = await asyncmy.connect(
        host=parts.hostname, port=parts.port or 3306, user=parts.username, db=parts.path.strip("/")
    )
    statement = await connection.prepare("SELECT balance FROM accounts WHERE id = ?")
    return lambda number: statement.execute((number % 1000 + 1,))


async def _mongodb(url: str) -> Call:
    from pymongo import AsyncMongoClient

    accounts = AsyncMongoClient(url, directConnection=True)["shop"]["accounts"]
    return lambda number: accounts.find({"_id": 1}, limit=1).to_list()


async def main(kind: str, url: str, users: int, seconds: float) -> None:
    opened = {"postgres": _postgres, "mysql": _mysql, "mongodb": _mongodb}[kind]
    calls = [await opened(url) for _ in range(users)]
    counts = [0] * users
    ends = time.perf_counter() + seconds

    async def loop(user: int) -> None:
        call, number = calls[user], 0
        while time.perf_counter() < ends:
            await call(number)
            number += 1
        counts[user] = number

    began = time.process_time()
    await asyncio.gather(*map(loop, range(users)))
    print(sum(counts), time.process_time() - began)


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])))
