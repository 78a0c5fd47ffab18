"""`start_monitoring`: a member reports changes of the other members to its own application.

The monitor of the leader decides about warnings and deaths, and announces a death once. This
watcher only reads, on any member that wants it.
"""

from __future__ import annotations

from squall.coordination.errors import StoreError
from squall.coordination.events import LeaderChanged
from squall.coordination.member_parts import MemberParts
from squall.coordination.operations.watcher import Watcher, read_changes
from squall.runtime.tasks import TaskState, TaskToken


class MemberWatcher:
    """Reads all members every `monitor_interval` and emits what changed."""

    def __init__(self, parts: MemberParts) -> None:
        self._parts = parts
        self._token: TaskToken | None = None

    @property
    def runs(self) -> bool:
        return self._token is not None and self._token.state is TaskState.RUNNING

    def start(self) -> None:
        if not self.runs:
            self._token = self._parts.tasks.start("onlooker", self._watch())

    def stop(self) -> None:
        token, self._token = self._token, None
        if token is not None:
            self._parts.tasks.cancel(token)

    async def _watch(self) -> None:
        parts, watcher = self._parts, Watcher()
        codec = parts.codec if parts.signs_heartbeats else None
        while True:
            try:
                changes = await read_changes(parts.patient, watcher, codec)
            except StoreError:
                changes = []
            for event in changes:
                # Every member reports the leader already, from the lease.
                if not isinstance(event, LeaderChanged):
                    parts.bus.emit(event)
            await parts.clock.sleep(parts.timing.monitor_interval)
