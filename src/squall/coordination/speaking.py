"""What an application calls to speak with other members, and to hear what happens.

Only ways to the parts of a running member; it decides nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, TypeVar, overload

from squall.coordination.assembly import Assembly
from squall.coordination.driven import DrivenHeartbeats
from squall.coordination.errors import NotRunningError
from squall.coordination.events import Event, Handler
from squall.coordination.onlooking import Onlooker
from squall.coordination.signals import Signals

T = TypeVar("T")
E = TypeVar("E", bound=Event)
NOT_RUNNING = "the coordinator is not running: use `async with`, or start()"


class Speaking:
    """The part of `Coordinator` that is about signals, other members and events."""

    _parts: Assembly | None
    _signals: Signals | None
    _driven: DrivenHeartbeats | None
    _onlooker: Onlooker | None

    @property
    def _running(self) -> Assembly:
        if self._parts is None:
            raise NotRunningError(NOT_RUNNING)
        return self._parts

    def _present(self, part: T | None) -> T:
        if part is None or self._parts is None:
            raise NotRunningError(NOT_RUNNING)
        return part

    # Signals; see `Signals` for the rest.

    @property
    def signals(self) -> Signals:
        return self._present(self._signals)

    @property
    def send_signal(self):
        return self.signals.send_signal

    @property
    def send_signal_with_retry(self):
        return self.signals.send_signal_with_retry

    @property
    def block_until_signal(self):
        return self.signals.block_until_signal

    @property
    def on_signal(self):
        return self.signals.on_signal

    # Other members.

    async def register_heartbeat(
        self, coordinator_id: str, sequence: int, metadata: Mapping[str, Any] | None = None
    ) -> int:
        """Says that a member lives that is no process of this library, and returns its
        incarnation; sequence 1 begins a new one. It is watched like every other member."""
        return await self._present(self._driven).register(coordinator_id, sequence, metadata)

    async def unregister_heartbeat(self, coordinator_id: str) -> None:
        """Such a member has ended: it left, and does not die."""
        await self._present(self._driven).leave(coordinator_id)

    def start_monitoring(self) -> None:
        """Tells `member:joined`, `member:left` and `member:changed` on this member, too; looks
        every `monitor_interval` and only reads. May be called again."""
        self._present(self._onlooker).start()

    def stop_monitoring(self) -> None:
        self._present(self._onlooker).stop()

    # Events.

    @overload
    def on(self, event: type[E], handler: Callable[[E], object]) -> None: ...
    @overload
    def on(self, event: str, handler: Handler) -> None: ...
    def on(self, event: str | type[Event], handler: Callable[[Any], Any]) -> None:
        """Calls `handler(event)` for each event of this type or name; "*" takes all."""
        self._running.bus.on(event, handler)

    @overload
    def once(self, event: type[E], handler: Callable[[E], object]) -> None: ...
    @overload
    def once(self, event: str, handler: Handler) -> None: ...
    def once(self, event: str | type[Event], handler: Callable[[Any], Any]) -> None:
        self._running.bus.once(event, handler)

    def off(self, event: str | type[Event], handler: Handler) -> None:
        self._running.bus.off(event, handler)

    @overload
    def events(self, event: type[E]) -> AsyncIterator[E]: ...
    @overload
    def events(self, event: str = "*") -> AsyncIterator[Event]: ...
    def events(self, event: str | type[Event] = "*") -> AsyncIterator[Any]:
        """Events of this type or name from now on, all without one; leaving the loop ends it."""
        return self._running.bus.iterate(event)
