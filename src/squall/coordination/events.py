"""What a member tells the application: typed events, by handlers or by an async iterator.

Each listener has a queue of its own, at most `QUEUE_MAX` long; a slow one loses its oldest
events, counted, and never slows the protocol or another listener. Handlers run outside of
the loops that emit, one event after another per listener. A handler that raises is
reported and goes on with the next event. It must never raise into what emits.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, ClassVar

import msgspec

from squall.coordination.errors import NotRunningError
from squall.runtime.tasks import TaskGroup, TaskToken

QUEUE_MAX = 1000


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Every event says where it was seen, when (wall clock, for people) and by whom."""

    name: ClassVar[str] = ""
    namespace: str = ""
    timestamp: float = 0.0
    observer_id: str = ""

    def is_named(self, wanted: str) -> bool:
        return wanted in ("*", self.name)


class WorkerHeartbeat(Event, frozen=True, kw_only=True):
    name: ClassVar[str] = "coord:worker-heartbeat"
    worker_id: str
    sequence: int


class CoordinatorElected(Event, frozen=True, kw_only=True):
    """Somebody leads; told on every member."""

    name: ClassVar[str] = "coord:coordinator-elected"
    worker_id: str
    epoch: int
    lease_expires_at: float
    active_workers: int


class CoordinatorPromoted(Event, frozen=True, kw_only=True):
    """This member leads."""

    name: ClassVar[str] = "coord:coordinator-promoted"
    worker_id: str
    epoch: int


class CoordinatorDemoted(Event, frozen=True, kw_only=True):
    """This member leads no more; reason is one of `lease_lost`, `superseded`, `stopped`,
    `forced`, `unhealthy`, `fenced`."""

    name: ClassVar[str] = "coord:coordinator-demoted"
    worker_id: str
    epoch: int
    reason: str


class PluginElected(Event, frozen=True, kw_only=True):
    """The same, once for each plugin of the member: `plg:<plugin>:coordinator-elected` names those
    of one kind, as `plg:ttl:coordinator-elected`, and `plg:coordinator-elected` all of them."""

    name: ClassVar[str] = "plg:coordinator-elected"
    plugin: str
    worker_id: str
    epoch: int

    def is_named(self, wanted: str) -> bool:
        return wanted in ("*", self.name, f"plg:{self.plugin}:coordinator-elected")


class PluginPromoted(Event, frozen=True, kw_only=True):
    """This member leads: its plugins work from now on."""

    name: ClassVar[str] = "plg:coordinator-promoted"
    plugin: str
    worker_id: str
    epoch: int

    def is_named(self, wanted: str) -> bool:
        return wanted in ("*", self.name, f"plg:{self.plugin}:coordinator-promoted")


class EpochRenewed(Event, frozen=True, kw_only=True):
    """The term of the holder was prolonged; the epoch stays."""

    name: ClassVar[str] = "coord:coordinator-epoch-renewed"
    worker_id: str
    epoch: int
    new_term_ends_at: float


class LeaderChanged(Event, frozen=True, kw_only=True):
    name: ClassVar[str] = "leader:changed"
    old: str
    new: str
    epoch: int


class Flapping(Event, frozen=True, kw_only=True):
    name: ClassVar[str] = "coord:flapping"
    changes: int
    window: float
    advice: str


class ColdStartPhaseChanged(Event, frozen=True, kw_only=True):
    """`duration` is the time spent in the phase that was left."""

    name: ClassVar[str] = "coord:cold-start-phase-changed"
    phase: str
    duration: float


class ForcedElection(Event, frozen=True, kw_only=True):
    """Somebody asked for a change of the coordinator by hand."""

    name: ClassVar[str] = "coord:forced-election"
    requested_by: str
    desired: str


class ProfileChanged(Event, frozen=True, kw_only=True):
    """With `profile="auto"`: the limits of `profile` hold here from now on, and the heartbeat
    interval of `beats`. They differ in the middle of a change."""

    name: ClassVar[str] = "coord:profile-changed"
    profile: str
    beats: str


class ContentionDetected(Event, frozen=True, kw_only=True):
    name: ClassVar[str] = "contention:detected"
    duration: float
    expected: float
    ratio: float


class HeartbeatWarning(Event, frozen=True, kw_only=True):
    name: ClassVar[str] = "heartbeat:warning"
    coordinator_id: str
    health: str
    stale_duration: float
    consecutive_warnings: int
    reason: str


