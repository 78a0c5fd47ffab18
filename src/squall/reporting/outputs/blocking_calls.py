"""Runs blocking calls of libraries in threads that never keep the command from ending.

The process joins the threads of `asyncio.to_thread` at its end, so a backend that hangs would hang
the command. These threads are daemons: after a timeout the command gives them up.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")


async def in_thread(call: Callable[..., T], *arguments: Any, **named: Any) -> T:
    """Returns the result of the call. The thread goes on if the caller is cancelled."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if done.cancelled():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)  # type: ignore[arg-type]

    def work() -> None:
        result, failure = None, None
        try:
            result = call(*arguments, **named)
        except BaseException as error:
            # `StopIteration` cannot be put into a future.
            failure = RuntimeError(str(error)) if isinstance(error, StopIteration) else error
        # The loop is closed if the call was given up long ago.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(settle, result, failure)

    threading.Thread(target=work, name="squall-output", daemon=True).start()
    return await done
