"""Epochs: how the set of members changes, one step at a time.

A membership command is the last entry of its epoch. It is proposed only after the primary
committed something in its view, when the new members hold the state (and the driver made
sure of the blobs). Whoever knows that it is committed enters the next epoch, which begins
by a view change with a quorum of the new members. A storage that is not in the set takes
committed state and neither votes nor acknowledges.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from squall.ledger.interface import Fence
from squall.ledger.replica.effects import MembersAnswer
from squall.ledger.replica.messages import Learn, Newer, Packet
from squall.ledger.replica.normal import Normal
from squall.ledger.replica.reads import Rounds
from squall.ledger.replica.state import Core
from squall.ledger.replica.transfer import Transfer
from squall.ledger.replica.types import Config, Kind, Member, Status, is_single_step
from squall.ledger.replica.view_change import ViewChanges
from squall.runtime.interfaces import NodeId

WISH_S = 10.0
"""A change that waits longer for its new members is refused."""
LEARNER_GONE_BEATS = 8


class Learner(NamedTuple):
    member: Member
    op: int
    version: int
    at: float


class Wish(NamedTuple):
    token: int
    config: Config
    op: int
    until: float


class Membership:
    def __init__(
        self,
        core: Core,
        normal: Normal,
        rounds: Rounds,
        transfer: Transfer,
        views: ViewChanges,
    ) -> None:
        self._core = core
        self._normal = normal
        self._rounds = rounds
        self._transfer = transfer
        self._views = views
        self.learners: dict[NodeId, Learner] = {}
        self._wish: Wish | None = None
        self._learn_at = 0.0
        core.on_epoch = self.enter

    # The next epoch.

    def enter(self, config: Config) -> None:
        """Its command is known to be committed."""
        core = self._core
        led = core.leading
        core.step_down(f"epoch {config.epoch} begins")
        core.config = config
        if Fence(config.epoch, 0) > core.fence:
            core.fence = Fence(config.epoch, 0)
            core.highest_view = 0
            core.status = Status.VIEW_CHANGE if core.is_member else Status.LEARNER
            core.persist()
            core.promised = core.issued
            core.heard_at = float("-inf")
            core.wait_anew()
            if led and core.is_member:
                # It knows first; the others learn of the epoch from its questions.
                core.election_at = core.now
                core.stands_next = True
        elif not core.is_member:
            core.status = Status.LEARNER
        elif core.status is Status.LEARNER:
            core.status = Status.VIEW_CHANGE
        self._views.forget()
        self._transfer.cancel()
        self._normal.forget_early()
        core.entered(config)

    def behind(self, packet: Packet) -> None:
        """The sender is in a higher epoch: take what is committed, and enter it by that."""
        self._transfer.catch_up(packet.sender.node, self._core.commit + 1)

    def ahead(self, packet: Packet) -> None:
        """A member of a lower epoch is not refused but brought up."""
        self._core.send(packet.sender.node, Newer(), after=self._core.promised)

    # Changes.

    def change(self, token: int, config: Config) -> None:
        core = self._core
        refusal = self._refusal(config)
        if refusal:
            core.effects.append(MembersAnswer(token, refusal))
            return
        self._wish = Wish(token, config, core.commit, core.now + WISH_S)
        self.try_wish()

    def try_wish(self) -> None:
        core, wish = self._core, self._wish
        if wish is None:
            return
        refusal = self._refusal(wish.config, pending=True)
        if not refusal and core.now > wish.until:
            refusal = "the new members do not hold the state yet"
        if refusal:
            self._answer(wish, refusal)
        elif self._hold_state(wish) and self._normal.may_propose():
            self._answer(wish, "")
            body = msgspec.msgpack.encode(wish.config)
            self._normal.propose(Kind.MEMBERS, [(0, body)])

    def drop_wish(self) -> None:
        if self._wish is not None:
            self._answer(self._wish, "this member does not lead")

    def activate(self, version: int) -> str:
        """Proposes that commands of `version` are allowed; the refusal, or nothing."""
        core = self._core
        if not self._normal.may_propose():
            return "this member does not lead"
        late = [
            node
            for node, progress in self._normal.progress.items()
            if node != core.me.node and progress.version < version
        ]
        if late or core.version < version:
            return f"version {version} is not supported by {', '.join(late) or core.me.node}"
        self._normal.propose(Kind.ACTIVATE, [(version, b"")])
        return ""

    def _refusal(self, config: Config, *, pending: bool = False) -> str:
        core = self._core
        if not core.leading or not core.serving or core.config is None:
            return "this member does not lead"
        if core.holds_members() or (self._wish is not None and not pending):
            return "another change of members is under way"
        if not is_single_step(core.config, config):
            return "members change one at a time, or from one to three"
        if config.members != tuple(sorted(config.members)):
            return "members are sorted by node id"
        return ""

    def _hold_state(self, wish: Wish) -> bool:
        core = self._core
        added = [m for m in wish.config.members if core.config and m not in core.config.members]
        for member in added:
            learner = self.learners.get(member.node)
            if learner is None or learner.member != member or learner.op < wish.op:
                return False
            if learner.version < core.active_version:
                return False
        return True

    def _answer(self, wish: Wish, refusal: str) -> None:
        self._wish = None
        self._core.effects.append(MembersAnswer(wish.token, refusal))

    # Learners.

    def learns(self, packet: Packet, learn: Learn) -> None:
        core = self._core
        if not core.leading or core.counts(packet.sender):
            return
        node = packet.sender.node
        self.learners[node] = Learner(packet.sender, learn.op, learn.version, core.now)
        self._rounds.listeners = tuple(
            sorted(each for each in self.learners if each not in core.others())
        )
        self.try_wish()

    def tick(self) -> None:
        core = self._core
        if core.leading:
            silence_s = LEARNER_GONE_BEATS * core.timers.heartbeat_s
            self.learners = {
                node: learner
                for node, learner in self.learners.items()
                if core.now - learner.at < silence_s
            }
            self._rounds.listeners = tuple(
                sorted(each for each in self.learners if each not in core.others())
            )
            self.try_wish()
        elif core.status is Status.LEARNER and core.now >= self._learn_at:
            self._learn_at = core.now + core.timers.heartbeat_s
            known = set(core.peers) | set(core.others())
            targets = tuple(sorted(known - {core.me.node}))
            core.send(targets, Learn(core.commit, core.version))
