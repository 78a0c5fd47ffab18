"""A member that watches the others for its own application: `start_monitoring`.

The look of the coordinator decides about warnings and deaths, and tells a death once for all;
this one only reads, on whichever member wants it, and tells what it sees there.
"""

from __future__ import annotations

from squall.coordination.assembly import Assembly
from squall.coordination.errors import StoreError
from squall.coordination.events import LeaderChanged
from squall.coordination.watching import Watcher, look_once
from squall.runtime.tasks import TaskState, TaskToken


class Onlooker:
    """Of one member."""

    def __init__(self, parts: Assembly) -> None:
        self._parts = parts
        self._token: TaskToken | None = None

    @property
    def runs(self) -> bool:
        return self._token is not None and self._token.state is TaskState.RUNNING

    def start(self) -> None:
        if not self.runs:
            self._token = self._parts.tasks.start("onlooker", self._look())

    def stop(self) -> None:
        token, self._token = self._token, None
        if token is not None:
            self._parts.tasks.cancel(token)

    async def _look(self) -> None:
        parts, watcher = self._parts, Watcher()
        codec = parts.codec if parts.signs_heartbeats else None
        while True:
            try:
                told = await look_once(parts.patient, watcher, codec)
            except StoreError:
                told = []
            for event in told:
                # Every member tells of the coordinator already, by its lease.
                if not isinstance(event, LeaderChanged):
                    parts.bus.emit(event)
            await parts.clock.sleep(parts.timing.monitor_interval)
