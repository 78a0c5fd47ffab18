"""Runs work within the limits that `admission` decides.

The wire calls `enter` for each message before it decrypts the message, and releases the
slot when the work ends, in whatever way. This module never starts a task: the caller
owns the task that the work runs in.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from squall.api.errors import SquallError
from squall.cluster.control.admission import Admission, Admitted, Overrun, Token
from squall.cluster.control.load import Filling
from squall.cluster.wire.header import MessageClass
from squall.runtime.interfaces import Clock


class ControlOverrun(SquallError):
    """A peer has too many CONTROL messages waiting; the wire closes its connection."""

    def __init__(self, source: str, waiting: int) -> None:
        super().__init__(f"{source or 'a peer'} has {waiting} control messages waiting")
        self.source = source
        self.waiting = waiting


class WorkSlot:
    """A place for one piece of work. The caller releases it exactly once."""

    __slots__ = ("_release", "_turn", "token", "waits")

    def __init__(self, token: Token, waits: bool, release: Callable[[WorkSlot], None]) -> None:
        self.token = token
        # CONTROL only: await `turn` before the work starts.
        self.waits = waits
        self._release = release
        self._turn: asyncio.Future[None] | None = None

    async def turn(self) -> None:
        if self.waits:
            self._turn = asyncio.get_running_loop().create_future()
            await self._turn

    def release(self) -> None:
        self._release(self)

    def start(self) -> None:
        """Ends the wait in `turn`. If the task was cancelled in this round of the loop, the
        release that follows passes the slot on."""
        self.waits = False
        if self._turn is not None and not self._turn.done():
            self._turn.set_result(None)


class BoundedExecution:
    """Hands out the slots of one node; all servers of the node share them."""

    def __init__(
        self, admission: Admission, clock: Clock, warn: Callable[[Filling], None] | None = None
    ) -> None:
        self._admission = admission
        self._clock = clock
        self._warn = warn
        self._waiting: dict[Token, WorkSlot] = {}
        # For work that ends at once; see `Admission.passes`.
        self.passes = admission.passes

    def enter(self, message_class: MessageClass, source: str = "") -> WorkSlot | float:
        """A slot, or the number of seconds after which to ask again.

        Raises `ControlOverrun` for a source whose connection must be closed.
        """
        decision = self._admission.admit(message_class, self._clock.now(), source)
        if isinstance(decision, Admitted):
            return self._slot(decision)
        if isinstance(decision, Overrun):
            raise ControlOverrun(decision.source, decision.waiting)
        return decision.retry_after_s

    def _slot(self, admitted: Admitted) -> WorkSlot:
        slot = WorkSlot(admitted.token, admitted.waits, self._leave)
        if slot.waits:
            self._waiting[slot.token] = slot
        if admitted.warning is not None and self._warn is not None:
            try:
                self._warn(admitted.warning)
            except BaseException:
                # The caller never gets the slot, so it would never be released.
                slot.release()
                raise
        return slot

    def _leave(self, slot: WorkSlot) -> None:
        started = self._admission.release(slot.token, self._clock.now())
        if not self._waiting:
            return
        self._waiting.pop(slot.token, None)
        for token in started:
            self._waiting.pop(token).start()
