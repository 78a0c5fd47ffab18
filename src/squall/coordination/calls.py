"""One try of one store operation, with a limit on its time.

Heartbeats and renewals are decided by their own clocks, so a call that hangs is as good as
one that failed. It must never turn the end of somebody else's time into a failed call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from squall.coordination.errors import StoreUnavailableError

T = TypeVar("T")


async def within(seconds: float, call: Awaitable[T], what: str) -> T:
    """`StoreUnavailableError` when there is no answer in time: the outcome is unknown."""
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            return await call
    except TimeoutError as error:
        if limit.expired():
            raise StoreUnavailableError(f"{what}: no answer within {seconds:.3g} s") from error
        raise
