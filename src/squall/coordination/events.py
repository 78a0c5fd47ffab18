"""The events of a member, and the bus that brings them to handlers and async iterators.

Each listener has its own queue of at most `QUEUE_MAX` events. A slow listener loses its oldest
events, which are counted, and never slows the protocol or another listener. Handlers run in their
own tasks, one event at a time. A handler that raises is reported and gets the next event; emitting
never raises.

The Python names `member_id` and `boot` stand as `coordinator_id` or `worker_id` and `incarnation`
in JSON, which is older.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, ClassVar

import msgspec

from squall.coordination.errors import NotRunningError
from squall.coordination.value_rules import wrong
from squall.runtime.tasks import TaskGroup, TaskToken

QUEUE_MAX = 1000


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """What every event has: its namespace, the wall-clock time and the member that emitted it."""

    name: ClassVar[str] = ""
    namespace: str = ""
    timestamp: float = 0.0
    observer_id: str = ""

    def is_named(self, wanted: str) -> bool:
        return wanted in ("*", self.name)


class WorkerHeartbeat(Event, frozen=True, kw_only=True):
    """A heartbeat of this member reached the store."""

    name: ClassVar[str] = "coord:worker-heartbeat"
    member_id: str = msgspec.field(name="worker_id")
    sequence: int


class CoordinatorElected(Event, frozen=True, kw_only=True):
    """A member was elected; emitted on every member."""

    name: ClassVar[str] = "coord:coordinator-elected"
    member_id: str = msgspec.field(name="worker_id")
    epoch: int
    lease_expires_at: float
    active_workers: int


class CoordinatorPromoted(Event, frozen=True, kw_only=True):
    """This member leads."""

    name: ClassVar[str] = "coord:coordinator-promoted"
    member_id: str = msgspec.field(name="worker_id")
    epoch: int


class CoordinatorDemoted(Event, frozen=True, kw_only=True):
    """This member does not lead any more. `reason` is `lease_lost`, `superseded`, `stopped`,
    `forced`, `unhealthy` or `fenced`."""

    name: ClassVar[str] = "coord:coordinator-demoted"
    member_id: str = msgspec.field(name="worker_id")
    epoch: int
    reason: str


class PluginElected(Event, frozen=True, kw_only=True):
    """A member was elected; emitted once for each plugin. `plg:ttl:coordinator-elected` selects the
    events of one plugin, `plg:coordinator-elected` those of all."""

    name: ClassVar[str] = "plg:coordinator-elected"
    plugin: str
    member_id: str = msgspec.field(name="worker_id")
    epoch: int

    def is_named(self, wanted: str) -> bool:
        return wanted in ("*", self.name, f"plg:{self.plugin}:coordinator-elected")


class PluginPromoted(Event, frozen=True, kw_only=True):
    """This member leads: its plugins start to work."""

    name: ClassVar[str] = "plg:coordinator-promoted"
    plugin: str
    member_id: str = msgspec.field(name="worker_id")
    epoch: int

    def is_named(self, wanted: str) -> bool:
        return wanted in ("*", self.name, f"plg:{self.plugin}:coordinator-promoted")


class EpochRenewed(Event, frozen=True, kw_only=True):
    """The leader prolonged its term; the epoch stays."""

    name: ClassVar[str] = "coord:coordinator-epoch-renewed"
    member_id: str = msgspec.field(name="worker_id")
    epoch: int
    new_term_ends_at: float


class LeaderChanged(Event, frozen=True, kw_only=True):
    """Another member leads than before; "" stands for none."""

    name: ClassVar[str] = "leader:changed"
    old: str
    new: str
    epoch: int


class Flapping(Event, frozen=True, kw_only=True):
    """The leader changed too often within `window` seconds."""

    name: ClassVar[str] = "coord:flapping"
    changes: int
    window: float
    advice: str


class ColdStartPhaseChanged(Event, frozen=True, kw_only=True):
    """A cold start entered `phase`; `duration` is the time spent in the phase before."""

    name: ClassVar[str] = "coord:cold-start-phase-changed"
    phase: str
    duration: float


class ForcedElection(Event, frozen=True, kw_only=True):
    """A member or an operator asked the leader to hand over."""

    name: ClassVar[str] = "coord:forced-election"
    requested_by: str
    desired: str


class ProfileChanged(Event, frozen=True, kw_only=True):
    """With `profile="auto"`: this member now uses the limits of `profile` and the heartbeat
    interval of `beats`. The two differ in the middle of a change."""

    name: ClassVar[str] = "coord:profile-changed"
    profile: str
    beats: str


class ContentionDetected(Event, frozen=True, kw_only=True):
    """A heartbeat or a renewal took `ratio` times as long as it should."""

    name: ClassVar[str] = "contention:detected"
    duration: float
    expected: float
    ratio: float


class HeartbeatWarning(Event, frozen=True, kw_only=True):
    """The leader missed the heartbeats of a member."""

    name: ClassVar[str] = "heartbeat:warning"
    member_id: str = msgspec.field(name="coordinator_id")
    health: str
    stale_duration: float
    consecutive_warnings: int
    reason: str


class CoordinatorDead(Event, frozen=True, kw_only=True):
    """A member was declared dead. The leader emits it once per boot. If the leader dies meanwhile,
    its successor emits it again with the same `death_id`."""

    name: ClassVar[str] = "coordinator:dead"
    member_id: str = msgspec.field(name="coordinator_id")
    boot: int = msgspec.field(name="incarnation")
    death_id: str
    reason: str
    consecutive_warnings: int


class MemberJoined(Event, frozen=True, kw_only=True):
    """A member registered. Emitted, as the next two, on members that called `start_monitoring`."""

    name: ClassVar[str] = "member:joined"
    member_id: str = msgspec.field(name="coordinator_id")
    boot: int = msgspec.field(name="incarnation")


class MemberLeft(Event, frozen=True, kw_only=True):
    """A member stopped, or the records of a dead one were cleaned up."""

    name: ClassVar[str] = "member:left"
    member_id: str = msgspec.field(name="coordinator_id")
    boot: int = msgspec.field(name="incarnation")


class MemberChanged(Event, frozen=True, kw_only=True):
    """The health of a member changed. Every watching member emits it: to act once on a death, use
    `coordinator:dead`."""

    name: ClassVar[str] = "member:changed"
    member_id: str = msgspec.field(name="coordinator_id")
    boot: int = msgspec.field(name="incarnation")
    previous_health: str
    health: str


class CoordinatorRecovered(Event, frozen=True, kw_only=True):
    """A member that was warned about, or declared dead, beats again."""

    name: ClassVar[str] = "coordinator:recovered"
    member_id: str = msgspec.field(name="coordinator_id")
    previous_health: str
    was_dead: bool


class CoordinatorUnreachable(Event, frozen=True, kw_only=True):
    """A signal was not acknowledged. `health` is that of its receiver right after that."""

    name: ClassVar[str] = "coordinator:unreachable"
    member_id: str = msgspec.field(name="coordinator_id")
    reason: str
    attempts: int
    error: str
    health: str = "unknown"


class CleanupComplete(Event, frozen=True, kw_only=True):
    """The leader removed the records of a dead member."""

    name: ClassVar[str] = "cleanup:complete"
    member_id: str = msgspec.field(name="coordinator_id")
    keys_deleted: int


class CleanupFailed(Event, frozen=True, kw_only=True):
    """The leader could not remove the records of a dead member; it tries again."""

    name: ClassVar[str] = "cleanup:failed"
    member_id: str = msgspec.field(name="coordinator_id")
    error: str


class ContinuityViolation(Event, frozen=True, kw_only=True):
    """The sequence of an external member's heartbeats jumped."""

    name: ClassVar[str] = "continuity:violation"
    member_id: str = msgspec.field(name="coordinator_id")
    expected_sequence: int
    received_sequence: int
    gap: int
    missed: int


