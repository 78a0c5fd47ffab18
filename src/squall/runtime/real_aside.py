"""Long computations beside the loop of a real process.

Only for work that is pure: a thread reads what it was given and returns what it made. The
simulation has no threads; there the same work is done where it is asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


async def in_thread(work: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
    """The loop goes on meanwhile, more slowly. A cancelled call leaves the thread to its end."""
    return await asyncio.to_thread(work, *args, **options)
