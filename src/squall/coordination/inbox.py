"""Which signal is for whom. Pure.

Signals are kept in the order of their arrival until somebody takes them: a wait whose
filters they match, or a handler of their type. A signal that nobody wants stays, in the
store too, and a wait that begins later still finds it. One signal is given to one taker; who
gives it back puts it where it was.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass

from squall.coordination.records import Signal
from squall.coordination.stores.interface import Write

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
    """Its handler has run: only the delivered step is left."""
    effects: tuple[Write, ...] = ()
    """What the handler wants to be written with that step."""
    attempted: bool = False
    """A delivered step was begun; its own record may be there."""


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


class Inbox:
    """Of one member. Takers that came first are served first."""

    def __init__(self) -> None:
        self._waiting: dict[int, Entry] = {}
        self._pending: set[str] = set()
        self._done: OrderedDict[str, None] = OrderedDict()
        self._takers: dict[int, tuple[Wanted, bool]] = {}
        self._next_entry = 0
        self._next_taker = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def is_pending(self, signal_id: str) -> bool:
        """It is here, or was taken and is on its way."""
        return signal_id in self._pending

    def is_done(self, signal_id: str) -> bool:
        """This process delivered it, not long ago; the store knows for longer."""
        return signal_id in self._done

    def arrive(
        self, stream: str, cursor: str, receiver_id: str, signal: Signal, appended_ms: int
    ) -> None:
        self._pending.add(signal.signal_id)
        number = self._next_entry
        self._next_entry += 1
        entry = Entry(number, stream, cursor, receiver_id, signal, appended_ms)
        self._waiting[number] = entry

    def add_taker(self, wanted: Wanted, *, once: bool) -> int:
        number = self._next_taker
        self._next_taker += 1
        self._takers[number] = (wanted, once)
        return number

    def remove_taker(self, number: int) -> None:
        self._takers.pop(number, None)

    @property
    def wanted(self) -> bool:
        """Whether anybody would take anything."""
        return bool(self._takers)

    def match(self) -> list[tuple[int, Entry]]:
        """Who gets what, now. One-time takers leave with what they got."""
        given: list[tuple[int, Entry]] = []
        for number in sorted(self._waiting):
            entry = self._waiting[number]
            taker = next(
                (
                    each
                    for each, (wanted, _) in self._takers.items()
                    if wanted.matches(entry.signal)
                ),
                None,
            )
            if taker is None:
                continue
            del self._waiting[number]
            if self._takers[taker][1]:
                del self._takers[taker]
            given.append((taker, entry))
        return given

    def give_back(self, entry: Entry) -> None:
        self._waiting[entry.number] = entry

    def done(self, entry: Entry) -> None:
        """Delivered, or refused for good."""
        self._pending.discard(entry.signal.signal_id)
        self._done[entry.signal.signal_id] = None
        if len(self._done) > REMEMBERED:
            self._done.popitem(last=False)
