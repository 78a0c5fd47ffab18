"""Driver of the server side: runs work within the limits that `admission` decides.

Work is given as a function that makes a coroutine, so that shed work leaves nothing behind
that was never awaited. The slot is given back when the work ends, in whatever way; nothing
is cleaned up later. It must never start a task: who calls `run` owns the task it runs in.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from squall.control.admission import Admission, Admitted, Overrun, Shed, Token
from squall.control.classes import MessageClass
from squall.control.errors import ControlOverrun, Overloaded
from squall.control.load import Filling
from squall.runtime.interfaces import Clock

T = TypeVar("T")


class BoundedExecution:
    """One per node: all of its servers share the limits."""

    def __init__(
        self, admission: Admission, clock: Clock, warn: Callable[[Filling], None] | None = None
    ) -> None:
        self._admission = admission
        self._clock = clock
        self._warn = warn
        self._waiting: dict[Token, asyncio.Future[None]] = {}

    async def run(
        self, message_class: MessageClass, work: Callable[[], Awaitable[T]], *, source: str = ""
    ) -> T:
        """Raises `Overloaded` at once if the work is shed, `ControlOverrun` if the source
        has to be cut off; otherwise what the work returns or raises."""
        admitted = self._admit(message_class, source)
        try:
            if admitted.warning is not None and self._warn is not None:
                self._warn(admitted.warning)
            if admitted.waits:
                await self._turn(admitted.token)
            return await work()
        finally:
            self._release(admitted.token)

    def _admit(self, message_class: MessageClass, source: str) -> Admitted:
        decision = self._admission.admit(message_class, self._clock.now(), source)
        match decision:
            case Shed():
                raise Overloaded(decision.retry_after_s)
            case Overrun():
                raise ControlOverrun(decision.source, decision.waiting)
            case Admitted():
                return decision

    async def _turn(self, token: Token) -> None:
        turn = self._waiting[token] = asyncio.get_running_loop().create_future()
        try:
            await turn
        finally:
            del self._waiting[token]

    def _release(self, token: Token) -> None:
        for started in self._admission.release(token, self._clock.now()):
            # Its task may have been cancelled in this very round; then its own release
            # follows, and passes the slot on.
            turn = self._waiting[started]
            if not turn.done():
                turn.set_result(None)
