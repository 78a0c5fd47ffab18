"""Driver of the server side: work runs within the limits that `admission` decides.

`enter` is what the wire calls for each message before it decrypts it. `run` is for
everything else; it takes a function that makes a coroutine, so that shed work leaves
nothing behind that was never awaited.

A slot is given back when the work ends, in whatever way; nothing is cleaned up later. This
module must never start a task: who enters owns the task that the work runs in.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from squall.control.admission import Admission, Admitted, Overrun, Token
from squall.control.classes import MessageClass
from squall.control.errors import ControlOverrun, Overloaded
from squall.control.load import Filling
from squall.runtime.interfaces import Clock

T = TypeVar("T")


class Slot:
    """A place for one piece of work; released exactly once."""

    __slots__ = ("_release", "_turn", "token", "waits")

    def __init__(self, token: Token, waits: bool, release: Callable[[Slot], None]) -> None:
        self.token = token
        self.waits = waits
        """CONTROL only: `turn` is to be awaited before the work starts."""
        self._release = release
        self._turn: asyncio.Future[None] | None = None

    async def turn(self) -> None:
        if self.waits:
            self._turn = asyncio.get_running_loop().create_future()
            await self._turn

    def release(self) -> None:
        self._release(self)

    def call_up(self) -> None:
        """Its turn has come. If its task was cancelled in this very round, the release
        that follows passes the slot on."""
        self.waits = False
        if self._turn is not None and not self._turn.done():
            self._turn.set_result(None)


class BoundedExecution:
    """One per node: all of its servers share the limits."""

    def __init__(
        self, admission: Admission, clock: Clock, warn: Callable[[Filling], None] | None = None
    ) -> None:
        self._admission = admission
        self._clock = clock
        self._warn = warn
        self._waiting: dict[Token, Slot] = {}
        self.passes = admission.passes
        """For work that ends at once; see there."""

    def enter(self, message_class: MessageClass, source: str = "") -> Slot | float:
        """A slot, or after how many seconds to ask again.

        Raises `ControlOverrun` for a source whose connection is to be closed.
        """
        decision = self._admission.admit(message_class, self._clock.now(), source)
        if isinstance(decision, Admitted):
            return self._slot(decision)
        if isinstance(decision, Overrun):
            raise ControlOverrun(decision.source, decision.waiting)
        return decision.retry_after_s

    async def run(
        self, message_class: MessageClass, work: Callable[[], Awaitable[T]], *, source: str = ""
    ) -> T:
        """What the work returns or raises; `Overloaded` or `ControlOverrun` without it."""
        slot = self.enter(message_class, source)
        if not isinstance(slot, Slot):
            raise Overloaded(slot)
        try:
            await slot.turn()
            return await work()
        finally:
            slot.release()

    def _slot(self, admitted: Admitted) -> Slot:
        slot = Slot(admitted.token, admitted.waits, self._leave)
        if slot.waits:
            self._waiting[slot.token] = slot
        if admitted.warning is not None and self._warn is not None:
            try:
                self._warn(admitted.warning)
            except BaseException:
                slot.release()
                raise
        return slot

    def _leave(self, slot: Slot) -> None:
        started = self._admission.release(slot.token, self._clock.now())
        if not self._waiting:
            return
        self._waiting.pop(slot.token, None)
        for token in started:
            self._waiting.pop(token).call_up()
