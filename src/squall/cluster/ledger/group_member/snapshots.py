"""Writes checkpoints, sends them to peers in parts, and installs the checkpoints of peers.

The settings decide when the member writes a checkpoint; then it deletes the log that no kept
checkpoint needs. A member that is too far behind for the log fetches a checkpoint, verifies
it, makes it durable as its own, and only then loads it and passes it to the core.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from squall.cluster.ledger.apply import Applier
from squall.cluster.ledger.files.checkpoints import CheckpointDamaged, CheckpointHead
from squall.cluster.ledger.group_member.bulk_messages import (
    PART_BYTES,
    Message,
    SnapshotAsk,
    SnapshotPart,
)
from squall.cluster.ledger.group_member.durable_state import DurableState, clock_stamp
from squall.cluster.ledger.group_member.recovery_report import CheckpointCounters
from squall.cluster.ledger.interface import Capture, GroupMs
from squall.cluster.ledger.replica.log import sized
from squall.cluster.ledger.replica.types import Base
from squall.cluster.ledger.settings import LedgerSettings
from squall.cluster.ledger.wal.errors import WalError
from squall.runtime.interfaces import NodeId, Runtime
from squall.runtime.log import Log
from squall.runtime.tasks import TaskRunner, TaskToken

if TYPE_CHECKING:
    from squall.cluster.ledger.group_member.group_ledger import GroupLedger

ASK_AGAIN_BEATS = 2
GIVE_UP_BEATS = 20
SENT_MAX = 2
"""Number of encoded checkpoints kept in memory for peers that fetch them."""


class Slices:
    """A `Capture` of slices that are already encoded."""

    def __init__(self, slices: list[bytes]) -> None:
        self._slices = slices

    def slices(self) -> Iterator[bytes]:
        return iter(self._slices)


class Snapshots:
    """Writes, sends and installs one member's checkpoints, one operation at a time."""

    def __init__(
        self,
        ledger: GroupLedger,
        tasks: TaskRunner,
        runtime: Runtime,
        applier: Applier,
        durable_state: DurableState,
        settings: LedgerSettings,
        log: Log,
    ) -> None:
        self._ledger = ledger
        self._tasks = tasks
        self._clock = runtime.clock
        self._applier = applier
        self._durable_state = durable_state
        self._settings = settings
        self._log = log
        self._sent: dict[int, tuple[Base, bytes]] = {}
        self._source: NodeId | None = None
        self._base: Base | None = None
        self._parts = bytearray()
        # A peer's checkpoint that has arrived whole, until it is installed or turns out unusable.
        self._arrived: tuple[Base, bytes] | None = None
        self._asked_at = 0.0
        self._moved_at = 0.0
        self._task: TaskToken | None = None
        # The op, the bytes written to the log and the time of the last checkpoint. The entries
        # that a start finds on the disk count as written since then.
        self._made_op = int(durable_state.recovered.base.op)
        self._made_bytes = -sized(durable_state.recovered.entries)
        self._made_at = runtime.clock.now()
        self.counters = CheckpointCounters()

    # Writing.

    def _is_due(self) -> bool:
        """Compares counters that the core and the log keep anyway, once per tick, so that a
        commit costs nothing here."""
        settings = self._settings
        entries = self._ledger.replica.core.commit - self._made_op
        limit = max(settings.checkpoint_bytes, self._durable_state.checkpoints.last_bytes // 2)
        return entries > 0 and (
            entries >= settings.checkpoint_entries
            or self._durable_state.wal.counters.bytes - self._made_bytes >= limit
            or self._clock.now() - self._made_at >= settings.checkpoint_interval_s
        )

    def _note_made(self, op: int) -> None:
        """Restarts the count of the log at `op`: a checkpoint replaces what is before it."""
        self._made_op = op
        self._made_bytes = self._durable_state.wal.counters.bytes
        self._made_at = self._clock.now()

    async def checkpoint(self) -> int:
        """Writes a checkpoint of the current state, then deletes the log that no kept
        checkpoint needs; returns the op of the newest checkpoint."""
        core = self._ledger.replica.core
        applier = self._applier
        # A checkpoint names the members that were in force at its op. The core's config is
        # theirs only when everything committed is applied. Between this loop and the next
        # `await` nothing is applied.
        while int(applier.applied) != core.commit:
            await applier.wait(core.commit)
        op = int(applier.applied)
        if op <= core.log.base_op or core.config is None:
            return core.log.base_op
        await self._write(self._base_now(), applier.machine.capture())
        self._ledger.replica.compact(op)
        self.counters.written += 1
        self._log.info(
            "checkpoint_written",
            op=op,
            bytes=self._durable_state.checkpoints.last_bytes,
            took_s=round(self.counters.last_s, 3),
        )
        return op

    def _start(self, name: str, work: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Runs `work` as the only operation; callers check `_is_busy` first."""
        self._task = self._tasks.start(name, self._attempt(name, work), group="ledger")

    async def _attempt(self, name: str, work: Callable[[], Coroutine[Any, Any, object]]) -> None:
        try:
            await work()
        except (OSError, WalError, CheckpointDamaged) as error:
            # The log still holds everything, and the next interval tries again.
            self.counters.failed += 1
            self._log.warning("checkpoint_failed", work=name, reason=str(error))

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
        """Rewrites the log and the checkpoint from memory, and deletes every older file."""
        while self._is_busy():
            await self._clock.sleep(self._ledger.replica.core.timers.heartbeat_s)
        self._start("renew files", self._renew)
        while self._is_busy():
            await self._clock.sleep(self._ledger.replica.core.timers.heartbeat_s)

    async def _renew(self) -> None:
        ledger, durable_state, applier = self._ledger, self._durable_state, self._applier
        core = ledger.replica.core
        # Write a regular checkpoint first, so that little of the log remains to be copied.
        await applier.wait(core.commit)
        await self.checkpoint()
        # A cut at the end removes nothing, but begins a new segment for the copy.
        await durable_state.wal.cut(durable_state.wal.next_lsn)
        ledger.copy_log()
        while int(applier.applied) != core.commit:
            await applier.wait(core.commit)
        if core.config is None or ledger.failure is not None:
            return
        await self._write(self._base_now(), applier.machine.capture())
        ledger.replica.compact(int(durable_state.checkpoints.heads[-1].base.op))
        await durable_state.checkpoints.prune(1)
        await durable_state.wal.compact(durable_state.checkpoints.heads[0].first_lsn)
        durable_state.places.forget(int(durable_state.checkpoints.heads[0].base.op))

    async def _write(self, base: Base, capture: Capture) -> None:
        core, durable_state = self._ledger.replica.core, self._durable_state
        began = self._clock.now()
        lsn = durable_state.wal.next_lsn
        if core.log.checksum(int(base.op)) == base.checksum:
            lsn = durable_state.places.needed_from(int(base.op), lsn)
        # The times at which the group clock read `base.group_ms`, not the current
        # time: after a crash, the time in between must count for the group clock too (R10).
        since_ms = max(int(self._ledger.group_ms()) - int(base.group_ms), 0)
        stamp = clock_stamp(self._clock)
        # The head repeats the current promise, so `flush` makes that promise durable first
        # (R11).
        head = CheckpointHead(
            durable_state.storage.storage_id,
            base,
            lsn,
            core.fence,
            core.last_normal,
            stamp.wall_ms - since_ms,
            boot_ms=stamp.boot_ms - since_ms,
            kernel=stamp.kernel,
        )
        await durable_state.wal.flush()
        await durable_state.checkpoints.write(head, capture)
        self.counters.last_at = self._clock.now()
        self.counters.last_s = self.counters.last_at - began
        await durable_state.checkpoints.prune(self._settings.checkpoints_kept)
        heads = durable_state.checkpoints.heads
        if core.is_alone and len(heads) < 2:
            # No peer could replace a damaged checkpoint, so the log must still reach back
            # before the only one.
            return
        await durable_state.wal.compact(heads[0].first_lsn)
        durable_state.places.forget(int(heads[0].base.op))

    def _is_busy(self) -> bool:
        return self._task is not None and self._task.task is not None and not self._task.task.done()

    async def close(self) -> None:
        """Cancels the running operation and waits for its end."""
        if self._task is not None and self._is_busy():
            self._tasks.cancel(self._task)
            await self._tasks.stopped(self._task)

    # Sending.

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
                self._start("snapshot", lambda: self._encode(sender))
            return
        base, data = found
        part = data[ask.offset : ask.offset + PART_BYTES]
        self._ledger.send_message((sender,), SnapshotPart(base, ask.offset, len(data), part))

    async def _encode(self, sender: NodeId) -> None:
        """Reads the newest checkpoint and sends its first part."""
        newest = await self._durable_state.checkpoints.newest()
        if newest is None:
            return
        head, slices = newest
        content = msgspec.msgpack.encode(slices)
        data = zlib.crc32(content).to_bytes(4, "little") + content
        self._sent[int(head.base.op)] = (head.base, data)
        while len(self._sent) > SENT_MAX:
            del self._sent[min(self._sent)]
        self._ledger.send_message(
            (sender,), SnapshotPart(head.base, 0, len(data), data[:PART_BYTES])
        )

    # Installing.

    def fetch(self, source: NodeId) -> None:
        """Fetches the newest checkpoint of `source`, unless another transfer moves or a checkpoint
        is being installed. The core repeats the request for as long as it needs a checkpoint."""
        if self._arrived is not None or (
            self._source is not None
            and self._clock.now() - self._moved_at < self._transfer_timeout_s()
        ):
            return
        self._source = source
        self._base = None
        self._parts.clear()
        self._moved_at = self._clock.now()
        self._ask()

    def tick(self) -> None:
        # Before the next checkpoint of its own: frequent ones must not keep this member behind.
        self._install_arrived()
        if not self._is_busy() and self._is_due():
            self._note_made(self._ledger.replica.core.commit)
            self._start("checkpoint", self.checkpoint)
        beat_s = self._ledger.replica.core.timers.heartbeat_s
        if self._source is None:
            return
        if self._clock.now() - self._moved_at > self._transfer_timeout_s():
            self._source = None
        elif self._clock.now() - self._asked_at > ASK_AGAIN_BEATS * beat_s:
            self._ask()

    def _transfer_timeout_s(self) -> float:
        return GIVE_UP_BEATS * self._ledger.replica.core.timers.heartbeat_s

    def _ask(self) -> None:
        if self._source is None:
            return
        self._asked_at = self._clock.now()
        op = int(self._base.op) if self._base is not None else 0
        self._ledger.send_message((self._source,), SnapshotAsk(op, len(self._parts)))

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
        self._arrived, self._source = (part.base, bytes(self._parts)), None
        self._parts.clear()
        self._install_arrived()

    def _install_arrived(self) -> None:
        arrived = self._arrived
        if arrived is not None and not self._is_busy():
            self._start("install snapshot", lambda: self._install(*arrived))

    async def _install(self, base: Base, data: bytes) -> None:
        try:
            await self._load(base, data)
        finally:
            # After a failure the core asks for a checkpoint again.
            self._arrived = None

    async def _load(self, base: Base, data: bytes) -> None:
        content = data[4:]
        if zlib.crc32(content).to_bytes(4, "little") != data[:4]:
            raise CheckpointDamaged("a checkpoint arrived damaged")
        slices = msgspec.msgpack.decode(content, type=list[bytes])
        core = self._ledger.replica.core
        if base.op <= core.commit:
            return
        if base.active_version > core.version:
            self._ledger.too_old(base.active_version)
            return
        # Make the checkpoint durable before the core uses it. Meanwhile entries may have been
        # committed, so apply them and compare again.
        await self._write(base, Slices(slices))
        while int(self._applier.applied) != core.commit:
            # Entries may be committed faster than they are applied. The queue must be empty when
            # the state is replaced: its entries do not follow the checkpoint.
            await self._applier.wait(core.commit)
        if base.op <= core.commit or self._ledger.failure is not None:
            # The log caught up meanwhile; loading the checkpoint would go back in time.
            return
        self._applier.machine.load(iter(slices))
        self._applier.restore(base)
        self._note_made(int(base.op))
        self.counters.installed += 1
        self._log.info("checkpoint_installed", op=base.op, bytes=len(data))
        self._ledger.perform(self._ledger.replica.snapshot_installed(base, self._ledger.now()))
