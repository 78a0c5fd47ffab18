"""The bounded queue of messages to one destination, and which of them leaves next.

    level       fill of the queue   effect
    HEALTHY     below 85 %
    PAUSED      from 85 %           the channel stops reading: there is no room for answers
    OVERFLOW    from 95 %           new TELEMETRY replaces the oldest

A queue that is full of messages which must not be dropped refuses new ones to their sender.
The queue leaves a level 5 % below the fill at which it entered it, so that it does not flap.

CONTROL has a lane and a bound of its own. When that is full the channel closes its link,
because a peer derives all of its CONTROL again after a reconnect. The order within a class is
kept; between classes a weighted round gives each its turn. The queue drops nothing but
TELEMETRY. Pure: no clock, no I/O.
"""

from __future__ import annotations

from collections import OrderedDict
from enum import Enum, IntEnum
from typing import Any

from squall.cluster.wire.header import CLASSES, MessageClass
from squall.cluster.wire.limits import WireLimits
from squall.runtime.invariants import invariant


class QueueLevel(IntEnum):
    HEALTHY = 0
    PAUSED = 1
    OVERFLOW = 2


_STARTS = ((0.95, QueueLevel.OVERFLOW), (0.85, QueueLevel.PAUSED))
_HYSTERESIS = 0.05
# Messages of each class in one round, CONTROL first. Every class gets a turn, so TELEMETRY
# is late under load but does not starve.
_TURNS = (64, 16, 8, 4)


class PutResult(Enum):
    QUEUED = "queued"
    REFUSED = "refused"
    CONTROL_FULL = "control full"


class QueuedMessage:
    """A message that waits for its link. `deadline` is a reading of the local clock."""

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
    """Queues the messages of one channel and gives them out by class."""

    def __init__(self, limits: WireLimits) -> None:
        self._limits = limits
        self._lanes: tuple[OrderedDict[int, QueuedMessage], ...] = tuple(
            OrderedDict() for _ in CLASSES
        )
        self._sizes = [0] * len(CLASSES)
        self._numbers = 0
        self._turn = 0
        self._turn_left = _TURNS[0]
        self.level = QueueLevel.HEALTHY
        # Messages of all classes.
        self.waiting = 0
        # TELEMETRY that a newer message replaced.
        self.dropped = 0

    def put(self, queued: QueuedMessage, *, certain: bool = False) -> PutResult:
        """`certain` is for answers: the admitted requests already bound their number."""
        lane_number = queued.message_class
        if lane_number == MessageClass.CONTROL:
            if not certain and self._control_full(len(queued.body)):
                return PutResult.CONTROL_FULL
        else:
            telemetry = self._lanes[MessageClass.TELEMETRY]
            if lane_number == MessageClass.TELEMETRY and self.level >= QueueLevel.OVERFLOW:
                self._drop_oldest_telemetry()
            while not certain and self._full(len(queued.body)):
                if not telemetry:
                    return PutResult.REFUSED
                self._drop_oldest_telemetry()
        self._numbers += 1
        queued.number = self._numbers
        self._lanes[lane_number][queued.number] = queued
        self._sizes[lane_number] += len(queued.body)
        self.waiting += 1
        self._judge()
        return PutResult.QUEUED

    def take(self) -> QueuedMessage | None:
        """The next message to send."""
        if not self.waiting:
            return None
        for _ in range(len(_TURNS) + 1):
            lane = self._lanes[self._turn]
            if lane and self._turn_left:
                self._turn_left -= 1
                _, queued = lane.popitem(last=False)
                self._removed(queued)
                return queued
            self._turn = (self._turn + 1) % len(_TURNS)
            self._turn_left = _TURNS[self._turn]
        invariant(False, "a message waits and no lane holds it")
        return None

    def forget(self, queued: QueuedMessage) -> bool:
        """Removes a message that still waits; False if it has left."""
        if self._lanes[queued.message_class].pop(queued.number, None) is None:
            return False
        self._removed(queued)
        return True

    def clear(self) -> list[QueuedMessage]:
        """Removes and returns everything, ordered by class: the link is lost."""
        left = [queued for lane in self._lanes for queued in lane.values()]
        for queued in left:
            self.forget(queued)
        return left

    def _removed(self, queued: QueuedMessage) -> None:
        self._sizes[queued.message_class] -= len(queued.body)
        self.waiting -= 1
        self._judge()

    def _drop_oldest_telemetry(self) -> None:
        lane = self._lanes[MessageClass.TELEMETRY]
        if lane:
            _, queued = lane.popitem(last=False)
            self.dropped += 1
            self._removed(queued)

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
        # An empty queue takes a message of any size, or that message could never be sent.
        return messages >= most or (messages > 0 and held + size > limits.queue_bytes)

    def _judge(self) -> None:
        messages, held = self._held()
        limits = self._limits
        fill = max(messages / limits.queue_messages, held / limits.queue_bytes)
        level = _level_at(fill)
        if level < self.level:
            level = min(self.level, _level_at(fill + _HYSTERESIS))
        self.level = level


def _level_at(fill: float) -> QueueLevel:
    for start, level in _STARTS:
        if fill >= start:
            return level
    return QueueLevel.HEALTHY
