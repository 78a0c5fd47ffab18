"""Normal operation: the primary orders commands, and a quorum stores them.

The primary appends an entry, writes it to disk and sends Prepare at the same time. Followers
write it and acknowledge cumulatively, naming the checksum of their last entry. An op is
committed when a quorum of members has it on disk and has said so in this view; the primary
counts itself only after its own sync (R11). Entries of older views count once they are
acknowledged in this view.

Op 1 commits only when all members have stored it, and nothing is proposed before that.
"""

from __future__ import annotations

from dataclasses import dataclass

from squall.cluster.ledger.replica.effects import Serves
from squall.cluster.ledger.replica.heartbeat_rounds import Rounds
from squall.cluster.ledger.replica.log import sized
from squall.cluster.ledger.replica.messages import Heartbeat, Packet, Prepare, PrepareOk, RoundAck
from squall.cluster.ledger.replica.state import Core
from squall.cluster.ledger.replica.types import Kind, LogEntry, Member, Status
from squall.runtime.interfaces import NodeId
from squall.runtime.invariants import invariant

MEMBERS = Kind.MEMBERS
PREPARE_BYTES = 48_000
"""Most entry bytes in one Prepare, which fits the largest datagram; one larger command still
goes alone."""
IN_FLIGHT_OPS = 2_048
"""Most uncommitted entries: bounds what a returning follower must catch up with."""
LONE_OPS = 8_192
"""The same limit for a group of one, which has no follower."""
IN_FLIGHT_BYTES = 4 * 1024 * 1024
"""Must stay below `open_group_ledger.RECORD_BYTES`, because one record installs the log of a
view."""
EARLY_MAX = 512
"""Most entries that a follower holds because they arrived before their predecessor."""


@dataclass(slots=True)
class MemberProgress:
    """What the primary knows about one member in this view; always match < next."""

    match: int
    """The member acknowledged in this view that its disk holds everything up to here."""
    next: int
    """The next entry to send to the member; a resend moves it back to `match + 1`."""
    moved_at: float
    """When `match` last rose or the last resend began."""
    version: int = 0
    """The highest command version that the member can apply."""


