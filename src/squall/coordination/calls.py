"""One try of one store operation, with a limit on its time.

Heartbeats and renewals are decided by their own clocks, so a call that hangs is as good as
one that failed. It must never turn the end of somebody else's time into a failed call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

from squall.coordination.errors import StoreUnavailableError

T = TypeVar("T")


class _Limit:
    """Cancels a task when its time is over. `asyncio.timeout` does the same for three times
    the price, which each beat of each member would pay."""

    __slots__ = ("passed", "task")

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self.task = task
        self.passed = False

    def __call__(self) -> None:
        self.passed = True
        self.task.cancel()


async def within(seconds: float, call: Awaitable[T], what: str) -> T:
    """`StoreUnavailableError` when there is no answer in time: the outcome is unknown."""
    task = asyncio.current_task()
    assert task is not None
    limit, cancelled_before = _Limit(task), task.cancelling()
    timer = asyncio.get_running_loop().call_later(seconds, limit)
    try:
        return await call
    except asyncio.CancelledError as error:
        # Who else cancelled the task in the same moment wants it to end.
        if limit.passed and task.cancelling() <= cancelled_before + 1:
            raise StoreUnavailableError(f"{what}: no answer within {seconds:.3g} s") from error
        raise
    finally:
        timer.cancel()
        if limit.passed:
            task.uncancel()
