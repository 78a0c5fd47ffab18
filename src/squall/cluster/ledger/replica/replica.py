"""The replica: one member of a group as a plain state machine.

It takes messages, requests and the time, and returns ordered effects (`effects`). It reads no
clock and touches neither disk nor network. docs/replication.md describes the states, rules and
invariants. Each part of the protocol has its own module beside this one, which only dispatches.
"""

from __future__ import annotations

from collections.abc import Callable

from squall.cluster.ledger.interface import Fence, Standing
from squall.cluster.ledger.replica.catch_up import Transfer
from squall.cluster.ledger.replica.effects import Effect
from squall.cluster.ledger.replica.formation import Forming
from squall.cluster.ledger.replica.handover import HandOver
from squall.cluster.ledger.replica.heartbeat_rounds import Rounds
from squall.cluster.ledger.replica.membership import Membership
from squall.cluster.ledger.replica.messages import (
    AskView,
    Entries,
    Fetch,
    FormAnswer,
    FormAsk,
    Heartbeat,
    Learn,
    Newer,
    Packet,
    Prepare,
    PrepareOk,
    PreVote,
    PreVoteOk,
    RoundAck,
    StartView,
    TakeOver,
    ViewChange,
    Vote,
    VoteComing,
)
from squall.cluster.ledger.replica.normal_operation import Normal
from squall.cluster.ledger.replica.state import Core
from squall.cluster.ledger.replica.types import (
    MENDING,
    NO_GROUP,
    Base,
    Config,
    GroupId,
    Kind,
    Member,
    Recovered,
    Status,
    Timers,
)
from squall.cluster.ledger.replica.view_change import ViewChanges
from squall.runtime.interfaces import BootId, NodeId

COMMAND = Kind.COMMAND
STALE_S_MAX = 1e9
"""Reported instead of infinity by a member that has never heard a primary."""


