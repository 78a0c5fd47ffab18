"""What an application calls to speak with other members, and to hear what happens.

Only ways to the parts of a running member; it decides nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from squall.coordination.assembly import Assembly
from squall.coordination.errors import NotRunningError
from squall.coordination.events import Event, Handler
from squall.coordination.signals import Signals


class Speaking:
    """The part of `Coordinator` that is about signals and events."""

    _parts: Assembly | None
    _signals: Signals | None

    @property
    def _running(self) -> Assembly:
        if self._parts is None:
            raise NotRunningError("the coordinator is not running: use `async with`, or start()")
        return self._parts

    # Signals; see `Signals` for the rest.

    @property
    def signals(self) -> Signals:
        if self._signals is None or self._parts is None:
            raise NotRunningError("the coordinator is not running: use `async with`, or start()")
        return self._signals

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

    # Events.

    def on(self, event: str | type[Event], handler: Handler) -> None:
        self._running.bus.on(event, handler)

    def once(self, event: str | type[Event], handler: Handler) -> None:
        self._running.bus.once(event, handler)

    def off(self, event: str | type[Event], handler: Handler) -> None:
        self._running.bus.off(event, handler)

    def events(self, event: str | type[Event] = "*") -> AsyncIterator[Event]:
        return self._running.bus.iterate(event)
