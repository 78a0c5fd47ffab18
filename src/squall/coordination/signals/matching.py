"""Finds the consumer of each signal. Pure: no store, no clock.

Signals wait in the order of their arrival until a consumer takes them: a wait whose filter they
match, or a handler of their type. A signal that no consumer wants stays, here and in the store,
and a wait that begins later still finds it. Each signal is given to one consumer. A consumer that
gives it back puts it in its old place.

A signal whose delivered batch was begun is no longer given to a handler: that batch may have taken
effect, and the handler's writes could not be part of it any more.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass

from squall.coordination.records.schemas import Signal
from squall.coordination.stores.interface import Condition

HEARTBEAT = "heartbeat"
# Ids of delivered signals. A copy that was read from the store just before its original was
# delivered is recognised by them without asking the store.
REMEMBERED = 10_000


@dataclass(slots=True, eq=False)
class InboxEntry:
    """A signal that was verified and is not delivered yet.

    It is in exactly one place: waiting in the matcher, or in the hands of one consumer."""

    number: int
    """Its place in the order of arrival; never changes, also when it is given back."""
    stream: str
    cursor: str
    """Of the item in the stream; a copy of the signal has another one."""
    receiver_id: str
    """The owner of the inbox: this member, or one whose inbox it adopted."""
    signal: Signal
    appended_ms: int
    handled: bool = False
    """A handler has acted on it: only the delivered batch is left, and no other consumer may get
    it."""
    attempted: bool = False
    """A delivered batch was begun and its outcome is not known: its mark may be in the store."""
    tombstone_version: Condition | None = None
    """None once the store said that the signal was not delivered before and its sender may speak.
    Otherwise the tombstone version by which the sender was judged; then only a consumer that has
    the signal delivered first may act on it, because that batch checks both."""
    boot: int = 0
    """The receiver's boot when the store was asked. After another boot the answer is void: in
    between, another process may have delivered the signal."""
    owner_boot: int = 0
    """The ended boot of the owner of an adopted inbox; 0 for the member's own inbox."""


@dataclass(frozen=True, slots=True, eq=False)
class SignalFilter:
    """Which signals a consumer wants. Empty `types` or `senders` and a `correlation_id` of None
    match everything, except heartbeats, which only a consumer that names their type gets."""

    correlation_id: str | None = None
    types: Collection[str] = ()
    senders: Collection[str] = ()

    def matches(self, signal: Signal) -> bool:
        if signal.type == HEARTBEAT and HEARTBEAT not in self.types:
            return False
        return (
            (self.correlation_id is None or signal.correlation_id == self.correlation_id)
            and (not self.types or signal.type in self.types)
            and (not self.senders or signal.sender_id in self.senders)
        )


@dataclass(frozen=True, slots=True, eq=False)
class Consumer:
    """`once` leaves with the first signal. `delivers_first` has it delivered before it acts."""

    wanted: SignalFilter
    once: bool
    delivers_first: bool


class SignalMatcher:
    """The waiting signals and the consumers of one member. Earlier consumers are served first."""

    def __init__(self) -> None:
        self._waiting: dict[int, InboxEntry] = {}
        # Signal id to cursor, for signals that wait or are with a consumer.
        self._pending: dict[str, str] = {}
        self._done: OrderedDict[str, None] = OrderedDict()
        self._consumers: dict[int, Consumer] = {}
        self._next_entry = 0
        self._next_consumer = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def is_pending(self, signal_id: str) -> bool:
        """Whether it waits here or is with a consumer."""
        return signal_id in self._pending

    def is_at(self, signal_id: str, cursor: str) -> bool:
        """Whether it is pending and this is the very same item, read again, and not a copy."""
        return self._pending.get(signal_id) == cursor

    def is_done(self, signal_id: str) -> bool:
        """Whether this process delivered it recently. The store remembers for longer."""
        return signal_id in self._done

    def arrive(
        self,
        stream: str,
        cursor: str,
        receiver_id: str,
        signal: Signal,
        appended_ms: int,
        tombstone_version: Condition | None = None,
        *,
        boot: int = 0,
        owner_boot: int = 0,
    ) -> None:
        self._pending[signal.signal_id] = cursor
        number = self._next_entry
        self._next_entry += 1
        self._waiting[number] = InboxEntry(
            number,
            stream,
            cursor,
            receiver_id,
            signal,
            appended_ms,
            tombstone_version=tombstone_version,
            boot=boot,
            owner_boot=owner_boot,
        )

    def add_consumer(
        self, wanted: SignalFilter, *, once: bool, delivers_first: bool = False
    ) -> int:
        number = self._next_consumer
        self._next_consumer += 1
        self._consumers[number] = Consumer(wanted, once, delivers_first)
        return number

    def remove_consumer(self, number: int) -> None:
        self._consumers.pop(number, None)

    @property
    def has_consumers(self) -> bool:
        return bool(self._consumers)

    def is_taken(self, entry: InboxEntry) -> bool:
        """Whether a consumer has it and is not done with it."""
        is_pending = self._pending.get(entry.signal.signal_id) == entry.cursor
        return is_pending and entry.number not in self._waiting

    def is_delivered_first(self, signal: Signal) -> bool:
        """Whether the consumer that would get the signal now has it delivered before it acts."""
        number = self._consumer_of(signal)
        return number is not None and self._consumers[number].delivers_first

    def _consumer_of(self, signal: Signal, *, attempted: bool = False) -> int | None:
        for number, consumer in self._consumers.items():
            if consumer.wanted.matches(signal) and (consumer.once or not attempted):
                return number
        return None

    def match(self) -> list[tuple[int, InboxEntry]]:
        """Assigns waiting signals to consumers. A consumer for one signal leaves with it."""
        given: list[tuple[int, InboxEntry]] = []
        for number in sorted(self._waiting):
            entry = self._waiting[number]
            consumer = self._consumer_of(entry.signal, attempted=entry.attempted)
            if consumer is None:
                continue
            del self._waiting[number]
            if self._consumers[consumer].once:
                del self._consumers[consumer]
            given.append((consumer, entry))
        return given

    def give_back(self, entry: InboxEntry) -> None:
        """Puts a signal back in its place, also one that was delivered: the caller for whom it was
        delivered never saw it."""
        self._pending[entry.signal.signal_id] = entry.cursor
        self._done.pop(entry.signal.signal_id, None)
        self._waiting[entry.number] = entry

    def expired(self, store_now: float) -> list[InboxEntry]:
        """Waiting signals that no consumer took in time."""
        return [each for each in self._waiting.values() if each.signal.expires_at <= store_now]

    def take_out(self, entry: InboxEntry) -> bool:
        """Keeps it from all consumers. Returns False if one has it already."""
        return self._waiting.pop(entry.number, None) is not None

    def forget_inbox(self, receiver_id: str) -> None:
        """Forgets what was read from an inbox that is no longer read."""
        for entry in list(self._waiting.values()):
            if entry.receiver_id == receiver_id:
                self.forget(entry)

    def forget(self, entry: InboxEntry) -> None:
        """The signal belongs to another process now; the store keeps it."""
        self._waiting.pop(entry.number, None)
        self._pending.pop(entry.signal.signal_id, None)

    def done(self, entry: InboxEntry) -> None:
        """Delivered, or refused for good."""
        self._pending.pop(entry.signal.signal_id, None)
        self._done[entry.signal.signal_id] = None
        if len(self._done) > REMEMBERED:
            self._done.popitem(last=False)
