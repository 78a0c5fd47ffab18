"""Decides which requests start in this node and which are shed.

The classes DISPATCH, DATA and TELEMETRY share nested limits, so the lowest class is shed
first: whenever DISPATCH is shed, DATA would be too, and whenever DATA is shed, TELEMETRY
would be too. An admitted request starts at once.

CONTROL is never shed. It has slots of its own, outside the shared limits, so the other
classes cannot push it out and it cannot take their slots. When its slots are taken, CONTROL
waits in one line per source and the sources take turns: a peer that floods delays mostly
itself. A source whose line is too long is an `Overrun`: the wire closes its connection.
That loses nothing, because a peer derives all of its CONTROL again after a reconnect.

The event loop gives each running task a turn in every round, so bounded CONTROL cannot
starve the rest: a task waits for at most `control_max` + `shared_max` steps of others.

Never does I/O and never reads a clock.
"""

from __future__ import annotations

import enum
from collections import OrderedDict
from dataclasses import dataclass
from typing import NewType

import msgspec

from squall.cluster.control.load import Backlog, FillAlarm, Filling, ServiceTime
from squall.cluster.control.settings import AdmissionSettings
from squall.cluster.wire.header import MessageClass
from squall.runtime.backoff import Uniform
from squall.runtime.invariants import invariant

Token = NewType("Token", int)
"""One admitted request; released exactly once."""

SHARED_CLASSES = (MessageClass.DISPATCH, MessageClass.DATA, MessageClass.TELEMETRY)
"""The classes that can be shed; the last one is shed first."""

# A node is overloaded when its loop is 2 s late: a shed reporter waits longer than that.
BEHIND_RETRY_S = 2.0


class Admitted(msgspec.Struct, frozen=True):
    token: Token
    waits: bool = False
    """CONTROL only: the work starts when a later `release` returns the token."""
    warning: Filling | None = None


class Shed(msgspec.Struct, frozen=True):
    """Not admitted. The wire answers a request with the hint and drops a one-way message."""

    retry_after_s: float


class Overrun(msgspec.Struct, frozen=True):
    """The source has too much CONTROL waiting; the wire closes its connection."""

    source: str
    waiting: int


Decision = Admitted | Shed | Overrun


class LoadState(enum.Enum):
    HEALTHY = "healthy"
    PRESSURED = "pressured"
    """TELEMETRY is shed."""
    OVERLOADED = "overloaded"
    """DATA and TELEMETRY are shed, perhaps DISPATCH."""


