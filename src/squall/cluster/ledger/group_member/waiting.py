"""Completes futures whose callers may have stopped waiting."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

T = TypeVar("T")


def settle(future: asyncio.Future[T] | None, value: T) -> None:
    if future is not None and not future.done():
        future.set_result(value)


def refuse(future: asyncio.Future[Any] | None, error: Exception) -> None:
    if future is not None and not future.done():
        future.set_exception(error)
        # Marks the exception as retrieved, so asyncio does not log it when no caller waits.
        future.exception()
