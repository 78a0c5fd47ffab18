"""What a leader does for its log beside commands: checkpoints, deletions, a look at the store.

Everything here can be done later as well, so a store that does not answer only delays it. A
log that is lost ends the ledger (`LedgerFailed` comes out). It must never delete anything for
a leader that is not proven to lead, except what the head has declared obsolete.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from dataclasses import dataclass

from squall.coordination.stores.errors import CoordinationError
from squall.ledger.apply import Applier
from squall.ledger.clock import GroupClock
from squall.ledger.interface import Fence, GroupMs, NotPrimary, OpNumber
from squall.ledger.replica.types import Base, GroupId
from squall.nodes.agent.blobs import StoreBlobs
from squall.nodes.agent.ledger_checkpoints import Checkpoints
from squall.nodes.agent.ledger_tail import Tail
from squall.nodes.agent.slots import Keys, LeadCheck, References, StoreLogSettings
from squall.runtime.interfaces import Clock
from squall.runtime.log import Log


@dataclass(slots=True)
class Parts:
    """What `open_store_log` puts together."""

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
    """Since the newest checkpoint."""


class Upkeep:
    def __init__(self, clock: Clock, settings: StoreLogSettings, parts: Parts) -> None:
        self._clock = clock
        self._settings = settings
        self._parts = parts
        first = (int(parts.applier.applied), parts.tail.next - 1)
        self._ends: deque[tuple[int, int]] = deque([first])
        """Last op and number of each slot that is not in a checkpoint."""
        self._slots_since = parts.slots_behind
        self._bytes_since = 0
        self._checkpoint_at = clock.now()
        self._collect_at = clock.now() + settings.collect_every_s
        self._one_checkpoint = asyncio.Lock()
        self.checkpoints = 0
        """Written by this leader."""

    def wrote(self, last_op: int, slot: int, size: int) -> None:
        self._ends.append((last_op, slot))
        self._slots_since += 1
        self._bytes_since += size

    async def run(self) -> bool:
        """What is due; whether blobs and leftovers are due as well."""
        parts = self._parts
        try:
            await parts.tail.look()
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
        """Makes the state as of now durable; what no kept checkpoint needs goes later."""
        async with self._one_checkpoint:
            parts, applier = self._parts, self._parts.applier
            # Nothing can be applied between these lines.
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
        """Deletes blobs that nothing referred to for long enough, and leftovers. The caller
        was just proven to lead."""
        parts = self._parts
        self._collect_at = self._clock.now() + self._settings.collect_every_s
        if parts.references is None:
            return 0
        with contextlib.suppress(CoordinationError, NotPrimary):
            gone = await parts.blobs.collect(parts.references())
            return gone + await parts.checkpoints.sweep_leftovers()
        return 0
