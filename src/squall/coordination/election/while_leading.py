"""Waits on the store for no longer than a term lasts.

A leader that resigns first lets its work finish. Work that sleeps in the store must not delay that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from squall.coordination.election.term import Term
from squall.runtime.tasks import TaskGroup


async def while_leading(tasks: TaskGroup, term: Term, call: Coroutine[Any, Any, Any]) -> None:
    """Returns when the call or the term has ended; cancels a call that is left."""
    pair = (tasks.start("wait", call), tasks.start("term", _ended(term)))
    both = [token.task for token in pair if token.task is not None]
    if not both:
        return
    try:
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in both:
            task.cancel()
        await asyncio.wait(both)


async def _ended(term: Term) -> None:
    await term.ended.wait()
