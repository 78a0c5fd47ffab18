"""The invariants of the group scenario, checked from outside of all nodes.

Each check verifies a promise of docs/replication.md. The nodes call the checks directly, and a
violation fails the run at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from lab.scenarios.group.history import Operation, explain
from lab.scenarios.group.machine import blob_of
from lab.sim.checks import check
from lab.sim.world import World
from squall.cluster.ledger.interface import Entry, Fence
from squall.cluster.ledger.replica.effects import (
    Apply,
    ClockTaken,
    Effect,
    EnteredEpoch,
    Persist,
    Send,
    Serves,
)
from squall.cluster.ledger.replica.messages import (
    Heartbeat,
    Packet,
    Prepare,
    PrepareOk,
    PreVoteOk,
    RoundAck,
    StartView,
    ViewChange,
    Vote,
)
from squall.cluster.ledger.replica.state import Core, config_of
from squall.cluster.ledger.replica.types import Config, Kind, LogEntry, StepRecord

NAMED_WITHIN_S = 1.5
"""A command that commits later than this after its proposal is not checked for its blob."""
UNHEARD_S = 1.5
"""More than follower_timeout_s: a member that is not cut off has heard of every older command."""
CLOCK_RATE = 0.95
CLOCK_SLACK_MS = 400.0
"""Most time that the group clock may lose with a new primary: the delay of the votes, and the
difference of clock rates."""


class GroupChecks:
    """Observes the effects of all members and the requests of all callers, and checks them."""

    def __init__(self, world: World, *, first_op: int = 1) -> None:
        """`first_op` is above 1 for a group that was made from the state of another."""
        self._world = world
        self._first_op = first_op
        # Checksum of each op that any member has applied.
        self.history: dict[int, bytes] = {}
        self.entries: dict[int, LogEntry] = {}
        self.executed: dict[tuple[str, int], int] = {}
        self.acked: dict[tuple[str, int], int] = {}
        self.leaders: dict[Fence, str] = {}
        self.served: list[tuple[float, Fence]] = []
        self.promised: dict[str, Fence] = {}
        # Storages that agreed to a pre-vote, by candidate, epoch and view.
        self._agreed: dict[tuple[str, int, int], set[str]] = {}
        self.durable: dict[str, int] = {}
        self._ends: dict[str, tuple[Fence, int]] = {}
        self.epoch = 0
        self.epoch_begins = asyncio.Event()
        # Members that lost a disk: the lost disk may have held a blob when a quorum stored it.
        self.lost_disks: set[str] = set()
        # When any member first stored each entry, by checksum.
        self._proposed: dict[bytes, float] = {}
        # The newest op that any member has applied, and since when each blob of its state is named.
        self._state_op = 0
        self._named: dict[str, float] = {}
        # The highest fence that each storage has shown to others, or has on its disk.
        self._shown: dict[str, Fence] = {}
        # The promise that each boot held at its last step.
        self._held: dict[str, Fence] = {}
        # The member that last installed a checkpoint of a peer, and when.
        self.installed = ("", 0.0)
        self.operations: list[Operation] = []
        self.newest_ack = 0.0
        # False if the seed's faults may delay the group clock: it is then not checked.
        self.clock_runs = True
        self._stamp: tuple[float, int] = (0.0, 0)
        self._newest = Fence(0, 0)
        self._attempt = 0
        self._boot = ""
        self.runner = ""
        self.last_request = 0.0

    def guard(self, call: Callable[[], None]) -> None:
        """Reports a violation to the simulation, because the node would swallow an exception."""
        try:
            call()
        except Exception as error:
            self._world.loop.fail(error, "", None)

    # The log.

    def effect(self, node: str, boot: str, core: Core, effect: Effect) -> None:
        storage = core.me.storage
        if not core.mending:
            self.durable[storage] = core.durable_op
        self._promise(node, boot, core)
        match effect:
            case Apply():
                self._durable(node, core.config, effect.entries[-1])
                for entry in effect.entries:
                    self._named_blob(core.config, entry)
                    self._applied(node, entry)
            case Send():
                self._sent(node, boot, storage, effect)
                self._election(node, core, effect)
            case Serves():
                self._led(effect.fence, f"{node} {boot}")
                self._inherited(node, core, effect.fence)
                self.served.append((self._world.now, effect.fence))
            case Persist():
                if effect.record.restart_op:
                    self.installed = (node, self._world.now)
                self._persisted(node, storage, effect.record)
            case EnteredEpoch():
                if effect.config.epoch > self.epoch:
                    self.epoch = effect.config.epoch
                    self.epoch_begins.set()
            case ClockTaken():
                self._clock(effect)
                self._chosen(node, core)
            case _:
                pass

    def _promise(self, node: str, boot: str, core: Core) -> None:
        """A promise never falls, from step to step or over a restart (R2)."""
        storage, fence = core.me.storage, core.fence
        held = self._held.get(boot, fence)
        check(fence >= held, f"the promise of {node} falls from {held} to {fence}")
        self._held[boot] = fence
        if core.promise_is_durable():
            self._shown[storage] = max(self._shown.get(storage, fence), fence)

    def _durable(self, node: str, config: Config | None, entry: LogEntry) -> None:
        """When the first member commits an entry, a quorum must have it on disk (R11)."""
        if config is None or int(entry.op) in self.history or config.epoch != entry.fence.epoch:
            return
        holders = [m for m in config.members if self.durable.get(m.storage, 0) >= entry.op]
        check(
            len(holders) >= config.quorum,
            f"{node} takes op {entry.op} for committed; it is durable on {len(holders)} only",
        )

    def _named_blob(self, config: Config | None, entry: LogEntry) -> None:
        """When a command that names a blob commits, the blob must be on a quorum of disks (R9)."""
        if entry.kind is not Kind.COMMAND or int(entry.op) in self.history or config is None:
            return
        blob = blob_of(entry.body)
        # A command that commits late may find that the short hour of the simulation is over.
        since = self._world.now - self._proposed.get(entry.checksum, 0.0)
        if not blob or since > NAMED_WITHIN_S or config.epoch != entry.fence.epoch:
            return
        holders = self._holders(blob, config)
        check(
            len(holders) >= config.quorum,
            f"op {entry.op} names blob {blob[:8]}, which is on {holders} only",
        )

    def _holders(self, blob: str, config: Config) -> list[str]:
        path = f"ledger/blobs/{blob}"
        return [
            member.node
            for member in config.members
            if path in self._world.nodes[member.node].disk.tree.names.files
            or member.node in self.lost_disks
        ]

    def version(self, node: str, version: int, entry: Entry) -> None:
        """An older binary must not apply commands that it does not know: it would diverge (R3)."""
        check(
            entry.version <= version,
            f"{node} applies op {entry.op} of version {entry.version} and knows {version}",
        )

    def state(self, op: int, blobs: list[str]) -> None:
        """A member applied `op`; the state now names these blobs."""
        if op > self._state_op:
            self._state_op = op
            now = self._world.now
            self._named = {blob: self._named.get(blob, now) for blob in blobs}

    def deleted(self, node: str, blobs: set[str]) -> None:
        """A member must not delete a blob that the newest state names (R9), unless the name is so
        new that the member need not have heard of it."""
        for blob in sorted(blobs):
            named_s = self._world.now - self._named.get(blob, self._world.now)
            check(
                named_s < UNHEARD_S or not self.clock_runs,
                f"{node} deleted blob {blob[:8]}, which a command has named for {named_s:.1f} s",
            )

    def _applied(self, node: str, entry: LogEntry) -> None:
        op = int(entry.op)
        known = self.history.get(op)
        if known is None:
            before = self.history.get(op - 1)
            check(
                op == self._first_op or before == entry.previous,
                f"{node} applied op {op} behind another past",
            )
            self.history[op] = entry.checksum
            self.entries[op] = entry
        else:
            check(known == entry.checksum, f"op {op} has two values; {node} applied the second")

    def _clock(self, taken: ClockTaken) -> None:
        """Group time must keep pace with real time, unless all members that knew it restarted
        (R10)."""
        then, group_ms = self._stamp
        lost_ms = (self._world.now - then) * 1000.0 * CLOCK_RATE - (taken.group_ms - group_ms)
        if then and not taken.all_restarted and self.clock_runs:
            check(
                lost_ms < CLOCK_SLACK_MS,
                f"a new primary's group clock lost {lost_ms:.0f} ms",
            )

    def members(self, entry: LogEntry, blobs: list[str]) -> None:
        """When a membership change commits, every blob must be on a quorum of the new members
        (R9)."""
        if int(entry.op) in self.history:
            return
        config = config_of(entry)
        for blob in blobs:
            holders = self._holders(blob, config)
            check(
                len(holders) >= config.quorum,
                f"blob {blob[:8]} is on {holders} only when epoch {config.epoch} begins",
            )

    def _inherited(self, node: str, core: Core, fence: Fence) -> None:
        """A primary that serves must have committed every op that any member has applied (R2)."""
        if fence == max(self.leaders):
            newest = max(self.history, default=0)
            check(core.commit >= newest, f"{node} serves {fence} without op {newest}")

    def _chosen(self, node: str, core: Core) -> None:
        """The log that wins a view change must hold every op that any member has applied."""
        newest = max(self.history, default=0)
        if newest > core.log.base_op and core.fence > max(self.leaders):
            check(
                core.log.checksum(newest) == self.history[newest],
                f"{node} leads {core.fence} with a log that lacks op {newest}",
            )

    def _persisted(self, node: str, storage: str, record: StepRecord) -> None:
        """A member may cut its log only for a later view or for entries of a later view."""
        normal, end = self._ends.get(storage, (record.last_normal, 0))
        later = any(entry.fence > record.fence for entry in record.entries)
        if normal == record.last_normal == record.fence and not later and record.keep >= 0:
            check(
                record.keep >= end, f"{node} cuts its log from {end} to {record.keep} in its view"
            )
        if record.keep >= 0:
            end = record.keep
        for entry in record.entries:
            self._proposed.setdefault(entry.checksum, self._world.now)
        if record.entries:
            end = int(record.entries[-1].op)
        self._ends[storage] = (record.last_normal, end)

    def opened(self, core: Core) -> None:
        """A new boot begins; writes of the former one that were not synced may be gone. What it
        has shown to others must not be."""
        storage = core.me.storage
        self._ends.pop(storage, None)
        shown = self._shown.get(storage, core.fence)
        check(
            core.fence >= shown, f"{core.me.node} starts in {core.fence} and had promised {shown}"
        )

    def _sent(self, node: str, boot: str, storage: str, send: Send) -> None:
        packet = send.packet
        if isinstance(packet.body, PrepareOk | RoundAck | Vote | ViewChange | StartView):
            self._shown[storage] = max(self._shown.get(storage, packet.fence), packet.fence)
        match packet.body:
            case Prepare() | Heartbeat():
                self._led(packet.fence, f"{node} {boot}")
                if packet.fence >= self._newest:
                    self._newest = packet.fence
                    self._stamp = (self._world.now, packet.body.group_ms)
            case PrepareOk() | RoundAck():
                highest = self.promised.get(storage, packet.fence)
                check(
                    packet.fence >= highest,
                    f"{node} acknowledges in {packet.fence} and had promised {highest}",
                )
            case Vote():
                highest = self.promised.get(storage, packet.fence)
                self.promised[storage] = max(highest, packet.fence)
            case _:
                pass

    def _election(self, node: str, core: Core, send: Send) -> None:
        """A member that is cut off must not end a view in which a quorum hears its primary."""
        packet = send.packet
        match packet.body:
            case PreVoteOk():
                check(not core.hears_primary(), f"{node} wants another view and hears its primary")
                for candidate in send.to:
                    place = (candidate, packet.fence.epoch, packet.body.view)
                    self._agreed.setdefault(place, set()).add(core.me.storage)
            case ViewChange():
                if not packet.body.hand_over:
                    self._wanted(node, core.config, packet)
            case _:
                pass

    def _wanted(self, node: str, config: Config | None, packet: Packet) -> None:
        place = (node, packet.fence.epoch, packet.fence.view)
        agreed = {packet.sender.storage} | self._agreed.get(place, set())
        if config is not None and config.epoch == packet.fence.epoch:
            members = [member for member in config.members if member.storage in agreed]
            check(
                len(members) >= config.quorum,
                f"{node} asks for votes for {packet.fence}; {len(members)} would give one",
            )

    def _led(self, fence: Fence, who: str) -> None:
        first = self.leaders.setdefault(fence, who)
        check(first == who, f"{first} and {who} act as primary of {fence}")

    def executed_by(self, node: str, done: list[tuple[str, int, int]]) -> None:
        for client, number, op in done:
            first = self.executed.setdefault((client, number), op)
            check(first == op, f"{client} #{number} is applied as op {first} and as op {op}")
        done.clear()

    def acknowledged(self, client: str, number: int, op: int) -> None:
        self.acked[client, number] = op
        self.newest_ack = self._world.now

    def primary(self) -> str:
        """Returns the member that served last."""
        return self.leaders[self.served[-1][1]].partition(" ")[0] if self.served else ""

    # Confirmations.

    def confirmed(self, node: str, fence: Fence, since: float) -> None:
        later = [other for when, other in self.served if when < since and other > fence]
        check(
            not later,
            f"{node} confirmed {fence} in a round begun after {max(later, default=fence)} served",
        )

    # Load.

    def request(self, node: str, attempt: int, boot: str) -> None:
        check(
            attempt >= self._attempt,
            f"{node} sends for attempt {attempt} while attempt {self._attempt} runs",
        )
        if attempt > self._attempt:
            self._attempt, self._boot = attempt, boot
            self._world.count("attempts")
        check(boot == self._boot, f"attempt {attempt} runs in {self._boot} and in {boot}")
        self.runner = node
        self.last_request = self._world.now

    # The end.

    def finish(self) -> None:
        for (client, number), op in self.acked.items():
            check(
                self.executed.get((client, number)) == op,
                f"{client} #{number} was acknowledged as op {op} and is not so in the history",
            )
        keys: dict[str, list[Operation]] = {}
        for operation in self.operations:
            keys.setdefault(operation.key, []).append(operation)
        for key in sorted(keys):
            problem = explain(keys[key])
            check(not problem, f"key {key}: {problem}")
