"""The end of a member, in ten seconds whatever hangs.

First the plugins put away what they hold, then work ends and the lease is given up, then the
registration says that the member left. Each step has its time; one that takes longer does not keep
the next one from being done. The lease is given up only when nothing runs under it any more: if
something ignores its cancellation, the lease runs out by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from contextvars import ContextVar
from typing import Any

from squall.coordination.alone import Alone
from squall.coordination.events import OnFailure
from squall.coordination.leadership import Leadership
from squall.coordination.life import Life
from squall.coordination.plugin import CoordinatorPlugin
from squall.coordination.stores.errors import StoreUnavailableError

STOP_S = 9.0
"""The tenth second is for the end of the store."""
PLUGINS_S, LEAVE_S = 2.0, 1.5
"""Of that, for the first and for the last step."""
STOPPER: ContextVar[asyncio.Task[Any] | None] = ContextVar("stopper", default=None)
"""For plugins in `on_stop`: the task that asked for the stop. Who ends work must not end that."""


async def leave(
    plugins: Iterable[CoordinatorPlugin],
    leads: Leadership | Alone | None,
    life: Life | None,
    on_failure: OnFailure,
) -> None:
    begun = asyncio.get_running_loop().time()
    if life is not None:
        life.stopping = True
    STOPPER.set(asyncio.current_task())
    await _until(begun + PLUGINS_S, _stop(plugins, on_failure), on_failure)
    if leads is not None:
        leads.excuse(asyncio.current_task())
        await _until(begun + STOP_S - LEAVE_S, leads.end(), on_failure)
        leads.cancel_scopes()
    if life is not None:
        await _until(begun + STOP_S, life.leave(), on_failure)


async def _stop(plugins: Iterable[CoordinatorPlugin], on_failure: OnFailure) -> None:
    """All at once: a slow one keeps no other from it."""

    async def stop(plugin: CoordinatorPlugin) -> None:
        try:
            await plugin.on_stop()
        except Exception as error:
            on_failure(f"{plugin.name}_stop_failed", error)

    await asyncio.gather(*map(stop, plugins))


async def _until(deadline: float, step: Awaitable[None], on_failure: OnFailure) -> None:
    """A step that fails does not keep the next one from being done, either."""
    try:
        async with asyncio.timeout_at(deadline):
            await step
    except (TimeoutError, StoreUnavailableError):
        return
    except Exception as error:
        on_failure("stop_failed", error)
