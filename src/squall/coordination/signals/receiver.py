"""Reads the inbox of a member, passes its signals to consumers and marks them delivered.

**Exactly once.** The delivered mark, the acknowledgment and the removal from the inbox are one
batch. The mark is created if absent, which decides: however often the sender repeats a signal, one
delivery takes effect. No signal is acknowledged before its consumer had it.

**Judged before use.** A handler may act on a signal only after the store was asked whether it was
delivered before and whether its sender is dead. A blocking wait has its signal delivered before it
ends, and that batch asks the same two questions, so they are not asked twice. A signal that the
store pushed brings both answers along; they count while they are fresh. Answers from an earlier
boot of the member are asked for again, because another process may have read the inbox meanwhile.

**Bounded.** A signal that no consumer took before it expired is removed, also from an inbox
without a reader. Without a consumer the inbox is not read. While the member is isolated nothing is
read, and nothing is written for a boot that has ended.

The receiver must never drop a signal because a write failed, let a bad signal end its loop, or
leave a caller waiting when the loop has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Sequence
from typing import Any

from squall.coordination import events
from squall.coordination.errors import StateLostError, VersionConflict
from squall.coordination.member_parts import MemberParts
from squall.coordination.records import keys
from squall.coordination.records.schemas import MemberRecord, Signal
from squall.coordination.signals import acceptance
from squall.coordination.signals.acceptance import read_signal, refusal
from squall.coordination.signals.consumers import Consumers
from squall.coordination.signals.inbox_streams import InboxStream, InboxStreams
from squall.coordination.signals.inbox_writer import InboxWriter
from squall.coordination.signals.matching import InboxEntry, SignalMatcher
from squall.coordination.signals.member_context import MemberContext
from squall.coordination.signals.step_retry import StepRetry, log_fields
from squall.coordination.signals.tombstone_cache import TombstoneCache
from squall.coordination.stores.interface import Appended, Check, Item, Record, Remove, Write

PAGE = 100
# A wait ends at least this often, so that a notification which the store lost costs a minute and
# not the signal.
WAIT_S = 60.0
# Between two checks for expired signals; the first one comes after `WAIT_S`. They only take up room
# in the inbox, so an hour is soon enough.
EXPIRED_EVERY_S = 3600.0
# How old the answers may be that came along with a pushed signal, in store time. They are as good
# as a read just before the handler begins; in a process that was stopped meanwhile they are not.
FRESH_S = 1.0
# A consumer that has a signal for longer than this gets a receipt written for it, at most a second
# later. That is well below the five seconds after which a sender repeats the signal.
RECEIPT_S = 1.0


class Receiver:
    """Receives this member's signals and delivers each one to its consumer exactly once."""

    def __init__(self, parts: MemberParts, context: MemberContext) -> None:
        self.matcher = SignalMatcher()
        self.retry = StepRetry(parts, context.isolated)
        self.consumers = Consumers(self.matcher, self.retry)
        # How many signals were refused, by reason.
        self.rejected: dict[str, int] = {}
        self._parts = parts
        self._context = context
        self._streams = InboxStreams(parts)
        self.writer = InboxWriter(parts, context, self._streams, self.matcher)
        self._tombstones = TombstoneCache(parts.codec)
        # The highest epoch that the store confirmed for an order. A member that sends an order of a
        # lower one is deposed, even if this member has not seen the new lease yet.
        self._confirmed_epoch = 0
        # The task that sleeps in `_wait`, and whether `adopt` interrupted it: that cancellation is
        # ours and must not end the loop.
        self._wait_task: asyncio.Task[Any] | None = None
        self._is_wait_interrupted = False
        # The store may hold items that were not read: read before waiting.
        self._is_behind = True
        # Stream and cursor of the item that was refused last. A refusal that cannot be written is
        # tried again, but counted and reported once.
        self._last_rejected = ("", "")
        self._expiry_check_at = parts.clock.now() + WAIT_S

    async def run(self) -> None:
        """Runs until it is cancelled, and then fails the waits that are still open."""
        try:
            while True:
                await self._until_wanted()
                await self.retry.until_done(self._turn, what="inbox_not_read")
                if not self.matcher.has_consumers:
                    self.consumers.present.clear()
        finally:
            self.retry.end()
            self.consumers.fail_waits(self.retry.ended())

    async def write_receipts(self) -> None:
        """Tells senders that a handler or a loop has their signal, if it takes long. A fast one
        costs no write: its acknowledgment comes first."""
        taken = self.consumers.taken
        while True:
            await self.consumers.is_any_taken.wait()
            self.consumers.is_any_taken.clear()
            entries = list(taken.values())
            taken.clear()
            await self._parts.clock.sleep(RECEIPT_S)
            for entry in entries:
                inbox = self.writer.inbox_of(entry)
                if inbox is not None and self.matcher.is_taken(entry) and not self.retry.isolated:
                    await self.writer.write_receipt(inbox, entry.signal)

    async def _until_wanted(self) -> None:
        """Sleeps until there is a consumer, or until the next check for expired signals."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._expiry_check_at - self._parts.clock.now()):
                await self.consumers.present.wait()

    async def _turn(self) -> None:
        if self._parts.clock.now() >= self._expiry_check_at:
            # The next check is set first: if this one fails, the turn is repeated without it and
            # the inbox is read all the same.
            self._expiry_check_at = self._parts.clock.now() + EXPIRED_EVERY_S
            await self._drop_expired()
        if not self.consumers.present.is_set():
            return
        try:
            if self._is_behind:
                self._is_behind = False
                for inbox in self._streams:
                    if await self._read(inbox):
                        self._is_behind = True
            self.consumers.give()
            if not self._is_behind and self.matcher.has_consumers:
                await self._wait()
        except BaseException:
            # Items may have been announced and not taken in: read again before the next wait.
            self._is_behind = True
            raise

    def give_back(self, entry: InboxEntry) -> None:
        """A consumer could not use the signal: offers it to the others."""
        if self.writer.inbox_of(entry) is None:
            self.matcher.forget(entry)
            return
        self.matcher.give_back(entry)
        self.consumers.give()

    def adopt(self, found: Record, dead: MemberRecord) -> None:
        """Reads the inbox of a member that is dead or has left, by its registration as found."""
        self._streams.adopt(found, dead)
        self._is_behind = True
        self.consumers.wake()
        if self._wait_task is not None and not self._is_wait_interrupted:
            # It waits for the streams that were known when it began.
            self._is_wait_interrupted = True
            self._wait_task.cancel()

    def state_lost(self) -> None:
        """The store lost data: ends the open waits, whose signals may be gone."""
        self.restart()
        self.consumers.fail_waits(
            StateLostError("the store lost data, and with it signals that this call waited for")
        )

    def restart(self) -> None:
        """Reads all inboxes from the beginning: cursors of a store that lost data mean nothing."""
        self._is_behind = True
        for inbox in self._streams:
            inbox.cursor = ""

    # Reading.

    async def _wait(self) -> None:
        """Waits for new items. `adopt` ends it early."""
        store, own = self._parts.urgent, self._streams.own
        items: Sequence[Item] = ()
        self._wait_task = task = asyncio.current_task()
        try:
            if self._streams.is_single:
                items = await store.listen(own.stream, after=own.cursor, timeout_s=WAIT_S)
            else:
                watches = [Appended(each.stream, each.cursor) for each in self._streams]
                await store.wait(*watches, timeout_s=WAIT_S)
        except asyncio.CancelledError:
            # `uncancel` takes back our own cancellation. If another one is left, the loop
            # is being stopped at the same moment, and that wins.
            if task is None or not self._is_wait_interrupted or task.uncancel() > 0:
                raise
        finally:
            self._wait_task, self._is_wait_interrupted = None, False
        if items:
            await self._take_in(own, items)
            self.consumers.give()
        else:
            self._is_behind = True

    async def _read(self, inbox: InboxStream) -> bool:
        """Reads one page. Returns whether there may be more. A short page is all there is: an item
        that is appended after the read ends the wait that follows."""
        items = await self._parts.urgent.read(inbox.stream, after=inbox.cursor, limit=PAGE)
        await self._take_in(inbox, items)
        return len(items) == PAGE

    async def _take_in(self, inbox: InboxStream, items: Sequence[Item]) -> None:
        """Verifies and judges items, asking the store once for all of them."""
        self._tombstones.trim()
        if items and inbox.owner is not None and await self.writer.is_given_up(inbox):
            return
        signals = [read_signal(self._parts.codec, item.value) for item in items]
        # By mark of the signals whose state is known: None, or the mark of an earlier delivery.
        known: dict[str, Record | None] = {}
        asked: list[Signal] = []
        for item, signal in zip(items, signals, strict=True):
            if isinstance(signal, str) or self._is_asked_on_delivery(signal):
                continue
            mark = keys.idempotency(inbox.receiver_id, signal.signal_id)
            if self._came_with_answers(item, signal, mark):
                known[mark] = None
            else:
                asked.append(signal)
        if asked:
            known |= await self._known(inbox.receiver_id, asked)
        for item, signal in zip(items, signals, strict=True):
            await self._accept(inbox, item, signal, known)
            # After each item, not after the page: if a write fails, the rest is read again.
            inbox.cursor = item.cursor

    def _is_asked_on_delivery(self, signal: Signal) -> bool:
        """Whether the delivered batch will ask all there is to ask. It needs transactions, a known
        tombstone of the sender to compare with, and a consumer that acts only after the batch."""
        return (
            signal.sender_id in self._tombstones
            and self._parts.patient.capabilities.transactions
            and self.matcher.is_delivered_first(signal)
        )

    def _came_with_answers(self, item: Item, signal: Signal, mark: str) -> bool:
        """Whether a pushed item says that it was not delivered before, and names the version of
        the sender's tombstone that is known here."""
        tombstone = item.versions.get(keys.tombstone(signal.sender_id))
        if tombstone is None or item.versions.get(mark) != "":
            return False
        is_fresh = self._parts.store_time() - item.appended_ms / 1000.0 <= FRESH_S
        return is_fresh and self._tombstones.agrees_with(signal.sender_id, tombstone)

    async def _known(self, receiver_id: str, signals: Sequence[Signal]) -> dict[str, Record | None]:
        """The delivered marks of signals, by key. Also refreshes their senders' tombstones."""
        marks = [keys.idempotency(receiver_id, each.signal_id) for each in signals]
        senders = list(dict.fromkeys([each.sender_id for each in signals]))
        found = await self._parts.urgent.get(*marks, *map(keys.tombstone, senders))
        for sender, tombstone in zip(senders, found[len(marks) :], strict=True):
            self._tombstones.note(sender, tombstone)
        return dict(zip(marks, found, strict=False))

    async def _accept(
        self,
        inbox: InboxStream,
        item: Item,
        signal: Signal | str,
        known: dict[str, Record | None],
    ) -> None:
        if isinstance(signal, str):
            await self._reject(inbox, item, signal)
            return
        if self.matcher.is_at(signal.signal_id, item.cursor):
            return
        if self.matcher.is_pending(signal.signal_id):
            # The sender repeated it. The first copy is on its way to a consumer, and will be
            # acknowledged; this one only goes.
            self._count_rejected("replay")
            remove = Remove(inbox.stream, item.cursor)
            await self.writer.write(inbox, self._parts.urgent, remove)
            return
        await self._confirm_epoch(signal)
        mark = keys.idempotency(inbox.receiver_id, signal.signal_id)
        place = (inbox.stream, item.cursor, inbox.receiver_id)
        reason = self._refusal(signal, inbox.receiver_id, item.read_ms, item.appended_ms)
        if reason is not None:
            await self._reject(inbox, item, reason, signal)
        elif self.matcher.is_done(signal.signal_id) or known.get(mark) is not None:
            # Delivered before: the sender repeats it because it missed the acknowledgment.
            self._count_rejected("replay")
            copy = InboxEntry(-1, *place, signal, 0, owner_boot=inbox.owner_boot)
            await self.writer.acknowledge_again(copy)
        else:
            judged_by = None if mark in known else self._tombstones.version(signal.sender_id)
            self.matcher.arrive(
                *place,
                signal,
                item.appended_ms,
                judged_by,
                boot=self._context.boot(),
                owner_boot=inbox.owner_boot,
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
            sender_tombstone=self._tombstones.tombstone(signal.sender_id),
        )

    @property
    def _known_epoch(self) -> int:
        return max(self._context.known_epoch(), self._confirmed_epoch)

    async def _confirm_epoch(self, signal: Signal) -> None:
        """Asks the store about an epoch above all that are known. The word of the sender is not
        enough: one order with an absurd epoch would make all later orders stale."""
        if signal.epoch > self._known_epoch:
            (lease,) = await self._parts.urgent.get(keys.LEADER)
            if lease is not None:
                self._confirmed_epoch = max(self._confirmed_epoch, lease.epoch)

    # Judging again, just before a handler acts.

    async def is_refused(self, entry: InboxEntry) -> bool:
        """Whether a consumer must not act on the signal after all; then it is out of the way.
        Repeats until the store answers."""
        while True:
            if await self.retry.until_done(
                lambda: self._refused_late(entry), what="signal_not_judged", about=entry.signal
            ):
                return True
            # The member may have become isolated while the store was asked: then the answer is of
            # a boot that may have ended.
            if not self.retry.isolated:
                return False

    async def _refused_late(self, entry: InboxEntry) -> bool:
        """Asks what was not asked when the signal was read, and what may have changed since."""
        inbox, boot = self.writer.inbox_of(entry), self._context.boot()
        if inbox is None or (inbox.owner is not None and await self.writer.is_given_up(inbox)):
            self.matcher.forget(entry)
            return True
        if await self._refused_now(entry):
            return True
        if entry.tombstone_version is None and entry.boot == boot:
            return False
        known = await self._known(entry.receiver_id, [entry.signal])
        if await self._refused_sender(entry):
            return True
        # A mark of our own is no replay: an earlier try of this very delivery wrote it, and its
        # reply was lost.
        is_own = entry.attempted and await self.writer.is_own_mark(entry)
        if any(known.values()) and not is_own:
            self._count_rejected("replay")
            await self.writer.acknowledge_again(entry)
            self.matcher.done(entry)
            return True
        entry.tombstone_version, entry.boot = None, boot
        return False

    async def _refused_now(self, entry: InboxEntry) -> bool:
        """Whether the signal expired since it was read, or its epoch became stale."""
        signal = entry.signal
        if signal.expires_at <= self._parts.store_time():
            await self._reject_entry(entry, "expired")
        elif acceptance.is_stale(signal.epoch, self._known_epoch):
            await self._reject_entry(entry, "stale_epoch")
        else:
            return False
        return True

    async def _refused_sender(self, entry: InboxEntry) -> bool:
        """Judges by the sender's tombstone as it was just read. Expiry is not judged here: the time
        of the append is passed as the present."""
        at_ms = entry.appended_ms
        reason = self._refusal(entry.signal, entry.receiver_id, at_ms, at_ms)
        if reason is not None:
            await self._reject_entry(entry, reason)
        return reason is not None

    # Rejecting.

    async def _reject_entry(self, entry: InboxEntry, reason: str) -> None:
        signal, inbox = entry.signal, self.writer.inbox_of(entry)
        if inbox is None:
            self.matcher.forget(entry)
            return
        item = Item(
            cursor=entry.cursor,
            id=signal.signal_id,
            value=self._parts.codec.encode(signal),
            appended_ms=entry.appended_ms,
            read_ms=entry.appended_ms,
        )
        await self._reject(inbox, item, reason, signal)
        self.matcher.done(entry)

    async def _reject(
        self, inbox: InboxStream, item: Item, reason: str, signal: Signal | None = None
    ) -> None:
        """Moves an item to quarantine, where operators can inspect it. Without a `signal` its
        bytes were not verified, and the report names no sender: the name may be forged."""
        if self._last_rejected != (inbox.stream, item.cursor):
            self._last_rejected = (inbox.stream, item.cursor)
            self._report_rejected(reason, signal)
        await self.writer.set_aside(inbox, item.id, item.value, item.cursor)

    def _report_rejected(self, reason: str, signal: Signal | None) -> None:
        self._count_rejected(reason)
        sender_id, signal_id = ("", "") if signal is None else (signal.sender_id, signal.signal_id)
        self._parts.bus.emit(
            events.SignalRejected(reason=reason, sender_id=sender_id, signal_id=signal_id)
        )
        if signal is not None and reason == "stale_epoch":
            self._context.stale_order(signal.epoch, self._known_epoch)
            return
        fields: dict[str, object] = {} if signal is None else dict(log_fields(signal))
        if signal is not None and signal.epoch:
            fields["epoch"] = signal.epoch
        self._parts.log.warning("signal_rejected", reason=reason, **fields)

    def _count_rejected(self, reason: str) -> None:
        self.rejected[reason] = self.rejected.get(reason, 0) + 1
        metrics = self._parts.metrics
        metrics.counter(metrics.families.signals_rejected, reason).add()

    async def quarantine(self, entry: InboxEntry, error: Exception) -> None:
        """Sets a signal aside that its handler could not process. It is not acknowledged; the
        sender learns the error. Repeats until the store answers."""
        signal, inbox = entry.signal, self.writer.inbox_of(entry)
        if inbox is not None:
            value = self._parts.codec.encode(signal)
            await self.retry.until_done(
                lambda: self.writer.set_aside(inbox, signal.signal_id, value, entry.cursor),
                what="signal_not_set_aside",
                about=signal,
            )
            text = f"{type(error).__name__}: {error}"
            await self.writer.write_receipt(inbox, signal, text)
        self.matcher.done(entry)

    async def _drop_expired(self) -> None:
        """Removes signals that no consumer took in time, also from an inbox without a reader. They
        would fill the inbox until it accepts no more."""
        for entry in self.matcher.expired(self._parts.store_time()):
            if not self.matcher.take_out(entry):
                continue
            try:
                await self._reject_entry(entry, "expired")
            except BaseException:
                self.matcher.give_back(entry)
                raise
        for inbox in self._streams:
            depth = await self._parts.urgent.depth(inbox.stream)
            if depth.oldest_ms >= keys.SIGNAL_LIFE_S * 1000.0:
                await self._drop_unread(inbox)

    async def _drop_unread(self, inbox: InboxStream) -> None:
        """Removes expired items from the front of an inbox, up to the first that is not."""
        page: Sequence[Item] = ()
        while not page or len(page) == PAGE:
            after = page[-1].cursor if page else ""
            page = await self._parts.urgent.read(inbox.stream, after=after, limit=PAGE)
            for item in page:
                signal = read_signal(self._parts.codec, item.value)
                if isinstance(signal, str):
                    await self._reject(inbox, item, signal)
                elif signal.expires_at > item.read_ms / 1000.0:
                    return
                elif not self.matcher.is_pending(signal.signal_id):
                    await self._reject(inbox, item, "expired", signal)
            if not page:
                return

    # Delivering.

    async def deliver(
        self, entry: InboxEntry, writes: Sequence[Write] = (), refusals_max: float = math.inf
    ) -> bool:
        """`deliver_once`, repeated until the store answers."""
        return await self.retry.until_done(
            lambda: self.deliver_once(entry, writes),
            what="signal_not_delivered",
            about=entry.signal,
            refusals_max=refusals_max,
        )

    async def deliver_once(self, entry: InboxEntry, writes: Sequence[Write] = ()) -> bool:
        """Marks, acknowledges and removes the signal in one batch, together with the writes of its
        consumer. Returns False if its effect must not count: it was delivered before, it expired,
        or the owner of the inbox came back."""
        inbox = self.writer.inbox_of(entry)
        if inbox is None:
            self.matcher.forget(entry)
            return False
        # If an earlier try was begun, its mark may be in the store. Then this signal is delivered,
        # and nothing that happened since may refuse it; the same holds once a handler acted on it.
        was_attempted = entry.attempted
        if not entry.handled and not was_attempted and await self._refused_now(entry):
            return False
        effects = tuple(writes)
        if effects and not self._parts.patient.capabilities.transactions:
            # Without transactions the effects go before the mark: a crash in between repeats the
            # handler, whose writes are created if absent. The other order would lose them.
            await self.writer.write_effects(inbox, effects)
            effects = ()
        entry.attempted = True
        try:
            checks = (*self.writer.checks(inbox), *self._tombstone_check(entry))
            await self._parts.patient.write(*checks, *effects, *self.writer.marks(entry))
        except VersionConflict as conflict:
            # A conflict is an answer: this try wrote nothing.
            entry.attempted = was_attempted
            return await self._after_conflict(entry, writes, inbox, conflict)
        self.matcher.done(entry)
        return True

    async def _after_conflict(
        self,
        entry: InboxEntry,
        writes: Sequence[Write],
        inbox: InboxStream,
        conflict: VersionConflict,
    ) -> bool:
        """Finds out which of the checks failed. Tries again if what it guards still holds."""
        self.writer.check_fenced(conflict)
        sender_id = entry.signal.sender_id
        if inbox.owner is not None and conflict.key == inbox.owner.key:
            await self.writer.is_given_up(inbox)
            return await self.deliver_once(entry, writes)
        if entry.tombstone_version is not None and conflict.key == keys.tombstone(sender_id):
            await self._known(entry.receiver_id, [entry.signal])
            entry.tombstone_version = self._tombstones.version(sender_id)
            if await self._refused_sender(entry):
                return False
            return await self.deliver_once(entry, writes)
        if not await self.writer.is_marked(entry, conflict):
            # An effect of the handler conflicts: the handler must read again.
            raise conflict
        is_first = entry.attempted and await self.writer.is_own_mark(entry)
        await self.writer.acknowledge_again(entry)
        if not is_first:
            self._count_rejected("replay")
        self.matcher.done(entry)
        return is_first

    def _tombstone_check(self, entry: InboxEntry) -> tuple[Check, ...]:
        """That the sender is as dead or alive as when the signal was judged."""
        if entry.tombstone_version is None:
            return ()
        return (Check(keys.tombstone(entry.signal.sender_id), entry.tombstone_version),)
