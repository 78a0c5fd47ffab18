"""The replica: one member of a group as a plain state machine.

Messages, wishes and the passing of time go in, ordered effects come out (`effects`). It
reads no clock, touches no disk and no network. States, rules and invariants are in
docs/replication.md; each part of the protocol has a module of its own beside this one,
which only decides which part a message is for.
"""

from __future__ import annotations

from collections.abc import Callable

from squall.ledger.interface import Fence
from squall.ledger.replica.effects import Effect
from squall.ledger.replica.formation import Forming
from squall.ledger.replica.hand_over import HandOver
from squall.ledger.replica.membership import Membership
from squall.ledger.replica.messages import (
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
from squall.ledger.replica.normal import Normal
from squall.ledger.replica.reads import Rounds
from squall.ledger.replica.state import Core
from squall.ledger.replica.transfer import Transfer
from squall.ledger.replica.types import (
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
from squall.ledger.replica.view_change import ViewChanges
from squall.runtime.interfaces import BootId, NodeId


class Replica:
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
        """`peers` are all nodes that may belong to the group, this one included. With
        `form_group` an empty disk may become part of a new group of exactly these."""
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

    # Time.

    def start(self, now: float) -> list[Effect]:
        """Takes up what the disk holds. A member that led before the restart leads no more
        in that view; a group of one takes its next view at once."""
        core = self.core
        core.now = now
        core.restore()
        if core.config is None:
            core.status = Status.FORMING
        elif not core.is_member:
            core.status = Status.LEARNER
        elif core.fence == core.last_normal and not core.mending:
            core.status = Status.NORMAL
        else:
            core.status = Status.VIEW_CHANGE
        core.wait_anew()
        if core.is_member and core.quorum == 1 and not core.others():
            core.election_at = now
        return self.tick(now)

    def tick(self, now: float) -> list[Effect]:
        core = self.core
        self._pass_time(now)
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
        """When `tick` is due at the latest; it may come earlier, and comes by heartbeats."""
        core = self.core
        due = core.now + core.timers.heartbeat_s
        if core.leading:
            return min(due, self.rounds.deadline())
        if core.status in (Status.NORMAL, Status.VIEW_CHANGE) and core.promise_is_durable():
            return max(min(due, core.election_at), core.now)
        return due

    def persisted(self, number: int, now: float) -> list[Effect]:
        """All records up to `number` are durable."""
        self._pass_time(now)
        core = self.core
        core.persisted(number)
        if core.stands_next and not core.leading:
            self.views.tick()
        self.views.own_promise_durable()
        self.normal.own_copy_durable()
        self.hand_over.proceed()
        return self.core.take()

    # Wishes.

    def may_submit(self) -> bool:
        return self.normal.may_propose() and not self.hand_over.is_under_way

    def has_room(self) -> bool:
        return self.normal.room()

    def submit(
        self, commands: list[tuple[int, bytes]], now: float
    ) -> tuple[list[int], list[Effect]]:
        """Orders (version, body) each, and gives their op numbers. Only if `may_submit`."""
        self._pass_time(now)
        ops = self.normal.propose(Kind.COMMAND, commands)
        return ops, self.core.take()

    def confirm(self, token: int, now: float) -> list[Effect]:
        self._pass_time(now)
        self.rounds.confirm(token)
        return self.core.take()

    def change_members(self, token: int, members: tuple[Member, ...], now: float) -> list[Effect]:
        self._pass_time(now)
        config = Config(self.core.fence.epoch + 1, tuple(sorted(members)))
        self.members.change(token, config)
        return self.core.take()

    def activate(self, version: int, now: float) -> tuple[str, list[Effect]]:
        self._pass_time(now)
        refusal = self.members.activate(version)
        return refusal, self.core.take()

    def begin_hand_over(self, now: float) -> tuple[bool, list[Effect]]:
        self._pass_time(now)
        return self.hand_over.begin(), self.core.take()

    def snapshot_installed(self, base: Base, now: float) -> list[Effect]:
        self._pass_time(now)
        self.transfer.snapshot_installed(base)
        return self.core.take()

    def compact(self, op: int) -> None:
        """A checkpoint stands for the log up to `op`."""
        self.core.log.trim(min(op, self.core.commit))

    # What is known.

    @property
    def fence(self) -> Fence:
        return self.core.fence

    @property
    def primary(self) -> NodeId | None:
        """Who leads as far as this member knows."""
        core = self.core
        if core.leading:
            return core.me.node
        if core.status is not Status.NORMAL or not core.hears_primary():
            return None
        primary = core.primary
        return None if primary is None or primary == core.me else primary.node

    def group_ms(self, now: float) -> int:
        return self.core.clock.read(now)

    # Messages.

    def handle(self, packet: Packet, now: float) -> list[Effect]:
        core = self.core
        self._pass_time(now)
        body = packet.body
        if core.status is Status.FORMING:
            self._while_forming(packet)
        elif isinstance(body, FormAsk):
            core.send(packet.sender.node, Newer())
        elif packet.group == core.group:
            self._of_group(packet)
        elif not packet.group and isinstance(body, Fetch):
            # A node with an empty disk: op 1 tells it whether it is a member.
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
                core.clock.hear(packet.body.group_ms, core.now)
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
            self.views.ask_for_view(packet)

    def _counts(self, packet: Packet) -> bool:
        core = self.core
        return core.leading and packet.fence == core.fence and core.counts(packet.sender)

    def _stepped_down(self) -> None:
        self.rounds.drop()
        self.members.drop_wish()

    def _pass_time(self, now: float) -> None:
        gap = self.core.pass_time(now)
        if gap > 0.0:
            self.rounds.shift(gap)
