"""Runs long computations in a thread beside the event loop.

Only for pure work: a thread reads its arguments and returns a result. The simulation has no
threads and does the same work in place.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


async def in_thread(work: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
    """The loop runs on, more slowly. Cancelling the call does not stop the thread."""
    return await asyncio.to_thread(work, *args, **options)
