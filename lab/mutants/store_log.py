"""Mutants of a log in a store: known bugs, each switched on by name.

A mutant patches the real classes for one run; the log itself contains no switch for it.
"""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from squall.cluster.ledger.interface import Digest, Fence, TryLater
from squall.coordination.stores.interface import ANY, Delete, Put, Record
from squall.store_mode.ledger import open_store_ledger as ledger
from squall.store_mode.ledger import tail as ledger_tail
from squall.store_mode.ledger.blobs import StoreBlobs
from squall.store_mode.ledger.checkpoints import Checkpoints
from squall.store_mode.ledger.layout import Head, LogSlot, encode
from squall.store_mode.ledger.store_ledger import NO_ANSWER, StoreLedger
from squall.store_mode.ledger.tail import Tail

MUTANTS = {
    "any_slot": "a leader overwrites a slot that another leader has written",
    "conflict_is_success": "a leader takes a conflicting slot for its own",
    "unknown_is_refused": "a leader reports commands of an unanswered slot as refused",
    "always_trusted": "a leader takes an absent slot for unwritten, however long it was paused",
    "sweep_at_once": "a leader deletes slots as soon as the head declares them obsolete",
    "unbound": "a leader writes a slot without checking the one before it",
    "same_view": "a new leader leads in the view of the previous one",
    "skip_foreign": "a new leader skips another leader's slot without applying it",
    "early_answer": "a leader answers a command before its slot is in the store",
    "confirm_without_round": "a leader confirms its lead without a round",
    "joins_round_under_way": "a round confirms requests that arrived after it began",
    "ruthless_collect": "a leader deletes blobs without checking their age and version",
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


def _always_trusted() -> list[Any]:
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
        (record,) = await self._retry_until_term_ends(lambda: self._store.get(key))
        if record is not None:
            if self._applier.applied == 0:
                take(self, record)
            self._tail.adopt(record)

    return [patch.object(ledger._Opening, "_adopt", adopt)]


def _early_answer() -> list[Any]:
    async def write_slot(self: StoreLedger) -> None:
        entries, size = self._take_batch()
        value = encode(LogSlot(self.parts.writer, self._fence, tuple(entries)))
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
    "always_trusted": _always_trusted,
    "sweep_at_once": _sweep_at_once,
    "unbound": _unbound,
    "same_view": _same_view,
    "skip_foreign": _skip_foreign,
    "early_answer": _early_answer,
    "confirm_without_round": _confirm_without_round,
    "joins_round_under_way": _joins_round_under_way,
    "ruthless_collect": _ruthless_collect,
}