class Isolated(Event, frozen=True, kw_only=True):
    """No beat of this member reached the store for `heartbeat_ttl`."""

    name: ClassVar[str] = "member:isolated"
    member_id: str = msgspec.field(name="coordinator_id")
    silent_s: float


class StateLost(Event, frozen=True, kw_only=True):
    """The store forgot this member: it was emptied, or restored from an older state."""

    name: ClassVar[str] = "store:state-lost"
    member_id: str = msgspec.field(name="coordinator_id")
    highest_epoch_seen: int


class SignalRejected(Event, frozen=True, kw_only=True):
    """This member refused a signal: forged, expired, or not meant for it."""

    name: ClassVar[str] = "signal:rejected"
    reason: str
    sender_id: str
    signal_id: str


class WaitTimedOut(Event, frozen=True, kw_only=True):
    """A blocking wait of this member reached its timeout."""

    name: ClassVar[str] = "coordination:timeout"
    correlation_id: str
    waited: float


class ErrorEvent(Event, frozen=True, kw_only=True):
    """An error outside of any call; logged if no handler takes it."""

    name: ClassVar[str] = "error"
    error: Any


Handler = Callable[[Any], Awaitable[None] | None]
OnFailure = Callable[[str, Exception], None]


class Listener:
    """The queue of one handler or iterator."""

    def __init__(self, wanted: str, on_dropped: Callable[[], None] | None = None) -> None:
        self.wanted = wanted
        self._on_dropped = on_dropped
        self._queue: deque[Event] = deque()
        self._arrived = asyncio.Event()
        self._is_closed = False
        self.dropped = 0

    def offer(self, event: Event) -> None:
        if not event.is_named(self.wanted):
            return
        if len(self._queue) >= QUEUE_MAX:
            self._queue.popleft()
            self.dropped += 1
            if self._on_dropped is not None:
                self._on_dropped()
        self._queue.append(event)
        self._arrived.set()

    def close(self) -> None:
        self._is_closed = True
        self._arrived.set()

    async def next(self) -> Event:
        while not self._queue:
            if self._is_closed:
                raise NotRunningError("the coordinator has stopped: there are no more events")
            self._arrived.clear()
            await self._arrived.wait()
        return self._queue.popleft()


