"""The leader's background work: checkpoints, deletions, checks that the log is still there.

All of it can wait, so an outage of the store only delays it. A lost log ends the ledger
(`LedgerFailed`). Only a leader that has just confirmed its lead deletes anything, except what
the head has declared obsolete.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from dataclasses import dataclass

from squall.cluster.ledger.apply import Applier
from squall.cluster.ledger.interface import Fence, GroupMs, NotPrimary, OpNumber
from squall.cluster.ledger.replica.group_clock import GroupClock
from squall.cluster.ledger.replica.types import Base, GroupId
from squall.coordination.store_errors import CoordinationError
from squall.runtime.interfaces import Clock
from squall.runtime.log import Log
from squall.store_mode.ledger.blobs import StoreBlobs
from squall.store_mode.ledger.checkpoints import Checkpoints
from squall.store_mode.ledger.layout import Keys, LeadCheck, References, StoreLogSettings
from squall.store_mode.ledger.tail import Tail


@dataclass(slots=True)
class Parts:
    """The parts of a ledger that `open_store_log` assembles."""

    term: LeadCheck
    keys: Keys
    tail: Tail
    applier: Applier
    checkpoints: Checkpoints
    blobs: StoreBlobs
    group_clock: GroupClock
    fence: Fence
    writer: str
    references: References | None
    log: Log
    slots_behind: int
    """Slots written since the newest checkpoint."""


class Housekeeping:
    """Writes checkpoints when they are due and deletes obsolete slots, checkpoints and blobs."""

    def __init__(self, clock: Clock, settings: StoreLogSettings, parts: Parts) -> None:
        self._clock = clock
        self._settings = settings
        self._parts = parts
        first = (int(parts.applier.applied), parts.tail.next - 1)
        # Last op and number of each slot since the last checkpoint.
        self._ends: deque[tuple[int, int]] = deque([first])
        self._slots_since = parts.slots_behind
        self._bytes_since = 0
        self._checkpoint_at = clock.now()
        self._collect_at = clock.now() + settings.collect_every_s
        self._one_checkpoint = asyncio.Lock()
        # Checkpoints that this leader has written.
        self.checkpoints = 0

    def wrote(self, last_op: int, slot: int, size: int) -> None:
        self._ends.append((last_op, slot))
        self._slots_since += 1
        self._bytes_since += size

    async def run(self) -> bool:
        """Does the work that is due; returns whether a collection of blobs is due too."""
        parts = self._parts
        try:
            await parts.tail.check_head_if_due()
            if self._checkpoint_due():
                await self.checkpoint()
            await parts.checkpoints.sweep()
        except CoordinationError as error:
            parts.log.info("store_log_upkeep_waits", reason=str(error))
        return self._clock.now() >= self._collect_at

    def _checkpoint_due(self) -> bool:
        settings = self._settings
        limit = max(settings.checkpoint_bytes, self._parts.checkpoints.last_bytes // 2)
        return self._slots_since > 0 and (
            self._slots_since >= settings.checkpoint_slots
            or self._bytes_since >= limit
            or self._clock.now() - self._checkpoint_at >= settings.checkpoint_interval_s
        )

    async def checkpoint(self) -> OpNumber:
        """Makes the present state durable; obsolete slots are deleted later."""
        async with self._one_checkpoint:
            parts, applier = self._parts, self._parts.applier
            # No await up to `capture`: op, checksum and state must belong together.
            op = applier.applied
            while len(self._ends) > 1 and self._ends[0][0] < op:
                self._ends.popleft()
            group, version = GroupId(parts.keys.log_id), applier.active_version
            base = Base(op, applier.checksum, GroupMs(applier.group_ms), group, None, version)
            capture, slot = applier.machine.capture(), self._ends[0][1]
            self._checkpoint_at = self._clock.now()
            self._slots_since = self._bytes_since = 0
            if await parts.checkpoints.write(base, slot, parts.fence, capture, parts.writer):
                self.checkpoints += 1
                size = parts.checkpoints.last_bytes
                parts.log.info("store_log_checkpoint", op=op, slot=slot, bytes=size)
            return op

    async def collect(self) -> int:
        """Deletes blobs that were unreferenced for long enough (R9), and leftover parts. The
        caller has just confirmed its lead."""
        parts = self._parts
        self._collect_at = self._clock.now() + self._settings.collect_every_s
        if parts.references is None:
            return 0
        with contextlib.suppress(CoordinationError, NotPrimary):
            gone = await parts.blobs.collect(parts.references())
            return gone + await parts.checkpoints.sweep_leftovers()
        return 0
