"""Writes to inboxes: delivered marks, acknowledgments, removals and quarantine.

Every write carries up to two checks. The first fails when this boot of the member was declared
dead: another process may have its place, and what a dead boot acknowledges would be lost. The
second fails when the owner of an adopted inbox came back: its signals are its own again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from squall.coordination.errors import MemberFencedError, StoreError, VersionConflict
from squall.coordination.member_parts import MemberParts
from squall.coordination.records import keys
from squall.coordination.records.schemas import Delivered, Signal, SignalAck, SignalReceipt
from squall.coordination.signals.inbox_streams import InboxStream, InboxStreams
from squall.coordination.signals.matching import InboxEntry, SignalMatcher
from squall.coordination.signals.member_context import MemberContext
from squall.coordination.stores.guarded_store import GuardedStore
from squall.coordination.stores.interface import ABSENT, ANY, Check, Put, Remove, Write

TOKEN_BYTES = 12
# Of the text of an error in a receipt.
ERROR_MAX = 200


class InboxWriter:
    """Writes to this member's inbox and to those that it adopted."""

    def __init__(
        self,
        parts: MemberParts,
        context: MemberContext,
        streams: InboxStreams,
        matcher: SignalMatcher,
    ) -> None:
        self._parts = parts
        self._context = context
        self._streams = streams
        self._matcher = matcher
        # Names this process in every delivered mark, through all its boots: after a lost reply it
        # distinguishes our own mark from that of another process which read the same inbox.
        self._own_mark = f"{parts.member_id}.{parts.runtime.entropy(TOKEN_BYTES).hex()}"

    def inbox_of(self, entry: InboxEntry) -> InboxStream | None:
        """None if the owner of the inbox came back since the entry was read."""
        return self._streams.find(entry.receiver_id, entry.owner_boot)

    async def is_given_up(self, inbox: InboxStream) -> bool:
        """Asks the store whether the owner of an adopted inbox came back. If so, drops what was
        read from it."""
        is_given_up = await self._streams.is_given_up(inbox)
        if is_given_up:
            self._matcher.forget_inbox(inbox.receiver_id)
        return is_given_up

    def checks(self, inbox: InboxStream) -> tuple[Check, ...]:
        return tuple(each for each in (self._context.alive(), inbox.owner) if each is not None)

    def check_fenced(self, conflict: VersionConflict) -> None:
        """Raises `MemberFencedError` if the conflict says that this boot was declared dead."""
        if conflict.key == keys.member(self._parts.member_id):
            raise MemberFencedError(self._parts.member_id, self._context.boot()) from conflict

    async def write(self, inbox: InboxStream, store: GuardedStore, *writes: Write) -> None:
        """Writes nothing if the owner of the inbox came back."""
        try:
            await store.write(*self.checks(inbox), *writes)
        except VersionConflict as conflict:
            self.check_fenced(conflict)
            if inbox.owner is None or conflict.key != inbox.owner.key:
                raise
            # The registration of the owner changed. If it is still gone, `is_given_up` has bound
            # the inbox to the new version, and the write is tried again.
            if not await self.is_given_up(inbox):
                await self.write(inbox, store, *writes)

    async def write_effects(self, inbox: InboxStream, effects: Sequence[Write]) -> None:
        """The writes of a handler on a store without transactions, before the mark. Each is
        created if absent, so a conflict means that an earlier try has written it."""
        for effect in effects:
            try:
                await self._parts.patient.write(*self.checks(inbox), effect)
            except VersionConflict as conflict:
                self.check_fenced(conflict)
                if inbox.owner is not None and conflict.key == inbox.owner.key:
                    return

    async def set_aside(self, inbox: InboxStream, name: str, value: bytes, cursor: str) -> None:
        """Moves an item from the inbox to quarantine."""
        key = keys.quarantine(inbox.receiver_id, name)
        put = Put(key, value, expect=ANY, ttl_s=keys.QUARANTINE_TTL_S)
        await self.write(inbox, self._parts.urgent, put, Remove(inbox.stream, cursor))

    async def acknowledge_again(self, entry: InboxEntry) -> None:
        """Acknowledges and removes a copy of a signal that was delivered before."""
        inbox = self.inbox_of(entry)
        if inbox is not None:
            await self.write(inbox, self._parts.patient, *self._acknowledgment(entry))

    async def write_receipt(self, inbox: InboxStream, signal: Signal, error: str = "") -> None:
        """Tells the sender that a consumer has the signal, or failed with it. If the acknowledgment
        was quicker, or the store does not answer, there is nothing to do: the sender has a time
        limit of its own."""
        receipt = SignalReceipt(
            signal_id=signal.signal_id,
            receiver_id=inbox.receiver_id,
            sender_id=signal.sender_id,
            taken_at=self._parts.store_time(),
            error=error[:ERROR_MAX],
        )
        put = Put(
            keys.ack(signal.sender_id, signal.signal_id),
            self._parts.codec.encode(receipt),
            expect=ANY if error else ABSENT,
            ttl_s=keys.ACK_TTL_S,
        )
        with contextlib.suppress(VersionConflict, MemberFencedError, StoreError):
            await self.write(inbox, self._parts.urgent, put)

    def marks(self, entry: InboxEntry) -> tuple[Write, ...]:
        """The delivered mark, the acknowledgment and the removal. The mark stands first: it is
        created if absent, and thereby decides, also on stores that write a batch in order."""
        record = Delivered(
            signal_id=entry.signal.signal_id,
            receiver_id=entry.receiver_id,
            outcome=self._own_mark,
            delivered_at=self._parts.store_time(),
        )
        mark = Put(
            keys.idempotency(entry.receiver_id, entry.signal.signal_id),
            self._parts.codec.encode(record),
            expect=ABSENT,
            ttl_s=keys.IDEMPOTENCY_TTL_S,
            silent=True,
        )
        return (mark, *self._acknowledgment(entry))

    def _acknowledgment(self, entry: InboxEntry) -> tuple[Write, ...]:
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

    async def is_marked(self, entry: InboxEntry, conflict: VersionConflict) -> bool:
        """Whether the signal was delivered before. The conflict may also be about an effect of the
        handler: the batch that wrote it, and the mark with it, took effect without a reply."""
        mark = keys.idempotency(entry.receiver_id, entry.signal.signal_id)
        return conflict.key == mark or (await self._parts.patient.get(mark))[0] is not None

    async def is_own_mark(self, entry: InboxEntry) -> bool:
        """Whether this process wrote the delivered mark."""
        key = keys.idempotency(entry.receiver_id, entry.signal.signal_id)
        (found,) = await self._parts.patient.get(key)
        record = None if found is None else self._parts.codec.read(Delivered, found.value)
        return record is not None and record.outcome == self._own_mark
