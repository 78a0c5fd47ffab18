"""The state of one member that the parts of the core share, and how it changes.

`fence` is the promise: the highest (epoch, view) that this member took part in. It is
durable before anything that reveals it leaves. `last_normal` is the fence in which its log
was last that of a view. The status is NORMAL only in the fence of `last_normal`.

The parts (`normal`, `reads`, `view_change`, `transfer`, `membership`, `formation`) decide;
this module only keeps the books straight.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from squall.ledger.interface import Fence, GroupMs, OpNumber
from squall.ledger.replica.clock import GroupClock
from squall.ledger.replica.effects import (
    Apply,
    Effect,
    EnteredEpoch,
    Persist,
    Send,
    SteppedDown,
)
from squall.ledger.replica.log import Log
from squall.ledger.replica.messages import Body, Packet
from squall.ledger.replica.types import (
    Config,
    Formation,
    GroupId,
    Kind,
    LogEntry,
    Member,
    Record,
    Recovered,
    Status,
    Timers,
)
from squall.runtime.interfaces import BootId, NodeId
from squall.runtime.invariants import invariant

GAP_BEATS = 2.0
"""The driver ticks at least every heartbeat; after so many without a call the loop stood
still."""


class Outstanding(NamedTuple):
    number: int
    since: float
    fence: Fence
    op: int


class Core:
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
    ) -> None:
        self.me = Member(node, recovered.storage)
        self.boot = boot
        self.timers = timers
        self.draw = draw
        """Uniform in 0 .. 1, for jitter only."""
        self.peers = peers
        """Nodes that may be members: to find the group, never to decide anything."""
        self.version = version
        self.now = now
        self.effects: list[Effect] = []
        base = recovered.base
        self.group: GroupId = base.group
        self.config: Config | None = base.config
        self.active_version = base.active_version
        self.fence = recovered.fence
        self.last_normal = recovered.last_normal
        self.log = Log(base.op, base.checksum, recovered.entries)
        self.commit = base.op
        self.clock = GroupClock(max(recovered.group_ms, base.group_ms), recovered.away_ms)
        self.status = Status.FORMING
        self.leading = False
        self.serving = False
        self.mending = bool(recovered.mending)
        """Its disk lost some of what it acknowledged: until it holds the log of a view again
        it neither votes nor stands, and gives nobody its log."""
        self.highest_view = recovered.fence.view
        self.heard_at = float("-inf")
        """When the present primary was last heard."""
        self.election_at = now
        self.stands_next = False
        """It shall ask for a view as soon as its promise is durable."""
        self.issued = 0
        self.promised = 0
        """Number of the record that holds the present promise."""
        self.durable = 0
        self.durable_op = self.log.last
        self.outstanding: deque[Outstanding] = deque()
        self.on_epoch: Callable[[Config], None] = lambda config: None
        self.on_stepped_down: Callable[[], None] = lambda: None
        self._recovered_commit = recovered.commit

    # Who is who.

    @property
    def quorum(self) -> int:
        return self.config.quorum if self.config is not None else 1

    @property
    def is_member(self) -> bool:
        return self.counts(self.me)

    @property
    def primary(self) -> Member | None:
        return self.config.primary(self.fence.view) if self.config is not None else None

    def others(self) -> tuple[NodeId, ...]:
        if self.config is None:
            return ()
        return tuple(node for node in self.config.nodes if node != self.me.node)

    def counts(self, sender: Member) -> bool:
        """Whether acknowledgments and votes of this storage count."""
        return self.config is not None and self.admits(self.config, sender)

    def admits(self, config: Config, member: Member) -> bool:
        """By node and storage: a lost disk forgot what its node promised."""
        return config.admits(member)

    def lacks_epoch(self) -> bool:
        """Mending: it promised something in an epoch whose command it lost."""
        return self.mending and self.config is not None and self.config.epoch < self.fence.epoch

    def holds_members(self) -> bool:
        """The log ends with the command that ends this epoch."""
        newest = self.log.newest
        if newest is None or newest.kind is not Kind.MEMBERS:
            return False
        return config_of(newest).epoch > self.fence.epoch

    # Start.

    def restore(self) -> None:
        """Brings config and commit to where the disk says this member was."""
        commit = min(max(self._recovered_commit, self.log.base_op), self.log.last)
        if self.config is None and self.log.last >= 1:
            formation = formation_of(self.log.entry(1))
            self.group, self.config = formation.group, formation.config
        entries = [self.log.entry(op) for op in range(self.log.base_op + 1, self.log.last + 1)]
        for entry in entries:
            # To have entered an epoch is to know that its command is committed.
            if entry.kind is Kind.MEMBERS and config_of(entry).epoch <= self.fence.epoch:
                commit = max(commit, int(entry.op))
        self.learn_commit(commit)
        if entries:
            self.clock.floor(entries[-1].group_ms)

    # The log.

    def append(self, kind: Kind, body: bytes, version: int, make: Callable[..., LogEntry]) -> None:
        """The primary's next entry."""
        previous = self.log.newest
        group_ms = self.clock.read(self.now)
        if previous is not None:
            group_ms = max(group_ms, previous.group_ms)
        entry = make(
            self.log.last + 1,
            self.fence,
            group_ms,
            kind,
            body,
            previous=self.log.end(),
            version=version,
        )
        self.log.append(entry)

    def learn_commit(self, op: int) -> None:
        """Everything up to `op` is committed, and this log holds it."""
        if op <= self.commit:
            return
        invariant(op <= self.log.last, "the commit number is beyond the log")
        entries = tuple(self.log.entry(each) for each in range(self.commit + 1, op + 1))
        self.commit = op
        self.effects.append(Apply(entries))
        entered: Config | None = None
        for entry in entries:
            if entry.kind is Kind.FORM and self.config is None:
                formation = formation_of(entry)
                self.group, self.config = formation.group, formation.config
            elif entry.kind is Kind.MEMBERS:
                entered = config_of(entry)
            elif entry.kind is Kind.ACTIVATE:
                self.active_version = max(self.active_version, entry.version)
        if entered is not None and (self.config is None or entered.epoch > self.config.epoch):
            self.on_epoch(entered)

    # Promise and persistence.

    def promise(self, fence: Fence) -> None:
        """From now on nothing below `fence` is answered."""
        invariant(fence > self.fence, f"the promise falls from {self.fence} to {fence}")
        self.step_down(f"promised {fence.epoch}.{fence.view}")
        self.fence = fence
        self.highest_view = max(self.highest_view, fence.view)
        self.status = Status.VIEW_CHANGE
        self.persist()
        self.promised = self.issued

    def persist(self, *, keep: int = -1, entries: tuple[LogEntry, ...] = ()) -> None:
        self.issued += 1
        if keep >= 0:
            self.durable_op = min(self.durable_op, keep)
            self.outstanding = deque(
                each._replace(op=min(each.op, keep)) for each in self.outstanding
            )
        record = Record(
            self.fence,
            self.last_normal,
            keep,
            entries,
            OpNumber(self.commit),
            GroupMs(self.clock.read(self.now)),
        )
        self.outstanding.append(Outstanding(self.issued, self.now, self.fence, self.log.last))
        self.effects.append(Persist(self.issued, record))

    def promise_is_durable(self) -> bool:
        return self.durable >= self.promised

    def persisted(self, number: int) -> None:
        invariant(number <= self.issued, "a record is durable that was never issued")
        was_durable = self.promise_is_durable()
        while self.outstanding and self.outstanding[0].number <= number:
            done = self.outstanding.popleft()
            self.durable = done.number
            if not self.outstanding or self.outstanding[0].number > number:
                self.durable_op = min(done.op, self.log.last)
        if not was_durable and self.promise_is_durable() and not self.stands_next:
            # What it waits for could not begin before.
            self.wait_anew()

    def oldest_sync_s(self) -> float:
        return self.now - self.outstanding[0].since if self.outstanding else 0.0

    def step_down(self, reason: str) -> None:
        """Leads no more in this view, for good."""
        if not self.leading:
            return
        self.leading = False
        self.serving = False
        self.effects.append(SteppedDown(self.fence, reason))
        self.on_stepped_down()
        self.wait_anew()

    def entered(self, config: Config) -> None:
        self.effects.append(EnteredEpoch(config, self.is_member))

    # Time.

    def pass_time(self, now: float) -> float:
        """A loop that stood still adds the gap to its timeouts: it heard nobody meanwhile."""
        elapsed = now - self.now
        gap = 0.0
        if elapsed > GAP_BEATS * self.timers.heartbeat_s:
            gap = elapsed - self.timers.heartbeat_s
            self.heard_at += gap
            self.election_at += gap
        self.now = max(now, self.now)
        return gap

    def wait_anew(self) -> None:
        timers = self.timers
        self.stands_next = False
        self.election_at = (
            self.now
            + timers.follower_timeout_s
            + self.rank() * timers.stagger_s
            + self.draw() * timers.jitter_s
        )

    def rank(self) -> int:
        """0 for whoever leads the next view."""
        config = self.config
        if config is None or not config.admits(self.me):
            return 0
        return config.next_view(self.fence.view, self.me) - self.fence.view - 1

    def heard_primary(self) -> None:
        self.heard_at = self.now
        self.wait_anew()

    def hears_primary(self) -> bool:
        if self.leading:
            return True
        return self.now - self.heard_at < self.timers.follower_timeout_s

    # Messages.

    def send(
        self,
        to: NodeId | tuple[NodeId, ...],
        body: Body,
        *,
        after: int = 0,
        fence: Fence | None = None,
    ) -> None:
        targets = to if isinstance(to, tuple) else (to,)
        if not targets:
            return
        packet = Packet(self.group, self.me, self.boot, fence or self.fence, body)
        if after <= self.durable:
            after = 0
        self.effects.append(Send(targets, packet, after))

    def take(self) -> list[Effect]:
        effects, self.effects = self.effects, []
        return effects


_formation = msgspec.msgpack.Decoder(Formation)
_config = msgspec.msgpack.Decoder(Config)


def formation_of(entry: LogEntry) -> Formation:
    invariant(entry.kind is Kind.FORM and entry.op == 1, "op 1 does not form the group")
    return _formation.decode(entry.body)


def config_of(entry: LogEntry) -> Config:
    return _config.decode(entry.body)
