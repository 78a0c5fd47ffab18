"""Lets the start of a member survive a short outage of its store or of its secret source."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from squall.runtime.backoff import Backoff, Retries
from squall.runtime.interfaces import Clock

T = TypeVar("T")
# 7 s in all: longer than the failover of a Redis replica or the restart of a server usually takes,
# and short enough that a wrong address is reported soon.
START_BACKOFF = Backoff(first_s=1.0, tries=4)


async def retry_start(
    clock: Clock, call: Callable[[], Awaitable[T]], unavailable: type[Exception]
) -> T:
    """Repeats a call that raises `unavailable`; raises the last of these errors."""
    retries = Retries(START_BACKOFF)
    while True:
        try:
            return await call()
        except unavailable:
            delay_s = retries.next_delay_s()
            if delay_s is None:
                raise
        await clock.sleep(delay_s)