class Normal:
    """Orders entries while this member leads; stores and acknowledges them while it follows."""

    def __init__(self, core: Core, rounds: Rounds) -> None:
        self._core = core
        self._rounds = rounds
        # As a follower: entries by op that arrived before their predecessor.
        self._early: dict[int, LogEntry] = {}
        # As the primary: the progress of each member, itself included.
        self.progress: dict[NodeId, MemberProgress] = {}
        # The first op that this member proposed in the view it leads; 0 until then.
        self.view_op = 0
        # Bytes of the uncommitted entries that this primary proposed. 0 in a group of one: what
        # waits there waits for its own disk, and the write-ahead log limits that.
        self._in_flight_bytes = 0

    # The primary.

    def lead(self) -> None:
        """Starts to lead with the installed log of the view, and proposes the VIEW entry."""
        core = self._core
        core.leading = True
        core.serving = False
        self.view_op = 0
        self._in_flight_bytes = 0
        last = core.log.last
        self.progress = {
            node: MemberProgress(0, last + 1, core.now)
            for node in (core.config.nodes if core.config else ())
        }
        self._count_self()
        self._open_view()

    def room(self) -> tuple[int, int]:
        """Returns how many more commands, and how many bytes, may be proposed now."""
        core = self._core
        # A single member has no follower that too many entries could overrun.
        most = LONE_OPS if core.is_alone else IN_FLIGHT_OPS
        return most - (core.log.last - core.commit), IN_FLIGHT_BYTES - self._in_flight_bytes

    def may_propose(self) -> bool:
        core = self._core
        return core.leading and core.serving and not core.holds_members()

    def propose(self, kind: Kind, bodies: list[tuple[int, bytes]]) -> int:
        """Appends an entry for each (version, body); returns the op number of the first."""
        core = self._core
        if not core.leading:
            invariant(False, "only a primary proposes")
        entries = core.append(kind, bodies)
        core.persist(entries=entries)
        if not core.is_alone:
            self._in_flight_bytes += sized(entries)
            self._push_to_all()
            self._count_self()
        return entries[0].op

    def stored(self, packet: Packet, ack: PrepareOk | RoundAck) -> None:
        core = self._core
        progress = self.progress.get(packet.sender.node)
        if progress is None:
            return
        if isinstance(ack, RoundAck):
            progress.version = ack.version
        known = core.log.checksum(ack.op)
        # An acknowledgment of another history (its checksum differs) counts for nothing.
        if ack.op > core.log.last or (known is not None and known != ack.checksum):
            return
        if ack.op > progress.match:
            progress.match = ack.op
            progress.moved_at = core.now
            progress.next = max(progress.next, ack.op + 1)
            self.try_commit()
        if core.leading:
            self._push(packet.sender.node, progress)

    def taken_back(self) -> None:
        """Resets the in-flight count after the log was cut to its durable part."""
        self._in_flight_bytes = 0

    def own_copy_durable(self) -> None:
        self._count_self()
        self.try_commit()

    def try_commit(self) -> None:
        core = self._core
        if not core.leading:
            return
        # A group of one is its own quorum.
        op = self.progress[core.me.node].match if core.is_alone else self._held_by_quorum()
        if op <= core.commit:
            return
        done = core.log.between(core.commit + 1, op)
        if self._in_flight_bytes:
            # Nothing is in flight any more if this is the whole log.
            left = self._in_flight_bytes - sized(done) if op < core.log.last else 0
            self._in_flight_bytes = max(left, 0)
        if done[-1].kind is MEMBERS:
            # The last message of this epoch: it lets the followers enter the next one.
            self._announce_commit(op)
        core.commit_entries(done)
        if not self.view_op:
            self._open_view()
        # The view's own first entry is committed, and so is everything inherited before it (R2).
        if core.leading and not core.serving and 0 < self.view_op <= core.commit:
            core.serving = True
            core.effects.append(Serves(core.fence))

    def tick(self) -> None:
        """Resends entries to each member whose progress stood still for a heartbeat."""
        core = self._core
        for node, progress in self.progress.items():
            if node == core.me.node or progress.match >= core.log.last:
                continue
            if core.now - progress.moved_at >= core.timers.heartbeat_s:
                progress.next = max(progress.match, core.log.base_op) + 1
                progress.moved_at = core.now
                self._push(node, progress)

    def _open_view(self) -> None:
        core = self._core
        if not core.leading or self.view_op or (core.commit < 1 and core.log.last < 2):
            return
        if core.holds_members():
            # The log ends with a membership change. Nothing may follow it in this epoch; its
            # commit begins the next one.
            return
        self.view_op = core.log.last + 1
        self.propose(Kind.VIEW, [(0, b"")])

    def _held_by_quorum(self) -> int:
        core = self._core
        held = sorted((progress.match for progress in self.progress.values()), reverse=True)
        # Formation: op 1 commits only when every member has stored it.
        if core.commit < 1 and core.log.last < 2:
            return min(held[-1], 1)
        return held[core.quorum - 1]

    def _count_self(self) -> None:
        """Counts this primary's own copy, but only what its disk has stored in this view."""
        core = self._core
        progress = self.progress[core.me.node]
        if core.durable >= core.promised and core.durable_op > progress.match:
            progress.match = core.durable_op

    def _announce_commit(self, op: int) -> None:
        core = self._core
        heartbeat = Heartbeat(0, op, core.log.base_op + 1, core.clock.read(core.now))
        core.send(core.others() + self._rounds.listeners, heartbeat)

    def _push_to_all(self) -> None:
        for node, progress in self.progress.items():
            if node != self._core.me.node:
                self._push(node, progress)

    def _push(self, node: NodeId, progress: MemberProgress) -> None:
        core = self._core
        while core.log.base_op < progress.next <= core.log.last:
            entries = core.log.slice(progress.next, core.log.last, PREPARE_BYTES)
            # Op 1 leaves only when it is durable here: a primary that crashed before might
            # form the group a second time.
            after = core.issued if entries[0].op == 1 else 0
            core.send(node, Prepare(entries, core.commit, core.clock.read(core.now)), after=after)
            progress.next = int(entries[-1].op) + 1

    # A follower.

    def prepare(self, packet: Packet, prepare: Prepare) -> None:
        """Stores and acknowledges entries; the caller has checked `accepts`."""
        core = self._core
        core.heard_primary(prepare.commit)
        core.clock.observe(prepare.group_ms, core.now)
        fresh: list[LogEntry] = []
        for entry in prepare.entries:
            if entry.op <= core.log.last:
                self._same(entry)
            elif core.log.follows(entry):
                core.log.append(entry)
                fresh.append(entry)
            elif len(self._early) < EARLY_MAX:
                self._early[entry.op] = entry
        fresh += self._take_early()
        if fresh:
            core.persist(entries=tuple(fresh))
        checksum = core.log.checksum(core.log.last)
        if checksum is not None:
            core.send(
                packet.sender.node, PrepareOk(core.log.last, checksum), after=self.ack_after()
            )
        core.learn_commit(min(prepare.commit, core.log.last))

    def acknowledge_log(self) -> None:
        """Acknowledges the log of the view, which this follower has just installed."""
        core = self._core
        primary = core.primary
        self.forget_early()
        if primary is not None and not core.leading:
            ack = PrepareOk(core.log.last, core.log.end())
            core.send(primary.node, ack, after=self.ack_after())

    def ack_after(self) -> int:
        """Returns the record to wait for: an acknowledgment promises that everything up to its
        op is on disk (R11)."""
        return self._core.issued

    def heartbeat(self, packet: Packet, heartbeat: Heartbeat) -> None:
        core = self._core
        core.heard_primary(heartbeat.commit)
        core.clock.observe(heartbeat.group_ms, core.now)
        if heartbeat.round and self._rounds.acknowledges(packet):
            self._rounds.acknowledge(packet, heartbeat)
        core.learn_commit(min(heartbeat.commit, core.log.last))

    def forget_early(self) -> None:
        self._early.clear()

    def accepts(self, packet: Packet) -> bool:
        core = self._core
        return (
            core.status is Status.NORMAL
            and packet.fence == core.fence
            and not core.leading
            and self._is_primary(packet.sender)
        )

    def _is_primary(self, sender: Member) -> bool:
        return self._core.primary == sender

    def _same(self, entry: LogEntry) -> None:
        held = self._core.log.checksum(entry.op)
        invariant(
            held is None or held == entry.checksum,
            f"op {entry.op} of this view differs from the one stored",
        )

    def _take_early(self) -> list[LogEntry]:
        core = self._core
        taken: list[LogEntry] = []
        while (entry := self._early.pop(core.log.last + 1, None)) is not None:
            if not core.log.follows(entry):
                break
            core.log.append(entry)
            taken.append(entry)
        return taken