class AdmissionLoad(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot for metrics. `in_flight` counts running work, not `control_waiting`."""

    state: LoadState
    in_flight: dict[MessageClass, int]
    shared_in_flight: int
    control_waiting: int
    admitted_total: dict[MessageClass, int]
    shed_total: dict[MessageClass, int]
    overrun_total: int
    shared_max: int
    data_max: int
    telemetry_max: int
    control_max: int


@dataclass(slots=True)
class _Group:
    """Classes that share one limit. The groups nest, the widest first."""

    limit: int
    classes: tuple[MessageClass, ...]
    backlog: Backlog
    used: int = 0


class _Work(msgspec.Struct):
    message_class: MessageClass
    source: str
    started_at: float | None
    """None while it waits in line."""


class Admission:
    """Counts the requests in flight: `admit` takes a slot, `release` returns it."""

    def __init__(self, settings: AdmissionSettings, uniform: Uniform) -> None:
        self._settings = settings
        self._uniform = uniform
        # Set while the node is overloaded (`squall.cluster.control.overload`).
        self.sheds_telemetry = False
        self._work: dict[Token, _Work] = {}
        self._next_token = 0
        self._in_flight = dict.fromkeys(MessageClass, 0)
        self._admitted = dict.fromkeys(MessageClass, 0)
        self._shed = dict.fromkeys(MessageClass, 0)
        self._overruns = 0
        self._groups = self._nested_groups()
        self._groups_of = {
            each: tuple(group for group in self._groups if each in group.classes)
            for each in MessageClass
        }
        self._service = {
            each: ServiceTime(settings.service_time_first_s, settings.service_time_weight)
            for each in MessageClass
        }
        self._lines: OrderedDict[str, dict[Token, None]] = OrderedDict()
        self._waiting = 0
        self._shared_alarm = FillAlarm(
            "shared", settings.shared_max, settings.warn_at, settings.warn_rearm
        )
        self._control_alarm = FillAlarm(
            "control", settings.control_max, settings.warn_at, settings.warn_rearm
        )

    def admit(self, message_class: MessageClass, now: float, source: str = "") -> Decision:
        """Called before any work is done for the request. `source` names the process that
        asks."""
        if message_class is MessageClass.CONTROL:
            if self._in_flight[message_class] >= self._settings.control_max:
                return self._line_up(source)
            alarm = self._control_alarm
            token = self._started(message_class, source, now)
            return Admitted(token, False, alarm.rise_to(self._in_flight[message_class]))
        full = self._full_group(message_class)
        if full is None and self.sheds_telemetry and message_class is MessageClass.TELEMETRY:
            self._shed[message_class] += 1
            return Shed(self._uniform(BEHIND_RETRY_S, 2 * BEHIND_RETRY_S))
        if full is not None:
            self._shed[message_class] += 1
            return Shed(self._retry_after_s(full, now))
        token = self._started(message_class, source, now)
        return Admitted(token, False, self._shared_alarm.rise_to(self._groups[0].used))

    def passes(self, message_class: MessageClass) -> bool:
        """Whether there is room for work that runs to its end without an await. Such work
        takes no slot, and `load` does not count it."""
        if message_class is MessageClass.CONTROL:
            return self._in_flight[message_class] < self._settings.control_max
        if self.sheds_telemetry and message_class is MessageClass.TELEMETRY:
            return False
        return self._full_group(message_class) is None

    def release(self, token: Token, now: float) -> tuple[Token, ...]:
        """Returns a slot after success, failure or cancellation, also of work that still waits.

        The result is the waiting work that starts now.
        """
        work = self._work.pop(token, None)
        if work is None:
            invariant(False, f"slot {token} is released twice or was never taken")
            return ()
        if work.started_at is None:
            self._leave_line(token, work.source)
            return ()
        self._finish(work.message_class, now - work.started_at, now)
        if not self._waiting or work.message_class is not MessageClass.CONTROL:
            return ()
        following = self._first_in_line()
        waiting = self._work[following]
        waiting.started_at = now
        self._count(waiting.message_class, now)
        return (following,)

    @property
    def state(self) -> LoadState:
        if self._full_group(MessageClass.DATA) is not None:
            return LoadState.OVERLOADED
        if self.sheds_telemetry or self._full_group(MessageClass.TELEMETRY) is not None:
            return LoadState.PRESSURED
        return LoadState.HEALTHY

    def load(self) -> AdmissionLoad:
        settings = self._settings
        return AdmissionLoad(
            state=self.state,
            in_flight=dict(self._in_flight),
            shared_in_flight=self._groups[0].used,
            control_waiting=self._waiting,
            admitted_total=dict(self._admitted),
            shed_total=dict(self._shed),
            overrun_total=self._overruns,
            shared_max=settings.shared_max,
            data_max=settings.data_max,
            telemetry_max=settings.telemetry_max,
            control_max=settings.control_max,
        )

    def _nested_groups(self) -> tuple[_Group, ...]:
        settings = self._settings
        limits = (settings.shared_max, settings.data_max, settings.telemetry_max)
        return tuple(
            _Group(limit, SHARED_CLASSES[index:], Backlog(settings.backlog_memory_s))
            for index, limit in enumerate(limits)
        )

    def _full_group(self, message_class: MessageClass) -> _Group | None:
        """The widest full group that the class belongs to."""
        for group in self._groups_of[message_class]:
            if group.used >= group.limit:
                return group
        return None

    def _line_up(self, source: str) -> Decision:
        """All CONTROL slots are taken: the request waits unless its source's line is too long."""
        line = self._lines.get(source, {})
        if (
            len(line) >= self._settings.control_waiting_per_source_max
            or self._waiting >= self._settings.control_waiting_max
        ):
            self._overruns += 1
            return Overrun(source, len(line))
        token = self._new_token(MessageClass.CONTROL, source, None)
        self._lines.setdefault(source, line)[token] = None
        self._waiting += 1
        return Admitted(token, waits=True)

    def _started(self, message_class: MessageClass, source: str, now: float) -> Token:
        self._count(message_class, now)
        return self._new_token(message_class, source, now)

    def _new_token(
        self, message_class: MessageClass, source: str, started_at: float | None
    ) -> Token:
        number = self._next_token
        self._next_token = number + 1
        token = Token(number)
        self._work[token] = _Work(message_class, source, started_at)
        self._admitted[message_class] += 1
        return token

    def _count(self, message_class: MessageClass, now: float) -> None:
        running = self._in_flight[message_class] = self._in_flight[message_class] + 1
        if running == 1:
            self._service[message_class].woke(now)
        for group in self._groups_of[message_class]:
            group.used += 1

    def _finish(self, message_class: MessageClass, service_s: float, now: float) -> None:
        running = self._in_flight[message_class] = self._in_flight[message_class] - 1
        self._service[message_class].ended(now, service_s)
        if message_class is MessageClass.CONTROL:
            self._control_alarm.fall_to(running)
            return
        for group in self._groups_of[message_class]:
            group.used -= 1
        self._shared_alarm.fall_to(self._groups[0].used)

    def _first_in_line(self) -> Token:
        """The next request of the source whose turn it is; that source then goes to the end."""
        source, line = self._lines.popitem(last=False)
        token = next(iter(line))
        del line[token]
        self._waiting -= 1
        if line:
            self._lines[source] = line
        return token

    def _leave_line(self, token: Token, source: str) -> None:
        line = self._lines[source]
        del line[token]
        self._waiting -= 1
        if not line:
            del self._lines[source]

    def _retry_after_s(self, group: _Group, now: float) -> float:
        """Estimates when a slot of the group is free for this caller.

        Slots free up one by one, and callers that were shed before come first. If nothing
        has ended for longer than that, the work is stuck and the hint grows with the stall.
        """
        settings = self._settings
        ahead = group.backlog.add(now)
        estimate_s = settings.retry_after_max_s
        if group.limit > 0:
            held_s = sum(
                self._in_flight[each] * self._service[each].mean_s for each in group.classes
            )
            mean_s = held_s / group.used
            stalled_s = min(self._service[each].stalled_s(now) for each in group.classes)
            estimate_s = max(mean_s * ahead / group.limit, stalled_s)
        estimate_s = max(settings.retry_after_min_s, min(estimate_s, settings.retry_after_max_s))
        return self._uniform(estimate_s, estimate_s * (1 + settings.retry_after_spread))
