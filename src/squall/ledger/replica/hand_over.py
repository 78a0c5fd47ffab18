"""A planned change of primary: the most caught-up member takes the next view.

The primary proposes nothing more, waits until a follower holds everything and everything
is committed, and asks that follower to lead: of several the one that it heard last, since
a dead one holds everything too. If no new view begins in time, it goes on.
"""

from __future__ import annotations

from squall.ledger.replica.messages import TakeOver
from squall.ledger.replica.normal import Normal
from squall.ledger.replica.reads import Rounds
from squall.ledger.replica.state import Core
from squall.runtime.interfaces import NodeId


class HandOver:
    def __init__(self, core: Core, normal: Normal, rounds: Rounds) -> None:
        self._core = core
        self._normal = normal
        self._rounds = rounds
        self._until = 0.0
        self._asked = False

    @property
    def is_under_way(self) -> bool:
        return self._until > 0.0

    def begin(self) -> bool:
        core = self._core
        if not core.leading or not core.serving or not core.others() or core.holds_members():
            return False
        self._until = core.now + core.timers.follower_timeout_s
        self._asked = False
        self.proceed()
        return True

    def proceed(self) -> None:
        core = self._core
        if not self.is_under_way:
            return
        if not core.leading or core.now >= self._until:
            self._until = 0.0
            return
        if self._asked or core.commit < core.log.last:
            return
        ready = [node for node in core.others() if self._match(node) >= core.log.last]
        if ready:
            self._asked = True
            heard_last = max(ready, key=self._rounds.acked_by)
            core.send(heard_last, TakeOver(core.log.last, core.log.end()))

    def _match(self, node: NodeId) -> int:
        progress = self._normal.progress.get(node)
        return progress.match if progress is not None else -1
