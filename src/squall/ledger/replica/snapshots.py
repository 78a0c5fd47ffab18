"""Checkpoints of a member: made, given to peers in parts, taken from them.

A checkpoint is written when the settings say so and lets the log be dropped. A member
that is too far behind for the log takes one whole, checks it, makes it its own on disk,
and only then loads it and tells the core.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from squall.ledger.apply import Applier
from squall.ledger.checkpoint import CheckpointDamaged, CheckpointHead
from squall.ledger.interface import Capture, GroupMs
from squall.ledger.replica.exchange import PART_BYTES, Message, SnapshotAsk, SnapshotPart
from squall.ledger.replica.keeping import Kept
from squall.ledger.replica.types import Base
from squall.ledger.settings import LedgerSettings
from squall.runtime.interfaces import NodeId, Runtime
from squall.runtime.tasks import TaskRunner, TaskToken

if TYPE_CHECKING:
    from squall.ledger.replica.ledger import GroupLedger

ASK_AGAIN_BEATS = 2
GIVE_UP_BEATS = 20
SENT_MAX = 2
"""Encoded checkpoints kept for peers that fetch them."""


class Slices:
    """A capture of slices that are there already."""

    def __init__(self, slices: list[bytes]) -> None:
        self._slices = slices

    def slices(self) -> Iterator[bytes]:
        return iter(self._slices)


class Snapshots:
    def __init__(
        self,
        ledger: GroupLedger,
        tasks: TaskRunner,
        runtime: Runtime,
        applier: Applier,
        kept: Kept,
        settings: LedgerSettings,
    ) -> None:
        self._ledger = ledger
        self._tasks = tasks
        self._clock = runtime.clock
        self._applier = applier
        self._kept = kept
        self._settings = settings
        self._sent: dict[int, tuple[Base, bytes]] = {}
        self._source: NodeId | None = None
        self._base: Base | None = None
        self._parts = bytearray()
        self._asked_at = 0.0
        self._moved_at = 0.0
        self._task: TaskToken | None = None
        self._since = 0
        self._bytes = 0
        self._made_at = runtime.clock.now()
        self.failures: list[str] = []

    # Making.

    def applied(self, size: int) -> None:
        self._since += 1
        self._bytes += size
        settings = self._settings
        limit = max(settings.checkpoint_bytes, self._kept.checkpoints.last_bytes // 2)
        if self._since >= settings.checkpoint_entries or self._bytes >= limit:
            self._begin()

    def _begin(self) -> None:
        if self._since and not self._is_busy():
            self._since = self._bytes = 0
            self._made_at = self._clock.now()
            self._task = self._tasks.start(
                "checkpoint", self.checkpoint(), group="ledger", on_error=self._no_checkpoint
            )

    async def checkpoint(self) -> None:
        core = self._ledger.replica.core
        applier = self._applier
        op = int(applier.applied)
        # Nothing can be applied between these lines; a checkpoint has the members that
        # were in force at its op, which the core knows when it has applied all.
        if op != core.commit or op <= core.log.base_op or core.config is None:
            return
        await self._write(self._base_now(), applier.machine.capture())
        self._ledger.replica.compact(op)

    def _base_now(self) -> Base:
        core, applier = self._ledger.replica.core, self._applier
        return Base(
            applier.applied,
            applier.checksum,
            GroupMs(applier.group_ms),
            core.group,
            core.config,
            applier.active_version,
        )

    async def renew(self) -> None:
        """Replaces every file of log and checkpoints by new ones, from memory: none that is
        older is needed afterwards. Raises OSError and what the log raises."""
        while self._is_busy():
            await self._clock.sleep(self._ledger.replica.core.timers.heartbeat_s)
        self._task = self._tasks.start(
            "renew files", self._renew(), group="ledger", on_error=self._no_checkpoint
        )
        while self._is_busy():
            await self._clock.sleep(self._ledger.replica.core.timers.heartbeat_s)

    async def _renew(self) -> None:
        ledger, kept, applier = self._ledger, self._kept, self._applier
        core = ledger.replica.core
        # First a checkpoint as usual, so that little of the log is left to be copied.
        await applier.wait(core.commit)
        await self.checkpoint()
        await kept.wal.cut(kept.wal.next_lsn)
        ledger.copy_log()
        while int(applier.applied) != core.commit:
            await applier.wait(core.commit)
        if core.config is None or ledger.failure is not None:
            return
        await self._write(self._base_now(), applier.machine.capture())
        ledger.replica.compact(int(kept.checkpoints.heads[-1].base.op))
        await kept.checkpoints.prune(1)
        await kept.wal.compact(kept.checkpoints.heads[0].first_lsn)
        kept.places.forget(int(kept.checkpoints.heads[0].base.op))

    async def _write(self, base: Base, capture: Capture) -> None:
        core, kept = self._ledger.replica.core, self._kept
        lsn = kept.wal.next_lsn
        if core.log.checksum(int(base.op)) == base.checksum:
            lsn = kept.places.needed_from(int(base.op), lsn)
        # The head has the promise of now; what was promised must be durable before it.
        head = CheckpointHead(
            kept.storage.storage_id,
            base,
            lsn,
            core.fence,
            core.last_normal,
            int(self._clock.wall() * 1000.0),
        )
        await kept.wal.flush()
        await kept.checkpoints.write(head, capture)
        await kept.checkpoints.prune(self._settings.checkpoints_kept)
        await kept.wal.compact(kept.checkpoints.heads[0].first_lsn)
        kept.places.forget(int(kept.checkpoints.heads[0].base.op))

    def _is_busy(self) -> bool:
        return self._task is not None and self._task.task is not None and not self._task.task.done()

    def _no_checkpoint(self, error: Exception) -> None:
        self.failures.append(str(error))
        del self.failures[:-10]

    # Giving.

    def handle(self, sender: NodeId, message: Message) -> bool:
        match message:
            case SnapshotAsk():
                self._asked(sender, message)
            case SnapshotPart():
                self._take(sender, message)
            case _:
                return False
        return True

    def _asked(self, sender: NodeId, ask: SnapshotAsk) -> None:
        found = self._sent.get(ask.op)
        if found is None:
            if not self._is_busy():
                self._task = self._tasks.start(
                    "snapshot", self._encode(sender), group="ledger", on_error=self._no_checkpoint
                )
            return
        base, data = found
        part = data[ask.offset : ask.offset + PART_BYTES]
        self._ledger.tell((sender,), SnapshotPart(base, ask.offset, len(data), part))

    async def _encode(self, sender: NodeId) -> None:
        """Reads the newest checkpoint and offers its first part."""
        newest = await self._kept.checkpoints.newest()
        if newest is None:
            return
        head, slices = newest
        content = msgspec.msgpack.encode(slices)
        data = zlib.crc32(content).to_bytes(4, "little") + content
        self._sent[int(head.base.op)] = (head.base, data)
        while len(self._sent) > SENT_MAX:
            del self._sent[min(self._sent)]
        self._ledger.tell((sender,), SnapshotPart(head.base, 0, len(data), data[:PART_BYTES]))

    # Taking.

    def fetch(self, source: NodeId) -> None:
        if self._source is not None and self._clock.now() - self._moved_at < self._patience_s():
            return
        self._source = source
        self._base = None
        self._parts.clear()
        self._moved_at = self._clock.now()
        self._ask()

    def tick(self) -> None:
        if self._clock.now() - self._made_at >= self._settings.checkpoint_interval_s:
            self._begin()
        beat_s = self._ledger.replica.core.timers.heartbeat_s
        if self._source is None:
            return
        if self._clock.now() - self._moved_at > self._patience_s():
            self._source = None
        elif self._clock.now() - self._asked_at > ASK_AGAIN_BEATS * beat_s:
            self._ask()

    def _patience_s(self) -> float:
        return GIVE_UP_BEATS * self._ledger.replica.core.timers.heartbeat_s

    def _ask(self) -> None:
        if self._source is None:
            return
        self._asked_at = self._clock.now()
        op = int(self._base.op) if self._base is not None else 0
        self._ledger.tell((self._source,), SnapshotAsk(op, len(self._parts)))

    def _take(self, sender: NodeId, part: SnapshotPart) -> None:
        if sender != self._source:
            return
        if self._base is None and part.offset == 0:
            self._base = part.base
        if self._base != part.base or part.offset != len(self._parts):
            return
        self._parts += part.data
        self._moved_at = self._clock.now()
        if len(self._parts) < part.total:
            self._ask()
            return
        data, self._source = bytes(self._parts), None
        self._parts.clear()
        if not self._is_busy():
            self._task = self._tasks.start(
                "install snapshot",
                self._install(part.base, data),
                group="ledger",
                on_error=self._no_checkpoint,
            )

    async def _install(self, base: Base, data: bytes) -> None:
        content = data[4:]
        if zlib.crc32(content).to_bytes(4, "little") != data[:4]:
            raise CheckpointDamaged("a checkpoint arrived damaged")
        slices = msgspec.msgpack.decode(content, type=list[bytes])
        core = self._ledger.replica.core
        if base.op <= core.commit:
            return
        await self._write(base, Slices(slices))
        await self._applier.wait(core.commit)
        if base.op <= core.commit or self._ledger.failure is not None:
            return
        self._applier.machine.load(iter(slices))
        self._applier.restore(base)
        self._ledger.perform(self._ledger.replica.snapshot_installed(base, self._ledger.now()))
