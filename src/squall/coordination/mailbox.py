"""Reads the inbox of a member, gives signals to their takers, and marks them delivered.

Delivered, acknowledged and removed are one batch, and the record that decides is created
if absent: a signal takes effect once, however often its sender repeats it. Nothing is
acknowledged before its taker had it. While nobody wants signals, the inbox is not read.

Before a handler sees a signal, the store is asked whether it was delivered before and whether
its sender is dead. A wait has its signal delivered before it ends, and that step asks the same,
so it is asked once. A signal that the store carried here brings both answers along; they count
while they are fresh, as an answer would that came just before the handler began.

It must never drop a signal because of a failed write, nor let a bad one end the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from squall.coordination import acceptance, events, keys
from squall.coordination.acceptance import read_signal, refusal
from squall.coordination.assembly import Assembly
from squall.coordination.errors import (
    CoordinationError,
    MemberFencedError,
    StateLostError,
    StoreUnavailableError,
    VersionConflict,
)
from squall.coordination.inbox import Entry, Inbox, Wanted
from squall.coordination.records import Delivered, Signal, SignalAck, Tombstone
from squall.coordination.stores.interface import (
    ABSENT,
    ANY,
    Appended,
    Check,
    Condition,
    Item,
    Put,
    Record,
    Remove,
    Write,
)

PAGE = 100
WAIT_S = 60.0
RETRY_S = 1.0
GRAVES_MAX = 10_000
FRESH_S = 1.0
"""Of store time: what was told beside a signal is older in a process that was stopped."""


@dataclass
class Source:
    """A stream that is read: the member's own, or one that it adopted."""

    stream: str
    receiver_id: str
    cursor: str = ""


