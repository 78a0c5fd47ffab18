"""Heartbeat rounds: a primary confirms that it still leads (R2).

A round is a numbered heartbeat. A member acknowledges it only in status NORMAL in that view.
Acknowledgments from a quorum confirm every request that arrived before the round began: strong
reads, execution grants, "still primary". This needs no lease and no clock. A primary that
reaches no quorum for check_quorum_s steps down. Its first round may take sync_limit_s longer,
because the followers answer only after they have stored its log.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from squall.cluster.ledger.replica.effects import Confirmed, Unconfirmed
from squall.cluster.ledger.replica.messages import Heartbeat, Packet, RoundAck
from squall.cluster.ledger.replica.state import Core
from squall.cluster.ledger.replica.types import Status
from squall.runtime.interfaces import NodeId


class Round(NamedTuple):
    """A heartbeat round that no quorum has acknowledged yet."""

    number: int
    at: float
    tokens: tuple[int, ...]
    """The confirmations that were requested before this round began (R5)."""
    commit: int
    """The commit number when the round began: a strong read must see at least this op."""


OPENING_S = 0.25
"""The interval of rounds at most while a view is being opened."""


class Rounds:
    """Starts rounds, counts acknowledgments, and steps down a primary that has no quorum."""

    def __init__(self, core: Core) -> None:
        self._core = core
        # Number of the last round. It grows over all views of a boot, so that a late
        # acknowledgment from an earlier view never counts in a later one.
        self.number = 0
        # Open rounds by rising number. At most one has tokens; later requests collect in
        # `_waiting` until it is confirmed, so that callers share rounds.
        self._open: deque[Round] = deque()
        self._waiting: list[int] = []
        # The last round that each member acknowledged in this view, itself included.
        self._acked: dict[NodeId, int] = {}
        # Start of the latest round that a quorum acknowledged.
        self._quorum_at = 0.0
        # A quorum has acknowledged at least one round of this view.
        self._had_quorum = False
        self._beat_at = 0.0
        # Learners receive heartbeats; their acknowledgments do not count.
        self.listeners: tuple[NodeId, ...] = ()

    def lead(self) -> None:
        """Starts the rounds of a new view; acknowledgments of earlier views no longer count."""
        self._open.clear()
        self._acked.clear()
        self._quorum_at = self._core.now
        self._had_quorum = False
        self.begin()

    def begin(self) -> None:
        core = self._core
        self.number += 1
        tokens, self._waiting = tuple(self._waiting), []
        self._open.append(Round(self.number, core.now, tokens, core.commit))
        self._acked[core.me.node] = self.number
        # Until the first entry of the view is committed the next round comes soon: members that
        # were late for this one, above all at the formation, learn of the view by it.
        pause_s = core.timers.heartbeat_s
        self._beat_at = core.now + (pause_s if core.serving else min(pause_s, OPENING_S))
        heartbeat = Heartbeat(
            self.number, core.commit, core.log.base_op + 1, core.clock.read(core.now)
        )
        core.send((*core.others(), *self.listeners), heartbeat)
        self._count()

    def confirm(self, token: int) -> None:
        if not self.may_confirm():
            self._core.effects.append(Unconfirmed((token,)))
            return
        self._waiting.append(token)
        if not any(each.tokens for each in self._open):
            self.begin()

    def may_confirm(self) -> bool:
        """False until every inherited entry is committed (R2), and while the log ends with a
        membership change: once that commits, the old members are no longer a quorum."""
        core = self._core
        return core.leading and core.serving and not core.holds_members()

    def drop(self) -> None:
        tokens = [token for each in self._open for token in each.tokens] + self._waiting
        self._open.clear()
        self._waiting = []
        if tokens:
            self._core.effects.append(Unconfirmed(tuple(tokens)))

    # As a follower.

    def acknowledges(self, packet: Packet) -> bool:
        core = self._core
        return core.status is Status.NORMAL and packet.fence == core.fence and not core.leading

    def acknowledge(self, packet: Packet, heartbeat: Heartbeat) -> None:
        core = self._core
        checksum = core.log.checksum(core.durable_op)
        if checksum is None:
            return
        ack = RoundAck(heartbeat.round, packet.boot, core.durable_op, checksum, core.version)
        core.send(packet.sender.node, ack, after=core.promised, fence=packet.fence)

    # As the primary.

    def acked(self, packet: Packet, ack: RoundAck) -> None:
        core = self._core
        # Rounds are numbered per boot: an answer to an earlier boot must not count here.
        if ack.primary != core.boot:
            return
        node = packet.sender.node
        self._acked[node] = max(self._acked.get(node, 0), ack.round)
        self._count()

    def acked_by(self, node: NodeId) -> int:
        """Returns the last round of this view that the member acknowledged."""
        return self._acked.get(node, 0)

    def tick(self) -> None:
        core = self._core
        if core.now - self._quorum_at > self._quorum_timeout_s():
            core.step_down("no quorum answers")
        elif core.oldest_sync_s() > core.timers.sync_limit_s:
            core.step_down("its disk does not answer")
        elif core.now >= self._beat_at:
            self.begin()

    def _quorum_timeout_s(self) -> float:
        timers = self._core.timers
        return timers.check_quorum_s + (0.0 if self._had_quorum else timers.sync_limit_s)

    def deadline(self) -> float:
        return self._beat_at

    def shift(self, gap: float) -> None:
        self._quorum_at += gap

    def _count(self) -> None:
        core = self._core
        config = core.config
        if config is None:
            return
        rounds = sorted((self._acked.get(node, 0) for node in config.nodes), reverse=True)
        reached = rounds[config.quorum - 1]
        while self._open and self._open[0].number <= reached:
            done = self._open.popleft()
            self._quorum_at = max(self._quorum_at, done.at)
            self._had_quorum = True
            if done.tokens and self.may_confirm():
                core.effects.append(Confirmed(done.tokens, core.fence, done.commit))
            elif done.tokens:
                core.effects.append(Unconfirmed(done.tokens))
        if self._waiting and not any(each.tokens for each in self._open):
            self.begin()
