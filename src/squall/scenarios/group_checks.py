"""What must hold in every run of the group scenario, seen from outside of all nodes.

Each check belongs to a promise of docs/replication.md. The nodes call it directly; what
breaks fails the run at that instant.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from squall.ledger.interface import Fence
from squall.ledger.replica.effects import (
    Apply,
    ClockTaken,
    Effect,
    EnteredEpoch,
    Persist,
    Send,
    Serves,
)
from squall.ledger.replica.messages import (
    Heartbeat,
    Packet,
    Prepare,
    PrepareOk,
    PreVoteOk,
    RoundAck,
    ViewChange,
    Vote,
)
from squall.ledger.replica.state import Core, config_of
from squall.ledger.replica.types import Config, LogEntry, Record
from squall.scenarios.group_history import Operation, explain
from squall.sim.checks import check
from squall.sim.world import World

CLOCK_RATE = 0.95
CLOCK_SLACK_MS = 400.0
"""What a hand-over of the clock may lose: the votes' way, and rates that differ."""


class GroupChecks:
    def __init__(self, world: World) -> None:
        self._world = world
        self.history: dict[int, bytes] = {}
        """Checksum of each op that was ever applied anywhere."""
        self.entries: dict[int, LogEntry] = {}
        self.executed: dict[tuple[str, int], int] = {}
        self.acked: dict[tuple[str, int], int] = {}
        self.leaders: dict[Fence, str] = {}
        self.served: list[tuple[float, Fence]] = []
        self.promised: dict[str, Fence] = {}
        self._agreed: dict[tuple[str, int, int], set[str]] = {}
        """Disks whose members would vote, by candidate, epoch and view."""
        self.durable: dict[str, int] = {}
        self._ends: dict[str, tuple[Fence, int]] = {}
        self.epoch = 0
        self.epoch_begins = asyncio.Event()
        self.lost_disks: set[str] = set()
        """They may have held a blob when it counted."""
        self.operations: list[Operation] = []
        self.newest_ack = 0.0
        self.clock_runs = True
        """False: machines were suspended, and with them what they knew of the time."""
        self._stamp: tuple[float, int] = (0.0, 0)
        self._newest = Fence(0, 0)
        self._attempt = 0
        self._boot = ""
        self.runner = ""
        self.last_request = 0.0

    def guard(self, call: Callable[[], None]) -> None:
        """Never into the node: its own error handling would swallow it."""
        try:
            call()
        except Exception as error:
            self._world.loop.fail(error, "", None)

    # The log.

    def effect(self, node: str, boot: str, core: Core, effect: Effect) -> None:
        storage = core.me.storage
        if not core.mending:
            self.durable[storage] = core.durable_op
        match effect:
            case Apply():
                self._durable(node, core.config, effect.entries[-1])
                for entry in effect.entries:
                    self._applied(node, entry)
            case Send():
                self._sent(node, boot, storage, effect)
                self._election(node, core, effect)
            case Serves():
                self._led(effect.fence, f"{node} {boot}")
                self._inherited(node, core, effect.fence)
                self.served.append((self._world.now, effect.fence))
            case Persist():
                self._kept(node, storage, effect.record)
            case EnteredEpoch():
                if effect.config.epoch > self.epoch:
                    self.epoch = effect.config.epoch
                    self.epoch_begins.set()
            case ClockTaken():
                self._clock(effect)
                self._chosen(node, core)
            case _:
                pass

    def _durable(self, node: str, config: Config | None, entry: LogEntry) -> None:
        """Whoever commits first, by whatever it counts: a quorum has it on disk."""
        if config is None or int(entry.op) in self.history or config.epoch != entry.fence.epoch:
            return
        holders = [m for m in config.members if self.durable.get(m.storage, 0) >= entry.op]
        check(
            len(holders) >= config.quorum,
            f"{node} takes op {entry.op} for committed; it is durable on {len(holders)} only",
        )

    def _applied(self, node: str, entry: LogEntry) -> None:
        op = int(entry.op)
        known = self.history.get(op)
        if known is None:
            before = self.history.get(op - 1)
            check(
                op == 1 or before == entry.previous, f"{node} applied op {op} behind another past"
            )
            self.history[op] = entry.checksum
            self.entries[op] = entry
        else:
            check(known == entry.checksum, f"op {op} has two values; {node} applied the second")

    def _clock(self, taken: ClockTaken) -> None:
        """Group time passes as time does, except where everybody who knew it restarted."""
        then, group_ms = self._stamp
        lost_ms = (self._world.now - then) * 1000.0 * CLOCK_RATE - (taken.group_ms - group_ms)
        if then and not taken.all_restarted and self.clock_runs:
            check(
                lost_ms < CLOCK_SLACK_MS,
                f"a new primary's group clock lost {lost_ms:.0f} ms",
            )

    def members(self, entry: LogEntry, blobs: list[str]) -> None:
        """At the commit of a change: every blob is on a quorum of the new members' disks."""
        if int(entry.op) in self.history:
            return
        config = config_of(entry)
        for blob in blobs:
            path = f"ledger/blobs/{blob}"
            holders = [
                member.node
                for member in config.members
                if path in self._world.nodes[member.node].disk.tree.names.files
                or member.node in self.lost_disks
            ]
            check(
                len(holders) >= config.quorum,
                f"blob {blob[:8]} is on {holders} only when epoch {config.epoch} begins",
            )

    def _inherited(self, node: str, core: Core, fence: Fence) -> None:
        """Who serves has committed all that anybody ever took for committed."""
        if fence == max(self.leaders):
            newest = max(self.history, default=0)
            check(core.commit >= newest, f"{node} serves {fence} without op {newest}")

    def _chosen(self, node: str, core: Core) -> None:
        """The log that wins a view change holds all that anybody took for committed."""
        newest = max(self.history, default=0)
        if newest > core.log.base_op and core.fence > max(self.leaders):
            check(
                core.log.checksum(newest) == self.history[newest],
                f"{node} leads {core.fence} with a log that lacks op {newest}",
            )

    def _kept(self, node: str, storage: str, record: Record) -> None:
        """A log is cut only for a later view, or for what a later view committed."""
        normal, end = self._ends.get(storage, (record.last_normal, 0))
        later = any(entry.fence > record.fence for entry in record.entries)
        if normal == record.last_normal == record.fence and not later and record.keep >= 0:
            check(
                record.keep >= end, f"{node} cuts its log from {end} to {record.keep} in its view"
            )
        if record.keep >= 0:
            end = record.keep
        if record.entries:
            end = int(record.entries[-1].op)
        self._ends[storage] = (record.last_normal, end)

    def opened(self, storage: str) -> None:
        """A boot begins: what the former one wrote and did not sync may be gone."""
        self._ends.pop(storage, None)

    def _sent(self, node: str, boot: str, storage: str, send: Send) -> None:
        packet = send.packet
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
        """Whoever is cut off must not end a view that others are content with."""
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
        """Who served last."""
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
