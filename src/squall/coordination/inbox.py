"""Which signal is for whom. Pure.

Signals are kept in the order of their arrival until somebody takes them: a wait whose
filters they match, or a handler of their type. A signal that nobody wants stays, in the
store too, and a wait that begins later still finds it. One signal is given to one taker; who
gives it back puts it where it was.

A signal whose delivered step was begun is not given to a handler: what that wants to be written
with the step would come too late.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass

from squall.coordination.records import Signal
from squall.coordination.stores.interface import Condition

HEARTBEAT = "heartbeat"
REMEMBERED = 10_000
"""Ids of delivered signals; a copy that was read just before its original was delivered is
recognised by them."""


@dataclass(slots=True, eq=False)
class Entry:
    """A signal that was verified and is not delivered yet."""

    number: int
    """Its place in the order of arrival."""
    stream: str
    cursor: str
    receiver_id: str
    signal: Signal
    appended_ms: int
    handled: bool = False
    """Its taker has acted on it: only the delivered step is left."""
    attempted: bool = False
    """A delivered step was begun; its own record may be there."""
    grave: Condition | None = None
    """Unless None, nobody has looked whether it was delivered before, and its sender was judged
    by the tombstone of this version. Only a taker that has it delivered first may act on it."""
    incarnation: int = 0
    """Of the receiver when the store was asked; what a later one knows may be more."""
    owner_incarnation: int = 0
    """Of an adopted inbox."""


@dataclass(frozen=True, slots=True, eq=False)
class Wanted:
    """What one taker takes. An empty filter takes all; `correlation_id` None does not care."""

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
class Taker:
    wanted: Wanted
    once: bool
    delivers_first: bool


class Inbox:
    """Of one member. Takers that came first are served first."""

    def __init__(self) -> None:
        self._waiting: dict[int, Entry] = {}
        self._pending: dict[str, str] = {}
        """Id to cursor."""
        self._done: OrderedDict[str, None] = OrderedDict()
        self._takers: dict[int, Taker] = {}
        self._next_entry = 0
        self._next_taker = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def is_pending(self, signal_id: str) -> bool:
        """It is here, or was taken and is on its way."""
        return signal_id in self._pending

    def is_at(self, signal_id: str, cursor: str) -> bool:
        """It is pending, and this is not a copy but the very same item, read again."""
        return self._pending.get(signal_id) == cursor

    def is_done(self, signal_id: str) -> bool:
        """This process delivered it, not long ago; the store knows for longer."""
        return signal_id in self._done

    def arrive(
        self,
        stream: str,
        cursor: str,
        receiver_id: str,
        signal: Signal,
        appended_ms: int,
        grave: Condition | None = None,
        *,
        incarnation: int = 0,
        owner_incarnation: int = 0,
    ) -> None:
        self._pending[signal.signal_id] = cursor
        number = self._next_entry
        self._next_entry += 1
        self._waiting[number] = Entry(
            number,
            stream,
            cursor,
            receiver_id,
            signal,
            appended_ms,
            grave=grave,
            incarnation=incarnation,
            owner_incarnation=owner_incarnation,
        )

    def add_taker(self, wanted: Wanted, *, once: bool, delivers_first: bool = False) -> int:
        """With `delivers_first` it does nothing with a signal before that was delivered."""
        number = self._next_taker
        self._next_taker += 1
        self._takers[number] = Taker(wanted, once, delivers_first)
        return number

    def remove_taker(self, number: int) -> None:
        self._takers.pop(number, None)

    @property
    def wanted(self) -> bool:
        """Whether anybody would take anything."""
        return bool(self._takers)

    def is_delivered_first(self, signal: Signal) -> bool:
        """Whether its taker, as things are now, is one that has it delivered before it acts."""
        number = self._taker_of(signal)
        return number is not None and self._takers[number].delivers_first

    def _taker_of(self, signal: Signal, *, attempted: bool = False) -> int | None:
        for number, taker in self._takers.items():
            if taker.wanted.matches(signal) and (taker.once or not attempted):
                return number
        return None

    def match(self) -> list[tuple[int, Entry]]:
        """Who gets what, now. One-time takers leave with what they got."""
        given: list[tuple[int, Entry]] = []
        for number in sorted(self._waiting):
            entry = self._waiting[number]
            taker = self._taker_of(entry.signal, attempted=entry.attempted)
            if taker is None:
                continue
            del self._waiting[number]
            if self._takers[taker].once:
                del self._takers[taker]
            given.append((taker, entry))
        return given

    def give_back(self, entry: Entry) -> None:
        """Also one that was delivered: who had it could do nothing with it."""
        self._pending[entry.signal.signal_id] = entry.cursor
        self._done.pop(entry.signal.signal_id, None)
        self._waiting[entry.number] = entry

    def expired(self, store_now: float) -> list[Entry]:
        """Those that nobody took in their time."""
        return [each for each in self._waiting.values() if each.signal.expires_at <= store_now]

    def take_out(self, entry: Entry) -> bool:
        """Nobody gets it now. False if somebody has it."""
        return self._waiting.pop(entry.number, None) is not None

    def forget_source(self, receiver_id: str) -> None:
        """What was read from an inbox that is not read any more."""
        for entry in list(self._waiting.values()):
            if entry.receiver_id == receiver_id:
                self.forget(entry)

    def forget(self, entry: Entry) -> None:
        """It is somebody else's."""
        self._waiting.pop(entry.number, None)
        self._pending.pop(entry.signal.signal_id, None)

    def done(self, entry: Entry) -> None:
        """Delivered, or refused for good."""
        self._pending.pop(entry.signal.signal_id, None)
        self._done[entry.signal.signal_id] = None
        if len(self._done) > REMEMBERED:
            self._done.popitem(last=False)