class Replica:
    """One member of a group: dispatches messages, requests and time to the protocol's parts."""

    def __init__(
        self,
        *,
        node: NodeId,
        boot: BootId,
        timers: Timers,
        draw: Callable[[], float],
        peers: tuple[NodeId, ...],
        recovered: Recovered,
        version: int,
        now: float,
        form_group: GroupId = NO_GROUP,
        form_facts: bytes = b"",
    ) -> None:
        """`peers` are all nodes that may belong to the group, including this one. With
        `form_group`, nodes with empty disks may form a new group of exactly these peers."""
        self.core = Core(
            node=node,
            boot=boot,
            timers=timers,
            draw=draw,
            peers=peers,
            recovered=recovered,
            version=version,
            now=now,
        )
        core = self.core
        self.rounds = Rounds(core)
        self.normal = Normal(core, self.rounds)
        self.transfer = Transfer(core)
        self.views = ViewChanges(core, self.normal, self.rounds, self.transfer)
        self.members = Membership(core, self.normal, self.rounds, self.transfer, self.views)
        self.forming = Forming(core, self.normal, self.rounds, self.transfer)
        self.hand_over = HandOver(core, self.normal, self.rounds)
        self.forming.group = form_group
        self.forming.facts = form_facts
        core.on_stepped_down = self._stepped_down
        core.on_gap = self.rounds.shift

    # Time.

    def start(self, now: float) -> list[Effect]:
        """Restores the state from disk. A member never leads again in a view that it led before
        the restart (R2); a group of one takes its next view at once."""
        core = self.core
        core.now = now
        core.restore()
        if core.config is not None and core.config.epoch > core.fence.epoch:
            # It stopped after it stored a checkpoint of a later epoch and before it entered that
            # epoch: its promise must not stay behind its members (R2).
            self.members.enter(core.config)
        if core.config is None:
            core.status = Status.FORMING
        elif not core.is_member:
            core.status = Status.LEARNER
        elif core.fence == core.last_normal and not core.mending:
            core.status = Status.NORMAL
        else:
            core.status = Status.VIEW_CHANGE
        core.restart_election_timer()
        return self.tick(now)

    def tick(self, now: float) -> list[Effect]:
        core = self.core
        core.pass_time(now)
        if core.status is Status.FORMING:
            self.forming.tick()
        elif core.leading:
            self.rounds.tick()
            if core.leading:
                self.normal.tick()
                self.hand_over.proceed()
        elif core.status is not Status.LEARNER:
            self.views.tick()
        self.members.tick()
        self.transfer.tick()
        return core.take()

    def deadline(self) -> float:
        """Returns the latest time for the next `tick`, at most one heartbeat ahead."""
        core = self.core
        due = core.now + core.timers.heartbeat_s
        if core.status is Status.FORMING:
            return max(min(due, self.forming.deadline()), core.now)
        if core.leading:
            return min(due, self.rounds.deadline())
        if core.status in (Status.NORMAL, Status.VIEW_CHANGE) and core.promise_is_durable():
            return max(min(due, core.election_at), core.now)
        return due

    def persisted(self, number: int, now: float) -> list[Effect]:
        """The driver reports that all records up to `number` are durable."""
        core = self.core
        core.pass_time(now)
        core.persisted(number)
        if not core.leading:
            if core.stands_next:
                self.views.tick()
            self.views.own_promise_durable()
        if core.leading:
            self.normal.own_copy_durable()
        if self.hand_over.is_under_way:
            self.hand_over.proceed()
        return core.take()

    def refused(self, now: float) -> list[Effect]:
        """The driver reports that a full disk refused every record that is not durable yet.
        Only a group of one may take them back (`Core.take_back`)."""
        self.core.pass_time(now)
        self.core.take_back()
        self.normal.taken_back()
        if not self.core.leading:
            self.views.forget()
            self.transfer.cancel()
        return self.core.take()

    # Requests.

    def may_submit(self) -> bool:
        return self.normal.may_propose() and not self.hand_over.is_under_way

    def is_idle(self) -> bool:
        """Whether this member is a group of one that leads, and its whole log is committed."""
        core = self.core
        return core.is_alone and core.serving and core.commit == core.log.last

    def room(self) -> tuple[int, int]:
        """Returns how many more commands, and how many bytes, may be submitted now."""
        return self.normal.room()

    def submit(self, commands: list[tuple[int, bytes]], now: float) -> tuple[int, list[Effect]]:
        """Proposes each (version, body); returns the op number of the first. Requires
        `may_submit`."""
        core = self.core
        core.pass_time(now)
        first = self.normal.propose(COMMAND, commands)
        return first, core.take()

    def confirm(self, token: int, now: float) -> list[Effect]:
        self.core.pass_time(now)
        self.rounds.confirm(token)
        return self.core.take()

    def change_members(self, token: int, members: tuple[Member, ...], now: float) -> list[Effect]:
        self.core.pass_time(now)
        config = Config(self.core.fence.epoch + 1, tuple(sorted(members)))
        self.members.change(token, config)
        return self.core.take()

    def activate(
        self, version: int, now: float, *, is_first: bool = False
    ) -> tuple[str, list[Effect]]:
        self.core.pass_time(now)
        refusal = self.members.activate(version, is_first=is_first)
        return refusal, self.core.take()

    def begin_hand_over(self, now: float) -> tuple[bool, list[Effect]]:
        self.core.pass_time(now)
        return self.hand_over.begin(), self.core.take()

    def snapshot_installed(self, base: Base, now: float) -> list[Effect]:
        self.core.pass_time(now)
        self.transfer.snapshot_installed(base)
        return self.core.take()

    def compact(self, op: int) -> None:
        """Trims the log up to `op`, which a checkpoint replaces; never above the commit number."""
        self.core.log.trim(min(op, self.core.commit))

    # Queries.

    @property
    def fence(self) -> Fence:
        return self.core.fence

    @property
    def primary(self) -> NodeId | None:
        """The present primary, if this member leads or hears one."""
        core = self.core
        if core.leading:
            return core.me.node
        if core.status is not Status.NORMAL or not core.hears_primary():
            return None
        primary = core.primary
        return None if primary is None or primary == core.me else primary.node

    def standing(self, now: float) -> Standing:
        core, members = self.core, None
        if core.config is not None:
            members = {str(member.node): str(member.storage) for member in core.config.members}
        return Standing(
            status=MENDING if core.mending else core.status.value,
            group=core.group,
            storage=core.me.storage,
            members=members,
            committed=core.commit,
            stale_s=0.0 if core.leading else min(now - core.heard_at, STALE_S_MAX),
        )

    def group_ms(self, now: float) -> int:
        return self.core.clock.read(now)

    # Messages.

    def handle(self, packet: Packet, now: float) -> list[Effect]:
        core = self.core
        core.pass_time(now)
        body = packet.body
        if core.status is Status.FORMING:
            self._while_forming(packet)
        elif isinstance(body, FormAsk):
            core.send(packet.sender.node, Newer())
        elif packet.group == core.group:
            self._of_group(packet)
        elif not packet.group and isinstance(body, Fetch):
            # The sender's disk is empty: op 1 shows it whether it is a member.
            self.transfer.fetch(packet, body)
        return core.take()

    def _while_forming(self, packet: Packet) -> None:
        match packet.body:
            case FormAsk():
                self.forming.asked(packet)
            case FormAnswer():
                self.forming.answered(packet, packet.body)
            case _:
                if packet.group:
                    self.forming.group_heard(packet)

    def _of_group(self, packet: Packet) -> None:
        core = self.core
        match packet.body:
            case Fetch():
                self.transfer.fetch(packet, packet.body)
                return
            case Entries():
                self.transfer.entries(packet, packet.body)
                return
            case Learn():
                self.members.learns(packet, packet.body)
            case _:
                pass
        if packet.fence.epoch > core.fence.epoch or core.lacks_epoch():
            self.members.behind(packet)
        elif packet.fence.epoch < core.fence.epoch:
            if not isinstance(packet.body, Newer):
                self.members.ahead(packet)
        elif core.status is Status.LEARNER:
            if isinstance(packet.body, Heartbeat):
                core.clock.observe(packet.body.group_ms, core.now)
                self.transfer.catch_up(packet.sender.node, packet.body.commit)
        else:
            core.highest_view = max(core.highest_view, packet.fence.view)
            self._of_epoch(packet)

    def _of_epoch(self, packet: Packet) -> None:
        match packet.body:
            case Prepare() | Heartbeat():
                self._from_primary(packet, packet.body)
            case PrepareOk():
                if self._counts(packet):
                    self.normal.stored(packet, packet.body)
                    self.hand_over.proceed()
            case RoundAck():
                if self._counts(packet):
                    self.rounds.acked(packet, packet.body)
                    self.normal.stored(packet, packet.body)
                    self.hand_over.proceed()
            case PreVote():
                self.views.pre_vote(packet, packet.body)
            case PreVoteOk():
                self.views.agreed(packet, packet.body)
            case ViewChange():
                self.views.view_change(packet, packet.body)
            case Vote():
                self.views.voted(packet, packet.body)
            case VoteComing():
                self.views.vote_coming(packet)
            case AskView():
                self.views.ask_view(packet)
            case StartView():
                self.views.start_view(packet, packet.body)
            case TakeOver():
                self.views.take_over(packet, packet.body)
            case Newer():
                if packet.fence > self.core.fence:
                    self.core.step_down("a higher view exists")
            case _:
                pass

    def _from_primary(self, packet: Packet, body: Prepare | Heartbeat) -> None:
        core = self.core
        if self.normal.accepts(packet):
            if isinstance(body, Prepare):
                self.normal.prepare(packet, body)
                return
            self.normal.heartbeat(packet, body)
            if core.log.last + 1 < body.first:
                self.transfer.catch_up(packet.sender.node, body.commit)
        elif packet.fence < core.fence:
            if isinstance(body, Heartbeat):
                core.send(packet.sender.node, Newer(), after=core.promised)
        elif isinstance(body, Heartbeat) and self.views.is_new(packet.fence):
            self.views.ask_for_view(packet, body)

    def _counts(self, packet: Packet) -> bool:
        # A late acknowledgment from another view, or from a replaced disk, must not count (R2).
        core = self.core
        return core.leading and packet.fence == core.fence and core.counts(packet.sender)

    def _stepped_down(self) -> None:
        self.rounds.drop()
        self.members.refuse_request()