class CoordinatorDead(Event, frozen=True, kw_only=True):
    """A member was declared dead: told once for its incarnation in the whole group, or again
    with the same `death_id` by a successor of a coordinator that died while telling it."""

    name: ClassVar[str] = "coordinator:dead"
    coordinator_id: str
    incarnation: int
    death_id: str
    reason: str
    consecutive_warnings: int


class MemberJoined(Event, frozen=True, kw_only=True):
    """Seen by a member that watches (`start_monitoring`), like the two that follow."""

    name: ClassVar[str] = "member:joined"
    coordinator_id: str
    incarnation: int


class MemberLeft(Event, frozen=True, kw_only=True):
    """It stopped by itself, or what was left of it after its death was cleaned up."""

    name: ClassVar[str] = "member:left"
    coordinator_id: str
    incarnation: int


class MemberChanged(Event, frozen=True, kw_only=True):
    """Its health is another one. Every watcher tells it: to act once on a death, listen to
    `coordinator:dead`."""

    name: ClassVar[str] = "member:changed"
    coordinator_id: str
    incarnation: int
    previous_health: str
    health: str


class CoordinatorRecovered(Event, frozen=True, kw_only=True):
    name: ClassVar[str] = "coordinator:recovered"
    coordinator_id: str
    previous_health: str
    was_dead: bool


class CoordinatorUnreachable(Event, frozen=True, kw_only=True):
    """A signal was not acknowledged. `health` is how its receiver was found right after that:
    `alive`, `stale` (no heartbeat for `heartbeat_ttl`), `left`, `dead`, or `unknown`."""

    name: ClassVar[str] = "coordinator:unreachable"
    coordinator_id: str
    reason: str
    attempts: int
    error: str
    health: str = "unknown"


class CleanupComplete(Event, frozen=True, kw_only=True):
    name: ClassVar[str] = "cleanup:complete"
    coordinator_id: str
    keys_deleted: int


class CleanupFailed(Event, frozen=True, kw_only=True):
    name: ClassVar[str] = "cleanup:failed"
    coordinator_id: str
    error: str


class ContinuityViolation(Event, frozen=True, kw_only=True):
    name: ClassVar[str] = "continuity:violation"
    coordinator_id: str
    expected_sequence: int
    received_sequence: int
    gap: int
    missed: int


class Isolated(Event, frozen=True, kw_only=True):
    """No beat of this member reached the store for `heartbeat_ttl`."""

    name: ClassVar[str] = "member:isolated"
    coordinator_id: str
    silent_s: float


class StateLost(Event, frozen=True, kw_only=True):
    """The store forgot this member: it was emptied, or restored from an older state."""

    name: ClassVar[str] = "store:state-lost"
    coordinator_id: str
    highest_epoch_seen: int


class SignalRejected(Event, frozen=True, kw_only=True):
    name: ClassVar[str] = "signal:rejected"
    reason: str
    sender_id: str
    signal_id: str


class WaitTimedOut(Event, frozen=True, kw_only=True):
    name: ClassVar[str] = "coordination:timeout"
    correlation_id: str
    waited: float


class ErrorEvent(Event, frozen=True, kw_only=True):
    """Something that a handler may want to see; without one it is logged, never raised."""

    name: ClassVar[str] = "error"
    error: Any


Handler = Callable[[Any], Awaitable[None] | None]
OnFailure = Callable[[str, Exception], None]


class Listener:
    """One queue of events; handed out by `EventBus`."""

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
                raise NotRunningError("the coordinator has stopped: no more events come")
            self._arrived.clear()
            await self._arrived.wait()
        return self._queue.popleft()


class EventBus:
    """Of one member."""

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

    def emit(self, event: Event) -> None:
        if not self._listeners and not isinstance(event, ErrorEvent):
            return
        stamped = self._stamp(event)
        heard = any(key[0] in ("error", "*") for key in self._handlers)
        if isinstance(stamped, ErrorEvent) and not heard:
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

    def is_heard(self, event: str | type[Event]) -> bool:
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
        """Who iterates gets what came before, then `NotRunningError`."""
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


def _name(event: str | type[Event]) -> str:
    return event if isinstance(event, str) else event.name


def _as_exception(error: object) -> Exception:
    return error if isinstance(error, Exception) else RuntimeError(str(error))
