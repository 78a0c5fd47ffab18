"""Stops a member within ten seconds, whatever hangs.

First the plugins return what they hold (`before_stop`), then the work of the leader ends and the
lease is released, then the plugins close what they use (`on_stop`), and at last the registration is
marked as left. Each step has a deadline; a step that misses it does not
prevent the next one. The lease is released only when no work runs under it: if some work ignores
its cancellation, the lease runs out by itself, and the next steps begin although the work runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextvars import ContextVar
from typing import Any

from squall.coordination.election.leadership import Leadership
from squall.coordination.election.single_instance import SingleInstance
from squall.coordination.events import OnFailure
from squall.coordination.members.boots import BootLoop
from squall.coordination.plugin import CoordinatorPlugin
from squall.coordination.store_errors import StoreUnavailableError

# The tenth second is for tasks that are left, and for closing the store.
STOP_S = 9.0
LAST_TASKS_S = 0.5
# The shares of the first step and of the last two.
PLUGINS_S, CLOSE_S, LEAVE_S = 2.0, 0.75, 0.75
# The task that called `stop`, for plugins in `before_stop`: it may be one of their own workers,
# which must then not be cancelled.
STOPPER: ContextVar[asyncio.Task[Any] | None] = ContextVar("stopper", default=None)


async def stop_member(
    plugins: Iterable[CoordinatorPlugin],
    leads: Leadership | SingleInstance | None,
    boots: BootLoop | None,
    on_failure: OnFailure,
) -> float:
    """Returns how many seconds are left for the last tasks."""
    begun = asyncio.get_running_loop().time()
    if boots is not None:
        boots.stopping = True
    STOPPER.set(asyncio.current_task())
    stopped = list(plugins)
    returning = [(each.name, each.before_stop) for each in stopped]
    await _until(begun + PLUGINS_S, _all(returning, on_failure), on_failure)
    if leads is not None:
        leads.exempt(asyncio.current_task())
        await _until(begun + STOP_S - LEAVE_S - CLOSE_S, leads.end(), on_failure)
        leads.cancel_scopes()
    closing = [(each.name, each.on_stop) for each in stopped]
    await _until(begun + STOP_S - LEAVE_S, _all(closing, on_failure), on_failure)
    if boots is not None:
        await _until(begun + STOP_S, boots.leave(), on_failure)
    return begun + STOP_S + LAST_TASKS_S - asyncio.get_running_loop().time()


async def _all(
    calls: Iterable[tuple[str, Callable[[], Awaitable[None]]]], on_failure: OnFailure
) -> None:
    """Calls a method of all plugins concurrently, so that a slow one does not delay the others."""

    async def one(name: str, call: Callable[[], Awaitable[None]]) -> None:
        try:
            await call()
        except Exception as error:
            on_failure(f"{name}_stop_failed", error)

    await asyncio.gather(*(one(name, call) for name, call in calls))


async def _until(deadline: float, step: Awaitable[None], on_failure: OnFailure) -> None:
    """Runs a step until its deadline. A failure is reported and does not prevent the next step."""
    try:
        async with asyncio.timeout_at(deadline):
            await step
    except (TimeoutError, StoreUnavailableError):
        return
    except Exception as error:
        on_failure("stop_failed", error)
