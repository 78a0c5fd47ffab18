"""The state of one member, shared by the parts of the core, and the few methods that change it.

The parts (`normal_operation`, `heartbeat_rounds`, `view_change`, `catch_up`, `membership`,
`formation`) decide; this module maintains the invariants that are stated at each field.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from squall.cluster.ledger.interface import Fence, OpNumber
from squall.cluster.ledger.replica.effects import (
    Apply,
    Effect,
    EnteredEpoch,
    Persist,
    Send,
    SteppedDown,
)
from squall.cluster.ledger.replica.group_clock import GroupClock
from squall.cluster.ledger.replica.log import Log
from squall.cluster.ledger.replica.messages import Body, Packet
from squall.cluster.ledger.replica.types import (
    NO_CHECKSUM,
    Checksum,
    Config,
    Formation,
    GroupId,
    Kind,
    LogEntry,
    Member,
    Recovered,
    Status,
    StepRecord,
    Timers,
    checksum_of,
)
from squall.runtime.interfaces import BootId, NodeId
from squall.runtime.invariants import invariant

COMMAND = Kind.COMMAND
GAP_BEATS = 2.0
"""The driver ticks at least once per heartbeat. A gap of more heartbeats than this means that
the event loop was blocked."""


class Outstanding(msgspec.Struct, frozen=True, gc=False):
    """A record that the disk has received and not yet made durable."""

    number: int
    since: float
    op: int
    """The end of the log with this record: once it is durable, so is the log up to here."""


class Core:
    """Holds one member's promise, log, durable position and timers, and collects its effects."""

    # An instance with more than 30 attributes has a dictionary of its own in CPython 3.11, and
    # every access looks its name up there: 4 % of a commit. `__dict__` is for tests, which
    # replace methods.
    __slots__ = (
        "__dict__", "_config", "_longest_tick_s", "_recovered_commit", "active_version", "boot",
        "clock", "commit", "draw", "durable", "durable_op", "effects", "election_at", "fence",
        "group", "heard_at", "heard_commit", "highest_view", "is_alone", "issued",
        "last_normal", "leading", "log", "me", "mending", "now", "on_epoch", "on_gap",
        "on_stepped_down", "outstanding", "peers", "promised", "serving", "stands_next",
        "status", "timers", "version",
    )  # fmt: skip

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
        self.boot, self.timers = boot, timers
        # Uniform in 0 .. 1, for jitter only.
        self.draw = draw
        # Nodes that may be members; used only to find the group, never for a quorum.
        self.peers = peers
        # The highest command version that this binary applies.
        self.version = version
        # The caller's clock as of the last call; never goes back.
        self.now = now
        # What `take` hands to the driver, in order.
        self.effects: list[Effect] = []
        base = recovered.base
        self.group: GroupId = base.group
        # The members in the epoch of `fence`, once this one knows the command that began it.
        self.config = base.config
        # The highest version that a committed ACTIVATE allows.
        self.active_version = base.active_version
        # The promise: the highest (epoch, view) that this member took part in. It never falls,
        # not even across a restart, and is durable before any message reveals it (R11).
        self.fence = recovered.fence
        # The fence in which the log was last that of a view: last_normal <= fence.
        self.last_normal = recovered.last_normal
        self.log = Log(base.op, base.checksum, recovered.entries)
        # Committed up to here, each op named by one Apply: log.base_op <= commit <= log.last.
        self.commit: int = base.op
        self.clock = GroupClock(max(recovered.group_ms, base.group_ms), recovered.away_ms)
        # NORMAL implies fence == last_normal.
        self.status = Status.FORMING
        # This member is the primary; implies NORMAL, in a view that this boot was elected for.
        self.leading = False
        # It leads and everything it inherited is committed: it may propose, read, grant (R2).
        self.serving = False
        # The disk lost acknowledged entries: no vote, no candidacy, no log for others (R2).
        self.mending = bool(recovered.mending)
        # The highest view of this epoch that this member has seen; a candidate goes above it.
        self.highest_view = recovered.fence.view
        # When this member last heard its primary; it refuses votes for a while after (R2).
        self.heard_at = float("-inf")
        # The highest commit number that a primary has named to this boot.
        self.heard_commit = 0
        # When this member stands for a view of its own, unless it hears a primary before.
        self.election_at = now
        # It stands as soon as its promise is durable, without another wait.
        self.stands_next = False
        # Record numbers: the last issued, the one with the promise, the last durable.
        self.issued = 0
        self.promised = 0
        self.durable = 0
        # The log up to here is on this disk; an acknowledgment may name no later op.
        self.durable_op = self.log.last
        # Records above `durable`, in order; empty when all is on disk.
        self.outstanding: deque[Outstanding] = deque()
        self.on_epoch: Callable[[Config], None] = lambda config: None
        self.on_stepped_down: Callable[[], None] = lambda: None
        self.on_gap: Callable[[float], None] = lambda gap: None
        self._longest_tick_s = GAP_BEATS * timers.heartbeat_s
        self._recovered_commit = recovered.commit

    # Members.

    @property
    def quorum(self) -> int:
        return self.config.quorum if self.config is not None else 1

    @property
    def is_member(self) -> bool:
        return self.counts(self.me)

    @property
    def config(self) -> Config | None:
        """The latest members that this one knows; None until it knows a group."""
        return self._config

    @config.setter
    def config(self, config: Config | None) -> None:
        self._config = config
        # The group has no other member: this one is its own quorum.
        self.is_alone = config is not None and config.members == (self.me,)

    @property
    def primary(self) -> Member | None:
        return self.config.primary(self.fence.view) if self.config is not None else None

    def others(self) -> tuple[NodeId, ...]:
        if self.config is None:
            return ()
        return tuple(node for node in self.config.nodes if node != self.me.node)

    def counts(self, sender: Member) -> bool:
        """Whether acknowledgments and votes from this sender count."""
        return self.config is not None and self.admits(self.config, sender)

    def admits(self, config: Config, member: Member) -> bool:
        """Compares node and storage: a node with a new disk has forgotten its promises."""
        return config.admits(member)

    def lacks_epoch(self) -> bool:
        """Whether the damaged disk lost the command that began the epoch of its promise."""
        return self.mending and self.config is not None and self.config.epoch < self.fence.epoch

    def holds_members(self) -> bool:
        """Whether the log ends with the membership command that ends this epoch."""
        newest = self.log.newest
        if newest is None or newest.kind is not Kind.MEMBERS:
            return False
        return config_of(newest).epoch > self.fence.epoch

    # Start.

    def restore(self) -> None:
        """Restores config and commit from what the disk holds."""
        commit = min(max(self._recovered_commit, self.log.base_op), self.log.last)
        if self.config is None and self.log.last >= 1:
            formation = formation_of(self.log.entry(1))
            self.group, self.config = formation.group, formation.config
        entries = self.log.between(self.log.base_op + 1, self.log.last)
        for entry in entries:
            if entry.kind is COMMAND:
                continue
            # This member entered the epoch, so it knew that the command was committed.
            if entry.kind is Kind.MEMBERS and config_of(entry).epoch <= self.fence.epoch:
                commit = max(commit, int(entry.op))
        self.learn_commit(commit)
        if entries:
            self.clock.floor(entries[-1].group_ms)

    # The log.

    def append(self, kind: Kind, bodies: list[tuple[int, bytes]]) -> tuple[LogEntry, ...]:
        """Appends an entry for each (version, body), all with the present group time."""
        log, fence = self.log, self.fence
        newest, op = log.newest, log.last
        previous = log.base_checksum
        group_ms = self.clock.read(self.now)
        if newest is not None:
            previous = newest.checksum
            if newest.group_ms > group_ms:
                group_ms = newest.group_ms
        entries: list[LogEntry] = []
        for version, body in bodies:
            op += 1
            checksum = checksum_of(op, fence, group_ms, kind, version, body, previous)
            entries.append(
                LogEntry(OpNumber(op), fence, group_ms, kind, version, body, previous, checksum)
            )
            previous = checksum
        log.grow(entries)
        return tuple(entries)

    def learn_commit(self, op: int) -> None:
        """Applies everything up to `op`, which is committed and in this log."""
        if op > self.commit:
            self.commit_entries(self.log.between(self.commit + 1, op))

    def commit_entries(self, entries: tuple[LogEntry, ...]) -> None:
        """Applies the next entries of the log, which are committed."""
        self.commit = entries[-1].op
        self.effects.append(Apply(entries))
        entered: Config | None = None
        for entry in entries:
            if entry.kind is COMMAND:
                continue
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
        """Promises `fence`: from now on this member answers nothing below it."""
        invariant(fence > self.fence, f"the promise falls from {self.fence} to {fence}")
        self.step_down(f"promised {fence.epoch}.{fence.view}")
        self.fence = fence
        self.highest_view = max(self.highest_view, fence.view)
        self.status = Status.VIEW_CHANGE
        self.persist()
        self.promised = self.issued

    def persist(
        self,
        *,
        keep: int = -1,
        entries: tuple[LogEntry, ...] = (),
        restart_op: int = 0,
        restart_checksum: Checksum = NO_CHECKSUM,
    ) -> None:
        """Stores the promise with a step of the log; `restart_op` and `restart_checksum` name a
        checkpoint that has replaced the log."""
        self.issued += 1
        if keep >= 0:
            self.durable_op = min(self.durable_op, keep)
            self.outstanding = deque(
                replace(each, op=min(each.op, keep)) for each in self.outstanding
            )
        # The entries that a primary proposes carry the present time.
        is_proposal = entries and self.leading
        record = StepRecord(
            self.fence,
            self.last_normal,
            keep,
            entries,
            OpNumber(self.commit),
            entries[-1].group_ms if is_proposal else self.clock.read(self.now),
            restart_op=restart_op,
            restart_checksum=restart_checksum,
        )
        self.outstanding.append(Outstanding(self.issued, self.now, self.log.last))
        self.effects.append(Persist(self.issued, record))

    def promise_is_durable(self) -> bool:
        return self.durable >= self.promised

    def persisted(self, number: int) -> None:
        if number > self.issued:
            invariant(False, "a record is durable that was never issued")
        was_durable = self.durable >= self.promised
        outstanding = self.outstanding
        done: Outstanding | None = None
        while outstanding and outstanding[0].number <= number:
            done = outstanding.popleft()
        if done is not None:
            self.durable = done.number
            last = self.log.last
            self.durable_op = done.op if done.op < last else last
        if not was_durable and self.durable >= self.promised and not self.stands_next:
            # The wait for a primary starts now: the vote could not leave before.
            self.restart_election_timer()

    def take_back(self) -> None:
        """Drops every record that is not durable: a full disk refused them all.

        Only a group of one may do this. No other process knows what the records say, because
        the member answers and leads only after its own disk has stored them.
        """
        invariant(self.is_alone, "others may know what the refused records say")
        self.outstanding.clear()
        self.log.cut(self.durable_op)
        if self.serving and self.promise_is_durable():
            return
        # The refused records hold the promise of this view or its first entry, so the view
        # never began. The member tries the next view a heartbeat later: a disk that stays full
        # must not cause a busy loop.
        self.promised = min(self.promised, self.durable)
        self.step_down("its disk is full")
        self.status = Status.VIEW_CHANGE
        self.stands_next = False
        self.election_at = self.now + self.timers.heartbeat_s

    def oldest_sync_s(self) -> float:
        return self.now - self.outstanding[0].since if self.outstanding else 0.0

    def step_down(self, reason: str) -> None:
        """Stops leading; this member never leads this view again."""
        if not self.leading:
            return
        self.leading = False
        self.serving = False
        self.effects.append(SteppedDown(self.fence, reason))
        self.on_stepped_down()
        self.restart_election_timer()

    def entered(self, config: Config) -> None:
        self.effects.append(EnteredEpoch(config, self.is_member))

    # Time.

    def pass_time(self, now: float) -> None:
        """Advances the time. If the event loop was blocked, timeouts are extended by the gap,
        because a blocked loop could not hear the other members."""
        elapsed = now - self.now
        if elapsed > self._longest_tick_s:
            gap = elapsed - self.timers.heartbeat_s
            self.heard_at += gap
            self.election_at += gap
            self.on_gap(gap)
        if elapsed > 0.0:
            self.now = now

    def restart_election_timer(self) -> None:
        """Restarts the wait for a primary; a group of one does not wait."""
        timers = self.timers
        self.stands_next = False
        if self.is_alone:
            self.election_at = self.now
            return
        self.election_at = (
            self.now
            + timers.follower_timeout_s
            + self.rank() * timers.stagger_s
            + self.draw() * timers.jitter_s
        )

    def rank(self) -> int:
        """Position in the order of the next views: 0 for the member that leads the next one."""
        config = self.config
        if config is None or not config.admits(self.me):
            return 0
        return config.next_view(self.fence.view, self.me) - self.fence.view - 1

    def heard_primary(self, commit: int = 0) -> None:
        """`commit` is the commit number that the primary named."""
        self.heard_at = self.now
        self.heard_commit = max(self.heard_commit, commit)
        self.restart_election_timer()

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
