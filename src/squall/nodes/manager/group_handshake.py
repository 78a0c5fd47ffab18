"""What managers of one group compare when they connect: their formation and their timers.

A manager with other timers, or with the data directory of another group, gets no link:
its leases and votes would rest on other numbers than those of the rest. Both sides say so
in their logs and in `squall group status`. A manager that does not know its group yet, or
that stands in an older epoch, is taken and brought up.
"""

from __future__ import annotations

from dataclasses import replace
from hashlib import blake2b

from squall.ledger.replica.ledger import GroupLedger
from squall.nodes.manager.group_watch import GroupWatch
from squall.nodes.manager.log import ManagerLog
from squall.runtime.sections import TimerSettings
from squall.runtime.settings import digest
from squall.wire.profile import GroupSettings
from squall.wire.switchboard import Switchboard


class GroupHandshake:
    def __init__(
        self, board: Switchboard, watch: GroupWatch, *, name: str, timers: TimerSettings
    ) -> None:
        """`name` is that under which the group was to be formed."""
        self._board = board
        self._watch = watch
        self._settings = GroupSettings(group=name, timers=bytes.fromhex(digest(timers)))
        self._told: set[str] = set()
        self._present(self._settings)

    def look(self, ledger: ManagerLog) -> None:
        """Once in a while: the group may be known by now; who is refused is told once."""
        if not isinstance(ledger, GroupLedger):
            return
        core = ledger.replica.core
        formed = blake2b(core.group.encode(), digest_size=16).digest() if core.group else b""
        known = replace(self._settings, epoch=core.fence.epoch, digest=formed)
        if known != self._settings:
            self._present(known)
        transport = self._watch.transport
        if transport is not None:
            for node, text in transport.refusals().items():
                self._tell(f"{node} is no member for this manager: {text}")
        for node, heard in self._watch.heard.items():
            if core.group and heard.note.group not in ("", core.group):
                self._tell(f"{node} has the data directory of another group")

    def _present(self, settings: GroupSettings) -> None:
        self._settings = settings
        self._board.profile = replace(self._board.profile, settings=settings)

    def _tell(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self._watch.alarm(text)
