"""Writes checkpoints of a log in a store, and deletes slots that no checkpoint needs.

The leader writes a checkpoint in parts under a unique name, then replaces the head, if it still
has the version read before, with one that names the checkpoint. So a head never names an
incomplete checkpoint, and of two overlapping leaders the slower one changes nothing. A
checkpoint of a former leader is as good as one of the present leader: both have applied only
decided slots.

A slot is deleted after the head has declared it obsolete and `retain_s` has passed, the oldest
slot first. A leader that takes over waits `retain_s` again. Slots from `first_slot` on, which
include those of all kept checkpoints, are never deleted.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from hashlib import blake2b

import msgspec

from squall.api.errors import SquallError
from squall.cluster.ledger.interface import Capture, Fence
from squall.cluster.ledger.replica.types import Base
from squall.coordination.store_errors import VersionConflict
from squall.coordination.stores.interface import ANY, Delete, Put, Store
from squall.runtime.interfaces import Clock
from squall.store_mode.ledger.layout import (
    CheckpointRef,
    Head,
    Keys,
    StoreLogSettings,
    encode,
    head_of,
    parts_of,
    slices_of,
)
from squall.store_mode.ledger.tail import LogLost

DIGEST_BYTES = 16
DELETE_AT_ONCE = 64
PAGE = 100


class CheckpointMissing(SquallError):
    """A part of the checkpoint is missing or damaged."""


class _Obsolete(msgspec.Struct, frozen=True):
    """Slots below `below` and retired checkpoints, which may be deleted from `due` on."""

    due: float
    below: int
    retired: tuple[CheckpointRef, ...]


class Checkpoints:
    """Writes, reads and deletes the checkpoints of one log. The leader makes one call at a time."""

    def __init__(
        self, store: Store, keys: Keys, clock: Clock, settings: StoreLogSettings, head: Head
    ) -> None:
        self._store = store
        self._keys = keys
        self._clock = clock
        self._settings = settings
        self._swept = head.swept
        # Names of deleted checkpoints, which the next head no longer lists.
        self._gone: set[str] = set()
        self._obsolete: deque[_Obsolete] = deque()
        self.last_bytes = head.checkpoints[-1].size if head.checkpoints else 0
        self._later(head)

    async def write(
        self, base: Base, slot: int, fence: Fence, capture: Capture, unique: str
    ) -> bool:
        """Writes a durable checkpoint; False if another leader wrote one meanwhile. Yields to
        the event loop after each part."""
        head, version = await self._read_head()
        if head.checkpoints and head.checkpoints[-1].base.op >= base.op:
            return False
        name = f"{base.op}-{unique}"
        digest = blake2b(digest_size=DIGEST_BYTES)
        parts = size = 0
        for part in parts_of(capture.slices(), self._settings.part_bytes):
            digest.update(part)
            size += len(part)
            key = self._keys.part(name, parts)
            await self._store.write(Put(key, part, expect=ANY, ttl_s=None, silent=True))
            parts += 1
            await asyncio.sleep(0)
        ref = CheckpointRef(name, slot, base, fence, parts, size, digest.digest())
        newer = self._with(head, ref)
        token = f"{unique}.{base.op}"
        put = Put(self._keys.head, encode(newer), expect=version, ttl_s=None, token=token)
        try:
            await self._store.write(put)
        except VersionConflict:
            return False
        self.last_bytes = size
        self._later(newer)
        return True

    async def read(self, ref: CheckpointRef) -> list[bytes]:
        """Returns the slices of the state after checking their digest."""
        digest = blake2b(digest_size=DIGEST_BYTES)
        slices: list[bytes] = []
        for number in range(ref.parts):
            (record,) = await self._store.get(self._keys.part(ref.name, number))
            if record is None:
                raise CheckpointMissing(f"part {number} of checkpoint {ref.name} is missing")
            digest.update(record.value)
            slices += slices_of(record.value)
        if digest.digest() != ref.digest:
            raise CheckpointMissing(f"checkpoint {ref.name} is damaged")
        return slices

    async def sweep(self) -> int:
        """Deletes records that have been obsolete for long enough; returns how many."""
        deleted = 0
        while self._obsolete and self._obsolete[0].due <= self._clock.boot_time():
            item = self._obsolete[0]
            slots = [self._keys.slot(number) for number in range(self._swept, item.below)]
            await self._delete(slots)
            self._swept = max(self._swept, item.below)
            for ref in [each for each in item.retired if each.name not in self._gone]:
                parts = [self._keys.part(ref.name, number) for number in range(ref.parts)]
                await self._delete(parts)
                self._gone.add(ref.name)
                deleted += len(parts)
            deleted += len(slots)
            self._obsolete.popleft()
        return deleted

    async def sweep_leftovers(self) -> int:
        """Deletes parts that no head names, because their writer died before it finished. Lists
        keys, which costs requests."""
        idle_ms = int(self._settings.retain_s * 1000.0)
        after, deleted = "", 0
        while True:
            page = await self._store.list("checkpoint", idle_ms=idle_ms, after=after, limit=PAGE)
            head, _ = await self._read_head()
            named = {ref.name for ref in (*head.checkpoints, *head.retired)}
            own = [entry.key for entry in page.entries if self._is_own(entry.key)]
            stale = [key for key in own if _name_of(key) not in named]
            await self._delete(stale)
            deleted += len(stale)
            after = page.after
            if not after:
                return deleted

    def _is_own(self, key: str) -> bool:
        return key.startswith(f"{self._keys.checkpoints}/")

    def _with(self, head: Head, ref: CheckpointRef) -> Head:
        every = (*head.checkpoints, ref)
        number = self._settings.checkpoints_kept
        dropped, kept = every[:-number], every[-number:]
        retired = tuple(each for each in head.retired if each.name not in self._gone)
        return msgspec.structs.replace(
            head,
            # With fewer checkpoints than `number`, the slots stay: damage to the only
            # checkpoint would otherwise leave nothing to start from.
            first_slot=kept[0].slot if len(kept) == number else head.first_slot,
            swept=max(head.swept, self._swept),
            checkpoints=kept,
            retired=(*retired, *dropped),
        )

    def _later(self, head: Head) -> None:
        due = self._clock.boot_time() + self._settings.retain_s
        if head.first_slot > self._swept or head.retired:
            self._obsolete.append(_Obsolete(due, head.first_slot, head.retired))

    async def _read_head(self) -> tuple[Head, str]:
        (record,) = await self._store.get(self._keys.head)
        head = None if record is None else head_of(self._keys.head, record.value)
        if head is None or record is None or head.id != self._keys.log_id:
            raise LogLost(self._store.url, self._keys.log_id, "the head")
        return head, record.version

    async def _delete(self, keys: Iterable[str]) -> None:
        waiting = list(keys)
        for start in range(0, len(waiting), DELETE_AT_ONCE):
            batch = waiting[start : start + DELETE_AT_ONCE]
            await self._store.write(*(Delete(key, ANY, silent=True) for key in batch))


def _name_of(key: str) -> str:
    return key.rpartition("/")[2].rpartition(".")[0]
