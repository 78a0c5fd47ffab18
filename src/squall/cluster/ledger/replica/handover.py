"""Hand-over: a planned change of primary.

The primary stops proposing, waits until its whole log is committed and a follower holds all of
it, and asks that follower to lead the next view. Of several it picks the one that acknowledged
the latest round: a follower that has died may hold the whole log too. If no new view begins
within the follower timeout, the primary continues.
"""

from __future__ import annotations

from squall.cluster.ledger.replica.heartbeat_rounds import Rounds
from squall.cluster.ledger.replica.messages import TakeOver
from squall.cluster.ledger.replica.normal_operation import Normal
from squall.cluster.ledger.replica.state import Core
from squall.runtime.interfaces import NodeId


class HandOver:
    """Hands the lead from this primary to a follower that holds its whole log."""

    def __init__(self, core: Core, normal: Normal, rounds: Rounds) -> None:
        self._core = core
        self._normal = normal
        self._rounds = rounds
        # Every commit reads it.
        self.is_under_way = False
        self._until = 0.0
        self._asked = False

    def begin(self) -> bool:
        core = self._core
        if not core.leading or not core.serving or not core.others() or core.holds_members():
            return False
        self.is_under_way = True
        self._until = core.now + core.timers.follower_timeout_s
        self._asked = False
        self.proceed()
        return True

    def proceed(self) -> None:
        core = self._core
        if not self.is_under_way:
            return
        if not core.leading or core.now >= self._until:
            self.is_under_way = False
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
