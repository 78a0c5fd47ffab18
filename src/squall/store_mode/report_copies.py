"""Copies of agents' reports in the store, for the next coordinator.

Agents send their reports to the coordinator, which keeps them in memory. When the coordinator
dies, the other agents send theirs again, but its own reports are lost, and so are those of an
agent that dies with it. So every few seconds the coordinator stores a copy of its own reports and
of one other agent's in turn. The manager that declares an attempt lost reads the copy. Like any
last report of a lost attempt, a copy leaves the time after it unknown, and the result says so (R8).

It must never delay anything: a copy that cannot be written is skipped.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping

import msgspec

from squall.cluster.protocol.job_keys import AttemptKey
from squall.coordination.errors import StoreUnavailableError, VersionConflict
from squall.coordination.stores.interface import ANY, Put, Store, make_key
from squall.stats.attempt_record import AttemptRecord
from squall.stats.record_builder import decode_record, encode_record

TTL_S = 3600.0
OTHERS_AT_ONCE = 2
MAX_BYTES = 8 * 1024 * 1024
"""Limit of one copy, half of what a store takes; records that do not fit are left out."""

_decode = msgspec.msgpack.Decoder(list[tuple[AttemptKey, bytes]]).decode


class ReportCopies:
    """Writes and reads the copies, one record per agent."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._last: dict[str, bytes] = {}
        # Versions of the copies that this process wrote, which saves a read before each write.
        self._versions: dict[str, str] = {}
        # The other agent whose reports were copied last.
        self._turn = ""

    def chosen(self, own: str, nodes: Collection[str]) -> list[str]:
        """The agents whose reports are copied now: this one, and the next of the others."""
        others = sorted(node for node in nodes if node != own)
        after = [node for node in others if node > self._turn]
        turns = (after + others)[: min(OTHERS_AT_ONCE, len(others))]
        self._turn = turns[-1] if turns else ""
        return [own, *turns]

    async def keep(self, node: str, records: Mapping[AttemptKey, AttemptRecord]) -> None:
        """Replaces the copy of `node`; writes nothing if nothing has changed."""
        kept: list[tuple[AttemptKey, bytes]] = []
        size = 0
        for key, record in sorted(records.items()):
            data = encode_record(record)
            size += len(data)
            if size <= MAX_BYTES:
                kept.append((key, data))
        value = msgspec.msgpack.encode(kept)
        if value == self._last.get(node) or not (kept or node in self._last):
            return
        try:
            await self._put(node, value)
        except StoreUnavailableError:
            return
        self._last[node] = value
        if not kept:
            del self._last[node]

    async def _put(self, node: str, value: bytes) -> None:
        """Writes the copy. If another coordinator has written it meanwhile, the last write wins."""
        known = self._versions.pop(node, "")
        put = Put(_key(node), value, expect=known or ANY, ttl_s=TTL_S, silent=True)
        try:
            (version,) = await self._store.write(put)
        except VersionConflict:
            put = msgspec.structs.replace(put, expect=ANY)
            (version,) = await self._store.write(put)
        self._versions[node] = version

    async def read(self, node: str, key: AttemptKey) -> AttemptRecord | None:
        """The record of an attempt in the last copy of `node`."""
        (record,) = await self._store.get(_key(node))
        if record is None:
            return None
        try:
            found = dict(_decode(record.value))
            return decode_record(found[key]) if key in found else None
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return None


def _key(node: str) -> str:
    return make_key("copy", hashlib.sha256(node.encode()).hexdigest()[:24])
