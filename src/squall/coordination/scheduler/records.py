"""The records, streams and events of a scheduler.

schedules                one record: every job, its state and the last due time that was decided.
                         A new leader first rewrites it under its epoch.
run/<job>/<slot>         record: one due time; created once, before anything is done for it
runs/<job>               record: the last 50 runs, for operators
orders                   stream: runs that operators asked for
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, TypedDict

import msgspec

from squall.coordination.events import Event
from squall.coordination.records.schemas import Schema
from squall.coordination.stores.interface import make_key
from squall.coordination.stores.kinds import kept_s

SCHEDULES = make_key("schedules")
ORDERS = make_key("orders")
RUN_TTL_S = kept_s("run")
SCHEDULE_TTL_S = kept_s("schedules")
HISTORY_MAX = 50

Misfire = Literal["skip", "run_once", "run_all"]
Overlap = Literal["skip", "queue"]
RunOutcome = Literal["running", "ok", "failed", "timeout", "skipped", "interrupted", "enqueued"]


class JobRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A job as all members know it: its definition and its state. Times are seconds since 1970."""

    cron: str = ""
    zone: str = "UTC"
    every: float = 0.0
    queue: str = ""
    """Enqueue a ticket there instead of calling a handler on the leader."""
    payload: Any = None
    misfire: Misfire = "run_once"
    overlap: Overlap = "skip"
    max_runtime: float = 3600.0
    jitter: float = 0.0
    grace: float = 5.0
    """How late a run may begin under `misfire="skip"`, beyond its jitter."""
    enabled: bool = True
    decided: float = 0.0
    """Every due time up to here has had its run or was given up. Never falls."""
    opened: str = ""
    """The slot of the last run that was begun. A new leader checks whether it ended."""


class JobOptions(TypedDict, total=False):
    """What a declaration says about a job besides its times; the fields of `JobRecord`."""

    misfire: Misfire
    overlap: Overlap
    max_runtime: float
    jitter: float
    grace: float
    enabled: bool


class JobTimes(JobOptions, total=False):
    """As `JobOptions`, with the times: either `every` or `cron`."""

    every: float
    cron: str
    zone: str


class Schedules(Schema, frozen=True, kw_only=True):
    jobs: dict[str, JobRecord] = msgspec.field(default_factory=dict[str, JobRecord])


class RunRecord(Schema, frozen=True, kw_only=True, omit_defaults=True):
    """One run of one job: a due time, or an order."""

    job: str
    slot: str
    due: float
    outcome: RunOutcome = "running"
    member: str = ""
    epoch: int = 0
    started: float = 0.0
    ended: float = 0.0
    error: str = ""


class RunOrder(Schema, frozen=True, kw_only=True):
    """An operator's order to run a job now."""

    job: str


class RunHistory(Schema, frozen=True, kw_only=True):
    runs: tuple[RunRecord, ...] = ()


class RunStarted(Event, frozen=True, kw_only=True):
    """The leader began a run of a job. `due` is in seconds since 1970."""

    name: ClassVar[str] = "plg:scheduler:run-started"
    job: str
    slot: str
    due: float
    epoch: int


class RunEnded(Event, frozen=True, kw_only=True):
    """A run ended: `ok`, `failed`, `timeout`, `skipped`, `interrupted` or `enqueued`."""

    name: ClassVar[str] = "plg:scheduler:run-ended"
    job: str
    slot: str
    outcome: str
    error: str = ""


class RunsMissed(Event, frozen=True, kw_only=True):
    """Due times that passed without a run and are given up."""

    name: ClassVar[str] = "plg:scheduler:runs-missed"
    job: str
    count: int
    first: float
    last: float


class HandlerMissing(Event, frozen=True, kw_only=True):
    """The leader has no handler for this job. It stays due for a leader that has one."""

    name: ClassVar[str] = "plg:scheduler:handler-missing"
    job: str


def run_key(job: str, slot: str) -> str:
    return make_key("run", job, slot)


def history_key(job: str) -> str:
    return make_key("runs", job)


def slot_of(due_s: float) -> str:
    """The name of a due time: its milliseconds, the same on every member."""
    return f"{round(due_s * 1000.0):015d}"
