"""What the coordinator knows of the load that runs, kept where its successor finds it.

The reports of an agent go to the coordinator and stay in its memory. When the coordinator
dies, the other agents send theirs again; its own are gone, and those of an agent that dies
with it. So it leaves a copy of its own in the store every few seconds, and with each of some
others by turns. Whoever declares an attempt lost reads it. A copy is a cut report like any
other: what came after it is unknown, and said to be.

It must never hold up anything: a copy that cannot be written is left out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping

import msgspec

from squall.coordination.errors import StoreUnavailableError, VersionConflict
from squall.coordination.stores.interface import ANY, Put, Store, make_key
from squall.nodes.identity import AttemptKey
from squall.stats.record import AttemptRecord
from squall.stats.record_builder import decode_record, encode_record

TTL_S = 3600.0
OTHERS_AT_ONCE = 2
MAX_BYTES = 8 * 1024 * 1024
"""Of one copy, half of what a store takes; what does not fit is left out."""

_decode = msgspec.msgpack.Decoder(list[tuple[AttemptKey, bytes]]).decode


class Copies:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._last: dict[str, bytes] = {}
        self._versions: dict[str, str] = {}
        """Of the copies that this process wrote: to name one spares a look at S3."""
        self._turn = ""
        """The other agent that had its turn last."""

    def chosen(self, own: str, nodes: Collection[str]) -> list[str]:
        """Whose reports are copied now: its own, and the next of the others."""
        others = sorted(node for node in nodes if node != own)
        after = [node for node in others if node > self._turn]
        turns = (after + others)[: min(OTHERS_AT_ONCE, len(others))]
        self._turn = turns[-1] if turns else ""
        return [own, *turns]

    async def keep(self, node: str, records: Mapping[AttemptKey, AttemptRecord]) -> None:
        """Replaces the copy of `node`; nothing is written while nothing changes."""
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
        """Whoever coordinated meanwhile may have written it, too: the newer one counts."""
        known = self._versions.pop(node, "")
        put = Put(_key(node), value, expect=known or ANY, ttl_s=TTL_S, silent=True)
        try:
            (version,) = await self._store.write(put)
        except VersionConflict:
            put = msgspec.structs.replace(put, expect=ANY)
            (version,) = await self._store.write(put)
        self._versions[node] = version

    async def read(self, node: str, key: AttemptKey) -> AttemptRecord | None:
        """What `node` had reported of an attempt when it last left a copy."""
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
