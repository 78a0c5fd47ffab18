"""Known bugs of a log in a store, each switched on by its name.

They are patches of the real classes, in force for one run; the log itself knows nothing of
them.
"""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from squall.coordination.stores.interface import ANY, Delete, Put, Record
from squall.ledger.interface import Digest, Fence, TryLater
from squall.nodes.agent import ledger, ledger_tail
from squall.nodes.agent.blobs import StoreBlobs
from squall.nodes.agent.ledger_checkpoints import Checkpoints
from squall.nodes.agent.ledger_log import NO_ANSWER, StoreLedger
from squall.nodes.agent.ledger_tail import Tail
from squall.nodes.agent.slots import Head, Slot, encode

MUTANTS = {
    "any_slot": "a slot is written whatever stands there",
    "conflict_is_success": "a slot that cannot be written is believed to be ours",
    "unknown_is_refused": "commands of a slot without an answer are told that they are refused",
    "no_trust": "a slot that is absent was never there, however long ago that was known",
    "sweep_at_once": "obsolete slots are deleted when the head says so",
    "unbound": "a slot is not bound to the one before",
    "same_view": "a new leader leads in the view of the last one",
    "skip_foreign": "a slot that came first is passed over and not applied",
    "early_answer": "a command is answered before its slot is in the store",
    "confirm_without_round": "a leader is confirmed by its own belief",
    "joins_round_under_way": "a round that began before it was asked for confirms",
    "ruthless_collect": "blobs are deleted without a look at their age and version",
}


@contextmanager
def mutated(name: str | None) -> Generator[None]:
    with ExitStack() as stack:
        if name is not None:
            for patched in _PATCHES[name]():
                stack.enter_context(patched)
        yield


def _any_slot() -> list[Any]:
    def careless(key: str, value: bytes, *, expect: Any, **rest: Any) -> Put:
        return Put(key, value, expect=ANY, **rest)

    return [patch.object(ledger_tail, "Put", careless)]


def _conflict_is_success() -> list[Any]:
    async def ours(self: Tail, key: str, value: bytes | None) -> str:
        (found,) = await self._store.get(key)
        return "" if found is None else found.version

    return [patch.object(Tail, "_ours", ours)]


def _unknown_is_refused() -> list[Any]:
    right = StoreLedger._unknown

    def refused(self: StoreLedger) -> None:
        for item in self._sent:
            if not item.answer.done():
                item.answer.set_exception(TryLater(self._node, NO_ANSWER))
        right(self)

    return [patch.object(StoreLedger, "_unknown", refused)]


def _no_trust() -> list[Any]:
    return [patch.object(Tail, "is_trusted", property(lambda self: True))]


def _sweep_at_once() -> list[Any]:
    right = Checkpoints._later

    def at_once(self: Checkpoints, head: Head) -> None:
        right(self, head)
        if self._obsolete:
            newest = self._obsolete.pop()
            self._obsolete.append(type(newest)(0.0, newest.below, newest.retired))

    return [patch.object(Checkpoints, "_later", at_once)]


def _unbound() -> list[Any]:
    def free(self: Tail) -> tuple[()]:
        return ()

    return [patch.object(Tail, "_binding", free)]


def _same_view() -> list[Any]:
    def fence_after(self: ledger._Opening) -> Fence:
        return Fence(max(self._term.epoch, self._fence.epoch), max(self._fence.view, 0))

    return [patch.object(ledger._Opening, "_fence_after", fence_after)]


def _skip_foreign() -> list[Any]:
    take = ledger._Opening._take

    async def adopt(self: ledger._Opening, keys: Any) -> None:
        key = keys.slot(self._tail.next)
        (record,) = await self._patiently(lambda: self._store.get(key))
        if record is not None:
            if self._applier.applied == 0:
                take(self, record)
            self._tail.adopt(record)

    return [patch.object(ledger._Opening, "_adopt", adopt)]


def _early_answer() -> list[Any]:
    async def write_slot(self: StoreLedger) -> None:
        entries, size = self._take_batch()
        value = encode(Slot(self.parts.writer, self._fence, tuple(entries)))
        self._written(entries, size)
        await self._tail.append(value, f"{self.parts.writer}.{self._tail.next}")

    return [patch.object(StoreLedger, "_write_slot", write_slot)]


def _confirm_without_round() -> list[Any]:
    async def confirm(self: StoreLedger) -> Fence:
        self._check_leads()
        return self._fence

    return [patch.object(StoreLedger, "confirm", confirm)]


def _joins_round_under_way() -> list[Any]:
    right = StoreLedger.confirm

    async def confirm(self: StoreLedger) -> Fence:
        if self._busy_since is None or self._stuck:
            return await right(self)
        asked: asyncio.Future[Fence] = asyncio.get_running_loop().create_future()
        self._asked.append(asked)
        return await asked

    return [patch.object(StoreLedger, "confirm", confirm)]


def _ruthless_collect() -> list[Any]:
    async def delete(self: StoreBlobs, digest: Digest, keep_ms: int) -> bool:
        record: Record | None = await self._read(digest)
        if record is not None:
            await self._store.write(Delete(record.key, ANY))
        return record is not None

    async def collect(self: StoreBlobs, referenced: Any) -> int:
        named = set(referenced)
        count = 0
        async for digest in self._listed("blob", 0):
            count += digest not in named and await self._delete(digest, 0)
        return count

    return [
        patch.object(StoreBlobs, "_delete", delete),
        patch.object(StoreBlobs, "collect", collect),
    ]


_PATCHES: dict[str, Callable[[], list[Any]]] = {
    "any_slot": _any_slot,
    "conflict_is_success": _conflict_is_success,
    "unknown_is_refused": _unknown_is_refused,
    "no_trust": _no_trust,
    "sweep_at_once": _sweep_at_once,
    "unbound": _unbound,
    "same_view": _same_view,
    "skip_foreign": _skip_foreign,
    "early_answer": _early_answer,
    "confirm_without_round": _confirm_without_round,
    "joins_round_under_way": _joins_round_under_way,
    "ruthless_collect": _ruthless_collect,
}
