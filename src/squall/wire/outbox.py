"""The bounded queue of one destination: what waits, what goes first, what is given up.

    level       fill of the queue      hint     what happens
    HEALTHY     below 70 %             none
    THROTTLED   from 70 %              50 ms    the sender slows down
    BATCHING    from 85 %              200 ms   the sender sends batches only
    OVERFLOW    from 95 %              300 ms   new TELEMETRY replaces the oldest
    SATURATED   full of what must      500 ms   new messages are refused to their sender
                not be dropped

A level is left 5 % below the fill at which it begins. CONTROL has a lane and a bound of
its own: when that is full its link is closed, because all of it is re-derived from state.
Within a class the order is kept; between classes a weighted round gives each its turn.
Nothing but TELEMETRY is ever dropped in here. Pure: no clock, no I/O.
"""

from __future__ import annotations

from collections import OrderedDict
from enum import Enum, IntEnum
from typing import Any, NamedTuple

from squall.runtime.invariants import invariant
from squall.wire.header import CLASSES, MessageClass
from squall.wire.limits import WireLimits


class Level(IntEnum):
    HEALTHY = 0
    THROTTLED = 1
    BATCHING = 2
    OVERFLOW = 3
    SATURATED = 4


class Pressure(NamedTuple):
    """What a sender learns: how full its destination is, how long to wait if it can."""

    level: Level
    delay_s: float


class QueueStats(NamedTuple):
    """One destination's queue, for metrics and for people."""

    waiting: int
    waiting_bytes: int
    level: Level
    queued: int
    refused: int
    dropped: int


PRESSURES = tuple(
    Pressure(level, delay_s)
    for level, delay_s in zip(Level, (0.0, 0.05, 0.2, 0.3, 0.5), strict=True)
)
HEALTHY = PRESSURES[0]

_STARTS = ((0.95, Level.OVERFLOW), (0.85, Level.BATCHING), (0.70, Level.THROTTLED))
_HYSTERESIS = 0.05
_TURNS = (64, 16, 8, 4)
"""Messages of each class in one round, CONTROL first."""


class Outcome(Enum):
    QUEUED = "queued"
    REFUSED = "refused"
    CONTROL_FULL = "control full"


class Entry:
    """One message that waits. `deadline` is a reading of the local clock."""

    __slots__ = (
        "body",
        "correlation",
        "deadline",
        "kind",
        "message",
        "message_class",
        "number",
        "type_number",
    )

    def __init__(
        self,
        message_class: MessageClass,
        kind: int,
        type_number: int,
        correlation: int,
        deadline: float,
        body: bytes,
        message: Any = None,
    ) -> None:
        self.message_class = message_class
        self.kind = kind
        self.type_number = type_number
        self.correlation = correlation
        self.deadline = deadline
        self.body = body
        self.message = message
        self.number = 0


class Outbox:
    def __init__(self, limits: WireLimits) -> None:
        self._limits = limits
        self._lanes: tuple[OrderedDict[int, Entry], ...] = tuple(OrderedDict() for _ in CLASSES)
        self._sizes = [0] * len(CLASSES)
        self._level = Level.HEALTHY
        self._numbers = 0
        self._refused = 0
        self._turn = 0
        self._turn_left = _TURNS[0]
        self.waiting = 0
        """Messages of all classes."""
        self.dropped = 0
        """TELEMETRY that gave way to something newer."""

    @property
    def pressure(self) -> Pressure:
        return PRESSURES[self._level]

    @property
    def stats(self) -> QueueStats:
        return QueueStats(
            self.waiting,
            sum(self._sizes),
            self._level,
            self._numbers,
            self._refused,
            self.dropped,
        )

    def put(self, entry: Entry, *, certain: bool = False) -> Outcome:
        """`certain` is for answers: they are bounded by the requests that were admitted."""
        lane_number = entry.message_class
        if lane_number == MessageClass.CONTROL:
            if not certain and self._control_full(len(entry.body)):
                self._refused += 1
                return Outcome.CONTROL_FULL
        else:
            telemetry = self._lanes[MessageClass.TELEMETRY]
            if lane_number == MessageClass.TELEMETRY and self._level >= Level.OVERFLOW:
                self._drop_oldest_telemetry()
            while not certain and self._full(len(entry.body)):
                if not telemetry:
                    self._level = Level.SATURATED
                    self._refused += 1
                    return Outcome.REFUSED
                self._drop_oldest_telemetry()
        self._numbers += 1
        entry.number = self._numbers
        self._lanes[lane_number][entry.number] = entry
        self._sizes[lane_number] += len(entry.body)
        self.waiting += 1
        self._judge()
        return Outcome.QUEUED

    def take(self) -> Entry | None:
        """The next to send."""
        if not self.waiting:
            return None
        for _ in range(len(_TURNS) + 1):
            lane = self._lanes[self._turn]
            if lane and self._turn_left:
                self._turn_left -= 1
                _, entry = lane.popitem(last=False)
                self._removed(entry)
                return entry
            self._turn = (self._turn + 1) % len(_TURNS)
            self._turn_left = _TURNS[self._turn]
        invariant(False, "a message waits and no lane holds it")
        return None

    def forget(self, entry: Entry) -> bool:
        """Takes back one that still waits; False if it has left."""
        if self._lanes[entry.message_class].pop(entry.number, None) is None:
            return False
        self._removed(entry)
        return True

    def clear(self) -> list[Entry]:
        """All that waits, in the order of classes: the link is lost."""
        left = [entry for lane in self._lanes for entry in lane.values()]
        for entry in left:
            self.forget(entry)
        return left

    def _removed(self, entry: Entry) -> None:
        self._sizes[entry.message_class] -= len(entry.body)
        self.waiting -= 1
        self._judge()

    def _drop_oldest_telemetry(self) -> None:
        lane = self._lanes[MessageClass.TELEMETRY]
        if lane:
            _, entry = lane.popitem(last=False)
            self.dropped += 1
            self._removed(entry)

    def _control_full(self, size: int) -> bool:
        limits = self._limits
        return (
            len(self._lanes[MessageClass.CONTROL]) >= limits.control_queue_messages
            or self._sizes[MessageClass.CONTROL] + size > limits.control_queue_bytes
        )

    def _held(self) -> tuple[int, int]:
        """Messages and bytes of the classes that share the queue."""
        control = MessageClass.CONTROL
        messages = self.waiting - len(self._lanes[control])
        return messages, sum(self._sizes) - self._sizes[control]

    def _full(self, size: int) -> bool:
        messages, held = self._held()
        limits = self._limits
        most = limits.queue_messages + limits.queue_overflow_messages
        return messages >= most or (messages > 0 and held + size > limits.queue_bytes)

    def _judge(self) -> None:
        messages, held = self._held()
        limits = self._limits
        fill = max(messages / limits.queue_messages, held / limits.queue_bytes)
        level = _level_at(fill)
        if level < self._level:
            level = min(self._level, _level_at(fill + _HYSTERESIS))
            most = 1 + limits.queue_overflow_messages / limits.queue_messages
            if self._level is Level.SATURATED and fill >= most - _HYSTERESIS:
                level = Level.SATURATED
        self._level = level


def _level_at(fill: float) -> Level:
    for start, level in _STARTS:
        if fill >= start:
            return level
    return Level.HEALTHY
