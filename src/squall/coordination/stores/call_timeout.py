"""A time limit on one store call.

Heartbeats and renewals have deadlines of their own, so for them a call that hangs is a call that
failed. A cancellation from outside must never be turned into a failed call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

from squall.coordination.errors import StoreUnavailableError

T = TypeVar("T")


class _Limit:
    """Cancels a task when its time is over. `asyncio.timeout` does the same at three times the
    cost, for each heartbeat of each member."""

    __slots__ = ("passed", "task")

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self.task = task
        self.passed = False

    def __call__(self) -> None:
        self.passed = True
        self.task.cancel()


async def within(seconds: float, call: Awaitable[T], what: str) -> T:
    """Awaits the call. Raises `StoreUnavailableError` if it does not answer in time: its outcome is
    then unknown."""
    task = asyncio.current_task()
    assert task is not None
    limit, cancelled_before = _Limit(task), task.cancelling()
    timer = asyncio.get_running_loop().call_later(seconds, limit)
    try:
        return await call
    except asyncio.CancelledError as error:
        # More cancellations than ours: another caller cancelled the task at the same moment, and
        # that cancellation wins.
        if limit.passed and task.cancelling() <= cancelled_before + 1:
            raise StoreUnavailableError(f"{what}: no answer within {seconds:.3g} s") from error
        raise
    finally:
        timer.cancel()
        if limit.passed:
            task.uncancel()
