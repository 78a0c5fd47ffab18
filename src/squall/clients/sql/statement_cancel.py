"""Cancels statements on the server whose calls have ended here."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

# A server that hangs does not answer this either.
_WITHIN_S = 2.0
# The event loop refers to its tasks weakly.
_running: set[asyncio.Task[None]] = set()


def start_cancel(request: Coroutine[Any, Any, None]) -> None:
    """Sends the request over a connection of its own and waits for nothing."""
    task = asyncio.ensure_future(_sent(request))
    _running.add(task)
    task.add_done_callback(_running.discard)


async def _sent(request: Coroutine[Any, Any, None]) -> None:
    try:
        async with asyncio.timeout(_WITHIN_S):
            await request
    except Exception:
        # The statement then runs to its end.
        return