@dataclass(frozen=True)
class Context:
    """What the mailbox asks of the member it belongs to."""

    alive: Callable[[], Check | None]
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
        self.rejected: dict[str, int] = {}
        self._ordered_in = 0
        """The highest epoch of an order that was verified: who gave an older one is deposed."""
        self._parts = parts
        self._context = context
        self._sources = [Source(keys.inbox(parts.member_id), parts.member_id)]
        self._handlers: dict[int, Callable[[Entry], None]] = {}
        self._futures: dict[int, asyncio.Future[Entry]] = {}
        self._wanted = asyncio.Event()
        self._waits_in: asyncio.Task[Any] | None = None
        self._is_disturbed = False
        self._is_behind = True
        """Not all that is in the store was read; a wait need not be begun."""
        self._graves: dict[str, tuple[Condition, Tombstone | None]] = {}
        """By sender, the version of its tombstone and what it said when it was last read."""

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            await self._wanted.wait()
            try:
                if self._is_behind:
                    self._is_behind = False
                    for source in self._sources:
                        if await self._read(source):
                            self._is_behind = True
                self._give()
                if not self._is_behind and self.inbox.wanted:
                    await self._wait()
            except StoreUnavailableError:
                self._is_behind = True
                await self._parts.clock.sleep(RETRY_S)
            if not self.inbox.wanted:
                self._wanted.clear()

    # Takers.

    def take(self, wanted: Wanted, handler: Callable[[Entry], None]) -> int:
        """Calls `handler` for each signal that matches, until `forget`."""
        number = self.inbox.add_taker(wanted, once=False)
        self._handlers[number] = handler
        self._wake()
        return number

    def forget(self, number: int) -> None:
        self.inbox.remove_taker(number)
        self._handlers.pop(number, None)
        self._futures.pop(number, None)

    async def take_one(self, wanted: Wanted, *, delivers_first: bool = False) -> Entry:
        """The first that matches, also one that is here already. Not delivered yet. A
        cancelled call takes nothing. Who does not call `delivered` before it acts on the signal
        has to ask `refused_late`."""
        number = self.inbox.add_taker(wanted, once=True, delivers_first=delivers_first)
        future: asyncio.Future[Entry] = asyncio.get_running_loop().create_future()
        self._futures[number] = future
        self._wake()
        try:
            return await future
        except asyncio.CancelledError:
            self.forget(number)
            if future.done() and not future.cancelled():
                self.give_back(future.result())
            raise

    def fail_takers(self, error: CoordinationError) -> None:
        """Ends all that wait for one signal: what they wait for is gone."""
        for number, future in list(self._futures.items()):
            self.forget(number)
            if not future.done():
                future.set_exception(error)

    def give_back(self, entry: Entry) -> None:
        self.inbox.give_back(entry)
        self._give()

    def adopt(self, dead_id: str) -> None:
        self._sources.append(Source(keys.inbox(dead_id), dead_id))
        self._is_behind = True
        self._wake()
        if self._waits_in is not None and not self._is_disturbed:
            self._is_disturbed = True
            self._waits_in.cancel()

    def restart(self) -> None:
        """The store lost data: cursors mean nothing any more."""
        self._is_behind = True
        for source in self._sources:
            source.cursor = ""

    def _wake(self) -> None:
        self._give()
        if self.inbox.wanted:
            self._wanted.set()

    def _give(self) -> None:
        for number, entry in self.inbox.match():
            future, handler = self._futures.pop(number, None), self._handlers.get(number)
            if future is not None and not future.done():
                future.set_result(entry)
            elif handler is not None:
                handler(entry)
            else:
                self.inbox.give_back(entry)

    # Reading.

    async def _wait(self) -> None:
        """Ends early when another stream is to be read as well."""
        store, (source, *others) = self._parts.urgent, self._sources
        items: Sequence[Item] = ()
        self._waits_in = task = asyncio.current_task()
        try:
            if others:
                watches = [Appended(each.stream, each.cursor) for each in self._sources]
                await store.wait(*watches, timeout_s=WAIT_S)
            else:
                items = await store.listen(source.stream, after=source.cursor, timeout_s=WAIT_S)
        except asyncio.CancelledError:
            if task is None or not self._is_disturbed or task.uncancel() > 0:
                raise
        finally:
            self._waits_in, self._is_disturbed = None, False
        if items:
            await self._take_in(source, items)
            self._give()
        else:
            self._is_behind = True

    async def _read(self, source: Source) -> bool:
        """Whether more may be there; a wait looks before it sleeps, so less than a page is all."""
        items = await self._parts.urgent.read(source.stream, after=source.cursor, limit=PAGE)
        await self._take_in(source, items)
        return len(items) == PAGE

    async def _take_in(self, source: Source, items: Sequence[Item]) -> None:
        if len(self._graves) > GRAVES_MAX:
            # Nowhere else: what is judged below relies on what is in it.
            self._graves.clear()
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
        sender = signal.sender_id
        buried = item.beside.get(keys.tombstone(sender))
        if buried is None or item.beside.get(mark) != "":
            return False
        if self._parts.store_time() - item.appended_ms / 1000.0 > FRESH_S:
            return False
        if not buried:
            self._graves.setdefault(sender, (ABSENT, None))
        grave = self._graves.get(sender)
        return grave is not None and grave[0] == (buried or ABSENT)

    async def _known(self, receiver_id: str, signals: Sequence[Signal]) -> dict[str, Record | None]:
        """Their idempotency records; the tombstones of their senders are taken note of."""
        marks = [keys.idempotency(receiver_id, each.signal_id) for each in signals]
        senders = list(dict.fromkeys([each.sender_id for each in signals]))
        found = await self._parts.urgent.get(*marks, *map(keys.tombstone, senders))
        for sender, buried in zip(senders, found[len(marks) :], strict=True):
            self._graves[sender] = (
                (ABSENT, None)
                if buried is None
                else (buried.version, self._parts.codec.read(Tombstone, buried.value))
            )
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
            await self._parts.urgent.write(Remove(source.stream, item.cursor))
            return
        mark = keys.idempotency(source.receiver_id, signal.signal_id)
        reason = self._refusal(signal, source.receiver_id, item.read_ms, item.appended_ms)
        if reason is not None:
            await self._reject(source, item, reason, signal)
        elif self.inbox.is_done(signal.signal_id) or known.get(mark) is not None:
            self._count_rejected("replay")
            entry = Entry(-1, source.stream, item.cursor, source.receiver_id, signal, 0)
            await self._again(entry)
        else:
            grave = None if mark in known else self._graves[signal.sender_id][0]
            self._ordered_in = max(self._ordered_in, signal.epoch)
            place = (source.stream, item.cursor, source.receiver_id)
            self.inbox.arrive(*place, signal, item.appended_ms, grave)

    def _refusal(
        self, signal: Signal, receiver_id: str, read_ms: int, appended_ms: int
    ) -> str | None:
        _, tombstone = self._graves[signal.sender_id]
        return refusal(
            signal,
            receiver_id=receiver_id,
            store_now=read_ms / 1000.0,
            appended_at=appended_ms / 1000.0,
            known_epoch=self._known_epoch,
            max_clock_skew=self._context.max_clock_skew,
            sender_tombstone=tombstone,
        )

    @property
    def _known_epoch(self) -> int:
        return max(self._context.known_epoch(), self._ordered_in)

    async def refused_late(self, entry: Entry) -> bool:
        """Asks what was not asked when it was read, and whether it is an order whose epoch has
        passed since. What is refused is out of the way."""
        signal = entry.signal
        if acceptance.is_stale(signal.epoch, self._known_epoch):
            await self._reject_entry(entry, "stale_epoch")
            return True
        if entry.grave is None:
            return False
        known = await self._known(entry.receiver_id, [signal])
        if await self._refused_sender(entry):
            return True
        if any(known.values()):
            self._count_rejected("replay")
            await self._again(entry)
            self.inbox.done(entry)
            return True
        entry.grave = None
        return False

    async def _refused_sender(self, entry: Entry) -> bool:
        """By its tombstone as it was just read."""
        at_ms = entry.appended_ms
        reason = self._refusal(entry.signal, entry.receiver_id, at_ms, at_ms)
        if reason is not None:
            await self._reject_entry(entry, reason)
        return reason is not None

    async def _reject_entry(self, entry: Entry, reason: str) -> None:
        signal = entry.signal
        source = Source(entry.stream, entry.receiver_id)
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
        self._count_rejected(reason)
        sender_id, signal_id = ("", "") if signal is None else (signal.sender_id, signal.signal_id)
        self._parts.bus.emit(
            events.SignalRejected(reason=reason, sender_id=sender_id, signal_id=signal_id)
        )
        if signal is not None and reason == "stale_epoch":
            self._context.stale_order(signal.epoch, self._known_epoch)
        await self._parts.urgent.write(
            Put(
                keys.quarantine(source.receiver_id, item.id),
                item.value,
                expect=ANY,
                ttl_s=keys.QUARANTINE_TTL_S,
            ),
            Remove(source.stream, item.cursor),
        )

    def _count_rejected(self, reason: str) -> None:
        self.rejected[reason] = self.rejected.get(reason, 0) + 1
        metrics = self._parts.metrics
        metrics.counter(metrics.families.signals_rejected, reason).add()

    # The delivered step.

    async def delivered(self, entry: Entry, writes: Sequence[Write] = ()) -> bool:
        """Marks, acknowledges and removes in one step, with the writes of its taker. False
        if the signal had been delivered before: then its effect must not count."""
        capabilities = self._parts.patient.capabilities
        effects = tuple(writes)
        if effects and not capabilities.transactions:
            await self._write_effects(effects)
            effects = ()
        mine = entry.attempted
        entry.attempted = True
        try:
            checks = (*self._alive(), *self._unburied(entry))
            await self._parts.patient.write(*checks, *effects, *self._marks(entry))
        except VersionConflict as conflict:
            self._check_fenced(conflict)
            if entry.grave is not None and conflict.key == keys.tombstone(entry.signal.sender_id):
                await self._known(entry.receiver_id, [entry.signal])
                entry.grave = self._graves[entry.signal.sender_id][0]
                return not await self._refused_sender(entry) and await self.delivered(entry, writes)
            if not await self._is_marked(entry, conflict):
                raise
            first = mine and await self._is_ours(entry)
            if not first:
                self._count_rejected("replay")
            await self._again(entry)
            self.inbox.done(entry)
            return first
        self.inbox.done(entry)
        return True

    async def _is_marked(self, entry: Entry, conflict: VersionConflict) -> bool:
        """Whether it was delivered before. An effect of that very step may be what stands in
        the way: its reply was lost."""
        mark = keys.idempotency(entry.receiver_id, entry.signal.signal_id)
        return conflict.key == mark or (await self._parts.patient.get(mark))[0] is not None

    async def _write_effects(self, effects: Sequence[Write]) -> None:
        """Without transactions each is created if absent and may be there already."""
        for effect in effects:
            try:
                await self._parts.patient.write(*self._alive(), effect)
            except VersionConflict as conflict:
                self._check_fenced(conflict)

    def _check_fenced(self, conflict: VersionConflict) -> None:
        if conflict.key == keys.member(self._parts.member_id):
            incarnation = self._context.incarnation()
            raise MemberFencedError(self._parts.member_id, incarnation) from conflict

    def _alive(self) -> tuple[Check, ...]:
        check = self._context.alive()
        return () if check is None else (check,)

    def _unburied(self, entry: Entry) -> tuple[Check, ...]:
        """That its sender is as dead or alive as it was when the signal was judged."""
        if entry.grave is None:
            return ()
        return (Check(keys.tombstone(entry.signal.sender_id), entry.grave),)

    def _marks(self, entry: Entry) -> tuple[Write, ...]:
        record = Delivered(
            signal_id=entry.signal.signal_id,
            receiver_id=entry.receiver_id,
            outcome=self._outcome(),
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
        await self._parts.patient.write(*self._acknowledgment(entry))

    async def _is_ours(self, entry: Entry) -> bool:
        key = keys.idempotency(entry.receiver_id, entry.signal.signal_id)
        (found,) = await self._parts.patient.get(key)
        record = None if found is None else self._parts.codec.read(Delivered, found.value)
        return record is not None and record.outcome == self._outcome()

    def _outcome(self) -> str:
        return f"{self._parts.member_id}.{self._context.incarnation()}"

    def state_lost(self) -> None:
        self.restart()
        self.fail_takers(StateLostError("the store lost the signals that were waited for"))