class EventBus:
    """Distributes the events of one member to its listeners."""

    def __init__(
        self,
        tasks: TaskGroup,
        stamp: Callable[[Event], Event],
        on_failure: OnFailure,
        on_dropped: Callable[[], None] | None = None,
    ) -> None:
        self._tasks = tasks
        self._on_dropped = on_dropped
        self._stamp = stamp
        self._on_failure = on_failure
        self._listeners: list[Listener] = []
        self._handlers: dict[tuple[str, Handler], tuple[Listener, TaskToken]] = {}

    def emit(self, event: Event, *, is_logged: bool = False) -> None:
        """`is_logged` says that the caller logged the error of an `ErrorEvent` itself."""
        if not self._listeners and not isinstance(event, ErrorEvent):
            return
        stamped = self._stamp(event)
        heard = any(key[0] in ("error", "*") for key in self._handlers)
        if isinstance(stamped, ErrorEvent) and not heard and not is_logged:
            self._on_failure("error_without_listener", _as_exception(stamped.error))
        for listener in self._listeners:
            listener.offer(stamped)

    def on(self, event: str | type[Event], handler: Handler) -> None:
        """Calls `handler(event)` for each event of this name or type; "*" takes all."""
        self._listen(_name(event), handler, once=False)

    def once(self, event: str | type[Event], handler: Handler) -> None:
        self._listen(_name(event), handler, once=True)

    def off(self, event: str | type[Event], handler: Handler) -> None:
        found = self._handlers.pop((_name(event), handler), None)
        if found is not None:
            listener, token = found
            self._listeners.remove(listener)
            if token.task is not None:
                token.task.cancel()

    def has_listener(self, event: str | type[Event]) -> bool:
        """Whether a handler or an iterator would get it."""
        return any(each.wanted in ("*", _name(event)) for each in self._listeners)

    async def iterate(self, event: str | type[Event] = "*") -> AsyncIterator[Event]:
        """Events from now on. Leaving the loop ends the subscription."""
        listener = Listener(_name(event), self._on_dropped)
        self._listeners.append(listener)
        try:
            while True:
                yield await listener.next()
        finally:
            self._listeners.remove(listener)

    def close(self) -> None:
        """Iterators get the events that are queued, then `NotRunningError`."""
        for listener in self._listeners:
            listener.close()

    @property
    def dropped(self) -> int:
        return sum(listener.dropped for listener in self._listeners)

    def _listen(self, wanted: str, handler: Handler, *, once: bool) -> None:
        if (wanted, handler) in self._handlers:
            return
        listener = Listener(wanted, self._on_dropped)
        self._listeners.append(listener)
        work = self._handle(wanted, listener, handler, once)
        token = self._tasks.start(f"handler {wanted}", work)
        self._handlers[wanted, handler] = (listener, token)

    async def _handle(self, wanted: str, listener: Listener, handler: Handler, once: bool) -> None:
        while True:
            event = await listener.next()
            try:
                result = handler(event)
                if inspect.isawaitable(result):
                    await result
            except Exception as error:
                self._on_failure("event_handler_failed", error)
            if once:
                self._handlers.pop((wanted, handler), None)
                self._listeners.remove(listener)
                return


def _name(event: object) -> str:
    """The name that a listener waits for. A class without a name of its own would never match."""
    name = event if isinstance(event, str) else getattr(event, "name", None)
    if not isinstance(name, str) or not name:
        wrong(
            "event",
            event,
            "it must be the name of an event, or a class of events that sets"
            ' `name: ClassVar[str] = "..."`',
            '"*" for all',
        )
    return name


def _as_exception(error: object) -> Exception:
    return error if isinstance(error, Exception) else RuntimeError(str(error))
