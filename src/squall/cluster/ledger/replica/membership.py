"""Epochs: the set of members changes one step at a time (R2).

A membership command is the last entry of its epoch. The primary proposes it only after it has
committed an entry in its view, and once the new members hold the state (the driver makes sure
that they hold the blobs, R9). A member that learns of the commit enters the next epoch, which
begins with a view change among the new members. A storage outside the set is a learner: it
takes committed state and neither votes nor acknowledges.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from squall.cluster.ledger.interface import Fence
from squall.cluster.ledger.replica.catch_up import Transfer
from squall.cluster.ledger.replica.effects import MembersAnswer
from squall.cluster.ledger.replica.heartbeat_rounds import Rounds
from squall.cluster.ledger.replica.messages import Learn, Newer, Packet
from squall.cluster.ledger.replica.normal_operation import Normal
from squall.cluster.ledger.replica.state import Core
from squall.cluster.ledger.replica.types import Config, Kind, Member, Status, is_single_step
from squall.cluster.ledger.replica.view_change import ViewChanges
from squall.runtime.interfaces import NodeId

CHANGE_TIMEOUT_S = 10.0
"""The primary refuses a change whose new members do not hold the state after this long."""
LEARNER_GONE_BEATS = 8


class Learner(NamedTuple):
    """A storage that takes committed state and may become a member."""

    member: Member
    op: int
    version: int
    at: float


class ChangeRequest(NamedTuple):
    """A requested membership change that the primary has not proposed yet."""

    token: int
    config: Config
    op: int
    """New members must hold everything up to here first."""
    until: float


class Membership:
    """Proposes membership changes, enters the epochs they begin, and tracks the learners."""

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
        self._request: ChangeRequest | None = None
        self._learn_at = 0.0
        core.on_epoch = self.enter

    # The next epoch.

    def enter(self, config: Config) -> None:
        """Enters the epoch of `config`, whose command is committed."""
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
            core.restart_election_timer()
            if led and core.is_member:
                # The former primary is the first to know of the epoch. Its pre-vote notifies
                # the others, so it stands at once instead of waiting for a primary.
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
        """The sender is in a higher epoch: fetches committed entries, which lead to that epoch."""
        self._transfer.catch_up(packet.sender.node, self._core.commit + 1)

    def ahead(self, packet: Packet) -> None:
        """The sender is in a lower epoch: sends it the present fence, so that it catches up."""
        self._core.send(packet.sender.node, Newer(), after=self._core.promised)

    # Changes.

    def change(self, token: int, config: Config) -> None:
        core = self._core
        refusal = self._refusal(config)
        if refusal:
            core.effects.append(MembersAnswer(token, refusal))
            return
        self._request = ChangeRequest(token, config, core.commit, core.now + CHANGE_TIMEOUT_S)
        self.propose_request()

    def propose_request(self) -> None:
        core, request = self._core, self._request
        if request is None:
            return
        refusal = self._refusal(request.config, pending=True)
        if not refusal and core.now > request.until:
            refusal = "the new members do not hold the state yet"
        if refusal:
            self._answer(request, refusal)
        elif self._hold_state(request) and self._normal.may_propose():
            self._answer(request, "")
            body = msgspec.msgpack.encode(request.config)
            self._normal.propose(Kind.MEMBERS, [(0, body)])

    def refuse_request(self) -> None:
        if self._request is not None:
            self._answer(self._request, "this member does not lead")

    def activate(self, version: int, *, is_first: bool) -> str:
        """Proposes to allow commands of `version`; returns the refusal, empty if proposed.
        `is_first`: the log holds no command yet. Then no member holds a state that could differ,
        so members that are away need not be waited for; an older one stops at this entry."""
        core = self._core
        if not self._normal.may_propose():
            return "this member does not lead"
        late = [
            node
            for node, progress in self._normal.progress.items()
            if node != core.me.node and progress.version < version and not is_first
        ]
        if late or core.version < version:
            return f"version {version} is not supported by {', '.join(late) or core.me.node}"
        self._normal.propose(Kind.ACTIVATE, [(version, b"")])
        return ""

    def _refusal(self, config: Config, *, pending: bool = False) -> str:
        core = self._core
        if not core.leading or not core.serving or core.config is None:
            return "this member does not lead"
        if core.holds_members() or (self._request is not None and not pending):
            return "another change of members is under way"
        if not is_single_step(core.config, config):
            return "members can only change one at a time, or grow from one to three"
        if config.members != tuple(sorted(config.members)):
            return "members must be sorted by node id"
        return ""

    def _hold_state(self, request: ChangeRequest) -> bool:
        core = self._core
        added = [m for m in request.config.members if core.config and m not in core.config.members]
        for member in added:
            learner = self.learners.get(member.node)
            if learner is None or learner.member != member or learner.op < request.op:
                return False
            if learner.version < core.active_version:
                return False
        return True

    def _answer(self, request: ChangeRequest, refusal: str) -> None:
        self._request = None
        self._core.effects.append(MembersAnswer(request.token, refusal))

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
        self.propose_request()

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
            self.propose_request()
        elif core.status is Status.LEARNER and core.now >= self._learn_at:
            self._learn_at = core.now + core.timers.heartbeat_s
            known = set(core.peers) | set(core.others())
            targets = tuple(sorted(known - {core.me.node}))
            core.send(targets, Learn(core.commit, core.version))
