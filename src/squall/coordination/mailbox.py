"""Reads the inbox of a member, gives signals to their takers, and marks them delivered.

Delivered, acknowledged and removed are one batch, and the record that decides is created
if absent: a signal takes effect once, however often its sender repeats it. Nothing is
acknowledged before its taker had it. While nobody wants signals, the inbox is not read.

Before a handler sees a signal, the store is asked whether it was delivered before and whether
its sender is dead. A wait has its signal delivered before it ends, and that step asks the same,
so it is asked once. A signal that the store carried here brings both answers along; they count
while they are fresh, as an answer would that came just before the handler began. What was asked
in an earlier incarnation is asked again: somebody else may have read the inbox meanwhile.

What nobody took in its time is removed, also from an inbox that nobody reads. While the member is
isolated nothing is read, and nothing is written for an incarnation that has ended.

It must never drop a signal because of a failed write, nor let a bad one end the loop, nor leave
anybody waiting when the loop has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from squall.coordination import acceptance, events, keys
from squall.coordination.acceptance import read_signal, refusal
from squall.coordination.assembly import Assembly
from squall.coordination.errors import (
    MemberFencedError,
    StateLostError,
    VersionConflict,
)
from squall.coordination.graves import Graves
from squall.coordination.inbox import Entry, Inbox
from squall.coordination.patience import Patience
from squall.coordination.records import Delivered, MemberRecord, Signal, SignalAck
from squall.coordination.sources import Source, Sources
from squall.coordination.stores.guard import GuardedStore
from squall.coordination.stores.interface import (
    ABSENT,
    ANY,
    Appended,
    Check,
    Item,
    Put,
    Record,
    Remove,
    Write,
)
from squall.coordination.takers import Takers

PAGE = 100
WAIT_S = 60.0
EXPIRED_EVERY_S = 3600.0
"""Between two looks for what nobody took; the first one comes after `WAIT_S`."""
TOKEN_BYTES = 12
FRESH_S = 1.0
"""Of store time: what was told beside a signal is older in a process that was stopped."""


@dataclass(frozen=True)
class Context:
    """What the mailbox asks of the member it belongs to."""

    alive: Callable[[], Check | None]
    isolated: Callable[[], bool]
    incarnation: Callable[[], int]
    known_epoch: Callable[[], int]
    max_clock_skew: float
    beat: Callable[[], Awaitable[object]]
    """Another heartbeat, now."""
    stale_order: Callable[[int, int], None]
    """Hears of each order that is refused for its epoch: that epoch, and the one known here."""


class Mailbox:
    """Of one member."""

    def __init__(self, parts: Assembly, context: Context) -> None:
        self.inbox = Inbox()
        self.patience = Patience(parts, context.isolated)
        self.takers = Takers(self.inbox, self.patience)
        self.rejected: dict[str, int] = {}
        self._ordered_in = 0
        """The highest epoch of an order that was verified: who gave an older one is deposed."""
        self._parts = parts
        self._context = context
        self._outcome = f"{parts.member_id}.{parts.runtime.entropy(TOKEN_BYTES).hex()}"
        """Of this process, whatever incarnations it has: by it a mark is known as our own."""
        self._sources = Sources(parts)
        self._waits_in: asyncio.Task[Any] | None = None
        self._is_disturbed = False
        self._is_behind = True
        """Not all that is in the store was read; a wait need not be begun."""
        self._refusing = ("", "")
        """The item that was refused last: it is told once, however often it is tried."""
        self._look_at = parts.clock.now() + WAIT_S
        """When to look for what has expired."""
        self._graves = Graves(parts.codec)

    async def run(self) -> None:
        """Until it is cancelled; then nobody waits any more."""
        try:
            while True:
                await self._until_wanted()
                await self.patience.until_done(self._turn, what="inbox_not_read")
                if not self.inbox.wanted:
                    self.takers.are_there.clear()
        finally:
            self.patience.end()
            self.takers.fail_waits(self.patience.ended())

    async def _until_wanted(self) -> None:
        """Or until it is time to look for what has expired."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._look_at - self._parts.clock.now()):
                await self.takers.are_there.wait()

    async def _turn(self) -> None:
        if self._parts.clock.now() >= self._look_at:
            # First: if it fails, the inbox is read all the same.
            self._look_at = self._parts.clock.now() + EXPIRED_EVERY_S
            await self._drop_expired()
        if not self.takers.are_there.is_set():
            return
        try:
            if self._is_behind:
                self._is_behind = False
                for source in self._sources:
                    if await self._read(source):
                        self._is_behind = True
            self.takers.give()
            if not self._is_behind and self.inbox.wanted:
                await self._wait()
        except BaseException:
            self._is_behind = True
            raise

    def give_back(self, entry: Entry) -> None:
        if self._source_of(entry) is None:
            self.inbox.forget(entry)
            return
        self.inbox.give_back(entry)
        self.takers.give()

    def adopt(self, found: Record, dead: MemberRecord) -> None:
        """Of a member that is dead or has left, as it was found."""
        self._sources.adopt(found, dead)
        self._is_behind = True
        self.takers.wake()
        if self._waits_in is not None and not self._is_disturbed:
            self._is_disturbed = True
            self._waits_in.cancel()

    def state_lost(self) -> None:
        self.restart()
        error = StateLostError("the store lost the signals that were waited for")
        self.takers.fail_waits(error)

    def restart(self) -> None:
        """Cursors of a store that lost data mean nothing any more."""
        self._is_behind = True
        for source in self._sources:
            source.cursor = ""

    # Reading.

    async def _wait(self) -> None:
        """Ends early when another stream is to be read as well."""
        store, own = self._parts.urgent, self._sources.own
        items: Sequence[Item] = ()
        self._waits_in = task = asyncio.current_task()
        try:
            if self._sources.is_single:
                items = await store.listen(own.stream, after=own.cursor, timeout_s=WAIT_S)
            else:
                watches = [Appended(each.stream, each.cursor) for each in self._sources]
                await store.wait(*watches, timeout_s=WAIT_S)
        except asyncio.CancelledError:
            if task is None or not self._is_disturbed or task.uncancel() > 0:
                raise
        finally:
            self._waits_in, self._is_disturbed = None, False
        if items:
            await self._take_in(own, items)
            self.takers.give()
        else:
            self._is_behind = True

    async def _read(self, source: Source) -> bool:
        """Whether more may be there; a wait looks before it sleeps, so less than a page is all."""
        items = await self._parts.urgent.read(source.stream, after=source.cursor, limit=PAGE)
        await self._take_in(source, items)
        return len(items) == PAGE

    async def _take_in(self, source: Source, items: Sequence[Item]) -> None:
        self._graves.trim()
        if items and source.owner is not None and await self._gave_up(source):
            return
        signals = [read_signal(self._parts.codec, item.value) for item in items]
        known: dict[str, Record | None] = {}
        asked: list[Signal] = []
        for item, signal in zip(items, signals, strict=True):
            if isinstance(signal, str) or self._is_for_later(signal):
                continue
            mark = keys.idempotency(source.receiver_id, signal.signal_id)
            if self._is_told(item, signal, mark):
                known[mark] = None
            else:
                asked.append(signal)
        if asked:
            known |= await self._known(source.receiver_id, asked)
        for item, signal in zip(items, signals, strict=True):
            await self._accept(source, item, signal, known)
            source.cursor = item.cursor

    def _is_for_later(self, signal: Signal) -> bool:
        """The delivered step will find out what there is to ask the store."""
        return (
            signal.sender_id in self._graves
            and self._parts.patient.capabilities.transactions
            and self.inbox.is_delivered_first(signal)
        )

    def _is_told(self, item: Item, signal: Signal, mark: str) -> bool:
        """What came along says that nobody delivered it, and nothing else of its sender than
        what is known here."""
        buried = item.beside.get(keys.tombstone(signal.sender_id))
        if buried is None or item.beside.get(mark) != "":
            return False
        is_fresh = self._parts.store_time() - item.appended_ms / 1000.0 <= FRESH_S
        return is_fresh and self._graves.is_as_told(signal.sender_id, buried)

    async def _known(self, receiver_id: str, signals: Sequence[Signal]) -> dict[str, Record | None]:
        """Their idempotency records; the tombstones of their senders are taken note of."""
        marks = [keys.idempotency(receiver_id, each.signal_id) for each in signals]
        senders = list(dict.fromkeys([each.sender_id for each in signals]))
        found = await self._parts.urgent.get(*marks, *map(keys.tombstone, senders))
        for sender, buried in zip(senders, found[len(marks) :], strict=True):
            self._graves.note(sender, buried)
        return dict(zip(marks, found, strict=False))

    async def _accept(
        self,
        source: Source,
        item: Item,
        signal: Signal | str,
        known: dict[str, Record | None],
    ) -> None:
        if isinstance(signal, str):
            await self._reject(source, item, signal)
            return
        if self.inbox.is_at(signal.signal_id, item.cursor):
            return
        if self.inbox.is_pending(signal.signal_id):
            # A copy; its original will be acknowledged.
            self._count_rejected("replay")
            remove = Remove(source.stream, item.cursor)
            await self._write_for(source, self._parts.urgent, remove)
            return
        mark = keys.idempotency(source.receiver_id, signal.signal_id)
        reason = self._refusal(signal, source.receiver_id, item.read_ms, item.appended_ms)
        if reason is not None:
            await self._reject(source, item, reason, signal)
        elif self.inbox.is_done(signal.signal_id) or known.get(mark) is not None:
            self._count_rejected("replay")
            place = (source.stream, item.cursor, source.receiver_id)
            owner = source.owner_incarnation
            await self._again(Entry(-1, *place, signal, 0, owner_incarnation=owner))
        else:
            grave = None if mark in known else self._graves.version(signal.sender_id)
            self._ordered_in = max(self._ordered_in, signal.epoch)
            place = (source.stream, item.cursor, source.receiver_id)
            self.inbox.arrive(
                *place,
                signal,
                item.appended_ms,
                grave,
                incarnation=self._context.incarnation(),
                owner_incarnation=source.owner_incarnation,
            )

    def _refusal(
        self, signal: Signal, receiver_id: str, read_ms: int, appended_ms: int
    ) -> str | None:
        return refusal(
            signal,
            receiver_id=receiver_id,
            store_now=read_ms / 1000.0,
            appended_at=appended_ms / 1000.0,
            known_epoch=self._known_epoch,
            max_clock_skew=self._context.max_clock_skew,
            sender_tombstone=self._graves.tombstone(signal.sender_id),
        )

    @property
    def _known_epoch(self) -> int:
        return max(self._context.known_epoch(), self._ordered_in)

    async def is_refused(self, entry: Entry) -> bool:
        """With patience: whether it must not be acted on after all. What is refused is out of
        the way."""
        while True:
            if await self.patience.until_done(
                lambda: self._refused_late(entry), what="signal_not_judged", about=entry.signal
            ):
                return True
            if not self.patience.isolated:
                return False

    async def _refused_late(self, entry: Entry) -> bool:
        """Asks what was not asked when it was read, and looks at what may have passed since."""
        source, incarnation = self._source_of(entry), self._context.incarnation()
        if source is None or (source.owner is not None and await self._gave_up(source)):
            self.inbox.forget(entry)
            return True
        if await self._refused_now(entry):
            return True
        if entry.grave is None and entry.incarnation == incarnation:
            return False
        known = await self._known(entry.receiver_id, [entry.signal])
        if await self._refused_sender(entry):
            return True
        is_ours = entry.attempted and await self._is_ours(entry)
        if any(known.values()) and not is_ours:
            self._count_rejected("replay")
            await self._again(entry)
            self.inbox.done(entry)
            return True
        entry.grave, entry.incarnation = None, incarnation
        return False

    async def _refused_now(self, entry: Entry) -> bool:
        """Whether its time has passed since it was read, or the epoch of an order."""
        signal = entry.signal
        if signal.expires_at <= self._parts.store_time():
            await self._reject_entry(entry, "expired")
        elif acceptance.is_stale(signal.epoch, self._known_epoch):
            await self._reject_entry(entry, "stale_epoch")
        else:
            return False
        return True

    async def _refused_sender(self, entry: Entry) -> bool:
        """By its tombstone as it was just read."""
        at_ms = entry.appended_ms
        reason = self._refusal(entry.signal, entry.receiver_id, at_ms, at_ms)
        if reason is not None:
            await self._reject_entry(entry, reason)
        return reason is not None

    async def _reject_entry(self, entry: Entry, reason: str) -> None:
        signal, source = entry.signal, self._source_of(entry)
        if source is None:
            self.inbox.forget(entry)
            return
        item = Item(
            cursor=entry.cursor,
            id=signal.signal_id,
            value=self._parts.codec.encode(signal),
            appended_ms=entry.appended_ms,
            read_ms=entry.appended_ms,
        )
        await self._reject(source, item, reason, signal)
        self.inbox.done(entry)

    async def _reject(
        self, source: Source, item: Item, reason: str, signal: Signal | None = None
    ) -> None:
        """Out of the inbox into quarantine, where people can look at it. It names nobody if its
        bytes could not be believed."""
        if self._refusing != (source.stream, item.cursor):
            self._refusing = (source.stream, item.cursor)
            self._tell_rejected(reason, signal)
        await self._set_aside(source, item.id, item.value, item.cursor)

    def _tell_rejected(self, reason: str, signal: Signal | None) -> None:
        self._count_rejected(reason)
        sender_id, signal_id = ("", "") if signal is None else (signal.sender_id, signal.signal_id)
        self._parts.bus.emit(
            events.SignalRejected(reason=reason, sender_id=sender_id, signal_id=signal_id)
        )
        if signal is not None and reason == "stale_epoch":
            self._context.stale_order(signal.epoch, self._known_epoch)

    async def quarantine(self, entry: Entry) -> None:
        """With patience. No handler could take it; its sender hears nothing."""
        signal, source = entry.signal, self._source_of(entry)
        if source is not None:
            value = self._parts.codec.encode(signal)
            await self.patience.until_done(
                lambda: self._set_aside(source, signal.signal_id, value, entry.cursor),
                what="signal_not_set_aside",
                about=signal,
            )
        self.inbox.done(entry)

    async def _set_aside(self, source: Source, name: str, value: bytes, cursor: str) -> None:
        key = keys.quarantine(source.receiver_id, name)
        put = Put(key, value, expect=ANY, ttl_s=keys.QUARANTINE_TTL_S)
        remove = Remove(source.stream, cursor)
        await self._write_for(source, self._parts.urgent, put, remove)

    # What nobody took.

    async def _drop_expired(self) -> None:
        """What nobody took in its time would fill the inbox for good, also one that nobody
        reads."""
        for entry in self.inbox.expired(self._parts.store_time()):
            if not self.inbox.take_out(entry):
                continue
            try:
                await self._reject_entry(entry, "expired")
            except BaseException:
                self.inbox.give_back(entry)
                raise
        for source in self._sources:
            depth = await self._parts.urgent.depth(source.stream)
            if depth.oldest_ms >= keys.SIGNAL_LIFE_S * 1000.0:
                await self._drop_unread(source)

    async def _drop_unread(self, source: Source) -> None:
        """The oldest come first."""
        page: Sequence[Item] = ()
        while not page or len(page) == PAGE:
            after = page[-1].cursor if page else ""
            page = await self._parts.urgent.read(source.stream, after=after, limit=PAGE)
            for item in page:
                signal = read_signal(self._parts.codec, item.value)
                if isinstance(signal, str):
                    await self._reject(source, item, signal)
                elif signal.expires_at > item.read_ms / 1000.0:
                    return
                elif not self.inbox.is_pending(signal.signal_id):
                    await self._reject(source, item, "expired", signal)
            if not page:
                return

    def _count_rejected(self, reason: str) -> None:
        self.rejected[reason] = self.rejected.get(reason, 0) + 1
        metrics = self._parts.metrics
        metrics.counter(metrics.families.signals_rejected, reason).add()

    # The delivered step.

    async def deliver(
        self, entry: Entry, writes: Sequence[Write] = (), refusals_max: float = math.inf
    ) -> bool:
        """`delivered` with patience."""
        return await self.patience.until_done(
            lambda: self.delivered(entry, writes),
            what="signal_not_delivered",
            about=entry.signal,
            refusals_max=refusals_max,
        )

    async def delivered(self, entry: Entry, writes: Sequence[Write] = ()) -> bool:
        """Marks, acknowledges and removes in one step, with the writes of its taker. False
        if its effect must not count: it was delivered before, its time has passed, or it is its
        owner's again."""
        source = self._source_of(entry)
        if source is None:
            self.inbox.forget(entry)
            return False
        mine = entry.attempted
        if not entry.handled and not mine and await self._refused_now(entry):
            return False
        effects = tuple(writes)
        if effects and not self._parts.patient.capabilities.transactions:
            await self._write_effects(source, effects)
            effects = ()
        entry.attempted = True
        try:
            checks = (*self._checks(source), *self._unburied(entry))
            await self._parts.patient.write(*checks, *effects, *self._marks(entry))
        except VersionConflict as conflict:
            entry.attempted = mine
            self._check_fenced(conflict)
            if source.owner is not None and conflict.key == source.owner.key:
                await self._gave_up(source)
                return await self.delivered(entry, writes)
            if entry.grave is not None and conflict.key == keys.tombstone(entry.signal.sender_id):
                await self._known(entry.receiver_id, [entry.signal])
                entry.grave = self._graves.version(entry.signal.sender_id)
                return not await self._refused_sender(entry) and await self.delivered(entry, writes)
            if not await self._is_marked(entry, conflict):
                raise
            first = mine and await self._is_ours(entry)
            await self._again(entry)
            if not first:
                self._count_rejected("replay")
            self.inbox.done(entry)
            return first
        self.inbox.done(entry)
        return True

    async def _is_marked(self, entry: Entry, conflict: VersionConflict) -> bool:
        """Whether it was delivered before. An effect of that very step may be what stands in
        the way: its reply was lost."""
        mark = keys.idempotency(entry.receiver_id, entry.signal.signal_id)
        return conflict.key == mark or (await self._parts.patient.get(mark))[0] is not None

    async def _write_effects(self, source: Source, effects: Sequence[Write]) -> None:
        """Without transactions each is created if absent and may be there already."""
        for effect in effects:
            try:
                await self._parts.patient.write(*self._checks(source), effect)
            except VersionConflict as conflict:
                self._check_fenced(conflict)
                if source.owner is not None and conflict.key == source.owner.key:
                    return

    async def _write_for(self, source: Source, store: GuardedStore, *writes: Write) -> None:
        """Nothing is written to an adopted inbox whose owner came back."""
        try:
            await store.write(*self._checks(source), *writes)
        except VersionConflict as conflict:
            self._check_fenced(conflict)
            if source.owner is None or conflict.key != source.owner.key:
                raise
            if not await self._gave_up(source):
                await self._write_for(source, store, *writes)

    def _source_of(self, entry: Entry) -> Source | None:
        return self._sources.find(entry.receiver_id, entry.owner_incarnation)

    async def _gave_up(self, source: Source) -> bool:
        is_given_up = await self._sources.is_given_up(source)
        if is_given_up:
            self.inbox.forget_source(source.receiver_id)
        return is_given_up

    def _check_fenced(self, conflict: VersionConflict) -> None:
        if conflict.key == keys.member(self._parts.member_id):
            incarnation = self._context.incarnation()
            raise MemberFencedError(self._parts.member_id, incarnation) from conflict

    def _checks(self, source: Source) -> tuple[Check, ...]:
        """That this incarnation lives, and that of an adopted inbox does not."""
        return tuple(each for each in (self._context.alive(), source.owner) if each is not None)

    def _unburied(self, entry: Entry) -> tuple[Check, ...]:
        """That its sender is as dead or alive as it was when the signal was judged."""
        if entry.grave is None:
            return ()
        return (Check(keys.tombstone(entry.signal.sender_id), entry.grave),)

    def _marks(self, entry: Entry) -> tuple[Write, ...]:
        record = Delivered(
            signal_id=entry.signal.signal_id,
            receiver_id=entry.receiver_id,
            outcome=self._outcome,
            delivered_at=self._parts.store_time(),
        )
        decided = Put(
            keys.idempotency(entry.receiver_id, entry.signal.signal_id),
            self._parts.codec.encode(record),
            expect=ABSENT,
            ttl_s=keys.IDEMPOTENCY_TTL_S,
            silent=True,
        )
        return (decided, *self._acknowledgment(entry))

    def _acknowledgment(self, entry: Entry) -> tuple[Write, ...]:
        signal = entry.signal
        ack = SignalAck(
            signal_id=signal.signal_id,
            receiver_id=entry.receiver_id,
            sender_id=signal.sender_id,
            iteration=signal.iteration,
            received_at=self._parts.store_time(),
        )
        return (
            Put(
                keys.ack(signal.sender_id, signal.signal_id),
                self._parts.codec.encode(ack),
                expect=ANY,
                ttl_s=keys.ACK_TTL_S,
            ),
            Remove(entry.stream, entry.cursor),
        )

    async def _again(self, entry: Entry) -> None:
        """A copy of what was delivered: only acknowledged once more."""
        source = self._source_of(entry)
        if source is not None:
            await self._write_for(source, self._parts.patient, *self._acknowledgment(entry))

    async def _is_ours(self, entry: Entry) -> bool:
        key = keys.idempotency(entry.receiver_id, entry.signal.signal_id)
        (found,) = await self._parts.patient.get(key)
        record = None if found is None else self._parts.codec.read(Delivered, found.value)
        return record is not None and record.outcome == self._outcome
