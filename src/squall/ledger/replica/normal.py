"""Normal operation: the primary orders commands, a quorum stores them.

The primary appends, persists and sends Prepare at the same time; followers persist and
acknowledge cumulatively, naming the checksum of the last entry. An op is committed when a
quorum of the stored members, each from its own disk, holds it in this view; the primary
counts itself only after its own sync. Entries of older views count in this view once
they are acknowledged in it.

Op 1 commits only when all members stored it, and nothing follows it before.
"""

from __future__ import annotations

from dataclasses import dataclass

from squall.ledger.replica.effects import Serves
from squall.ledger.replica.log import sized
from squall.ledger.replica.messages import Heartbeat, Packet, Prepare, PrepareOk, RoundAck
from squall.ledger.replica.reads import Rounds
from squall.ledger.replica.state import Core
from squall.ledger.replica.types import Kind, LogEntry, Member, Status, make_entry
from squall.runtime.interfaces import NodeId
from squall.runtime.invariants import invariant

PREPARE_BYTES = 48_000
"""Body of one Prepare unless a single command is larger; fits the largest datagram."""
IN_FLIGHT_OPS = 2_048
IN_FLIGHT_BYTES = 4 * 1024 * 1024
EARLY_MAX = 512
"""Entries kept that arrived before their predecessor."""


@dataclass(slots=True)
class Progress:
    """What the primary knows of one member in this view."""

    match: int
    next: int
    moved_at: float
    version: int = 0


class Normal:
    def __init__(self, core: Core, rounds: Rounds) -> None:
        self._core = core
        self._rounds = rounds
        self._early: dict[int, LogEntry] = {}
        self.progress: dict[NodeId, Progress] = {}
        self.view_op = 0
        """The first op of the view that this member leads; 0 until it is proposed."""
        self._in_flight_bytes = 0

    # The primary.

    def lead(self) -> None:
        """The log of the view is installed here; the view's own first entry follows."""
        core = self._core
        core.leading = True
        core.serving = False
        self.view_op = 0
        self._in_flight_bytes = 0
        last = core.log.last
        self.progress = {
            node: Progress(0, last + 1, core.now)
            for node in (core.config.nodes if core.config else ())
        }
        self._count_self()
        self._open_view()

    def room(self) -> bool:
        core = self._core
        return (
            core.log.last - core.commit < IN_FLIGHT_OPS and self._in_flight_bytes < IN_FLIGHT_BYTES
        )

    def may_propose(self) -> bool:
        core = self._core
        return core.leading and core.serving and not core.holds_members()

    def propose(self, kind: Kind, bodies: list[tuple[int, bytes]]) -> list[int]:
        """Appends (version, body) each; their op numbers."""
        core = self._core
        invariant(core.leading, "only a primary proposes")
        first = core.log.last + 1
        for version, body in bodies:
            core.append(kind, body, version, make_entry)
        entries = tuple(core.log.entry(op) for op in range(first, core.log.last + 1))
        self._in_flight_bytes += sized(entries)
        core.persist(entries=entries)
        self._push_to_all()
        self._count_self()
        return [int(entry.op) for entry in entries]

    def stored(self, packet: Packet, ack: PrepareOk | RoundAck) -> None:
        core = self._core
        progress = self.progress.get(packet.sender.node)
        if progress is None:
            return
        if isinstance(ack, RoundAck):
            progress.version = ack.version
        known = core.log.checksum(ack.op)
        if ack.op > core.log.last or (known is not None and known != ack.checksum):
            return
        if ack.op > progress.match:
            progress.match = ack.op
            progress.moved_at = core.now
            progress.next = max(progress.next, ack.op + 1)
            self.try_commit()
        if core.leading:
            self._push(packet.sender.node, progress)

    def own_copy_durable(self) -> None:
        if self._core.leading:
            self._count_self()
            self.try_commit()

    def try_commit(self) -> None:
        core = self._core
        if not core.leading or core.config is None:
            return
        op = self._held_by_quorum()
        if op <= core.commit:
            return
        before = core.commit
        done = tuple(core.log.entry(each) for each in range(before + 1, op + 1))
        self._in_flight_bytes = max(0, self._in_flight_bytes - sized(done))
        if done[-1].kind is Kind.MEMBERS:
            # The last word of this epoch: who hears it may enter the next one.
            self._tell_commit(op)
        core.learn_commit(op)
        self._open_view()
        if core.leading and not core.serving and 0 < self.view_op <= core.commit:
            core.serving = True
            core.effects.append(Serves(core.fence))

    def tick(self) -> None:
        """Sends again what was not acknowledged for a heartbeat."""
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
            # Nothing follows the epoch's last command; its commit ends the epoch.
            return
        self.view_op = core.log.last + 1
        self.propose(Kind.VIEW, [(0, b"")])

    def _held_by_quorum(self) -> int:
        core = self._core
        config = core.config
        invariant(config is not None, "a primary knows its members")
        held = sorted((progress.match for progress in self.progress.values()), reverse=True)
        if core.commit < 1 and core.log.last < 2:
            return min(held[-1], 1)
        return held[core.quorum - 1]

    def _count_self(self) -> None:
        """By what is durable here, in this view."""
        core = self._core
        progress = self.progress[core.me.node]
        if core.durable >= core.promised:
            progress.match = max(progress.match, core.durable_op)

    def _tell_commit(self, op: int) -> None:
        core = self._core
        heartbeat = Heartbeat(0, op, core.log.base_op + 1, core.clock.read(core.now))
        core.send(core.others() + self._rounds.listeners, heartbeat)

    def _push_to_all(self) -> None:
        for node, progress in self.progress.items():
            if node != self._core.me.node:
                self._push(node, progress)

    def _push(self, node: NodeId, progress: Progress) -> None:
        core = self._core
        while core.log.base_op < progress.next <= core.log.last:
            entries = core.log.slice(progress.next, core.log.last, PREPARE_BYTES)
            # Op 1 is shown only when it is durable here: there is one formation.
            after = core.issued if entries[0].op == 1 else 0
            core.send(node, Prepare(entries, core.commit, core.clock.read(core.now)), after=after)
            progress.next = int(entries[-1].op) + 1

    # A follower.

    def prepare(self, packet: Packet, prepare: Prepare) -> None:
        """In status normal in the packet's view, from its primary."""
        core = self._core
        core.heard_primary()
        core.clock.hear(prepare.group_ms, core.now)
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
        """The log of the view was installed here."""
        core = self._core
        primary = core.primary
        self.forget_early()
        if primary is not None and not core.leading:
            ack = PrepareOk(core.log.last, core.log.end())
            core.send(primary.node, ack, after=self.ack_after())

    def ack_after(self) -> int:
        """An acknowledgment says that everything up to its op is on disk."""
        return self._core.issued

    def heartbeat(self, packet: Packet, heartbeat: Heartbeat) -> None:
        core = self._core
        core.heard_primary()
        core.clock.hear(heartbeat.group_ms, core.now)
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
