"""What the store holds of a schedule, and what a scheduler tells.

schedules                one record: every job, how it stands, the last due time that was
                         decided. A new coordinator first rewrites it under its epoch.
run/<job>/<slot>         record: one due time, created once before anything is done
runs/<job>               record: the last 50 runs, for people
orders                   stream: runs that people asked for by hand
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import msgspec

from squall.coordination.events import Event
from squall.coordination.records import Schema
from squall.coordination.stores.interface import make_key

SCHEDULES = make_key("schedules")
ORDERS = make_key("orders")
RUN_TTL_S = 7 * 86_400.0
HISTORY_MAX = 50

Misfire = Literal["skip", "run_once", "run_all"]
Overlap = Literal["skip", "queue"]
Outcome = Literal["running", "ok", "failed", "timeout", "skipped", "interrupted", "enqueued"]


class JobRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A job as all members know it. Times are seconds since 1970."""

    cron: str = ""
    zone: str = "UTC"
    every: float = 0.0
    queue: str = ""
    """Enqueue a ticket there, instead of a call on the coordinator."""
    payload: Any = None
    misfire: Misfire = "run_once"
    overlap: Overlap = "skip"
    max_runtime: float = 3600.0
    jitter: float = 0.0
    grace: float = 5.0
    """With `skip`, how late a run may still begin, beyond its jitter."""
    enabled: bool = True
    decided: float = 0.0
    """Up to here every due time has had its run, or was given up."""
    opened: str = ""
    """The slot of the last run that was begun."""


class Schedules(Schema, frozen=True, kw_only=True):
    jobs: dict[str, JobRecord] = msgspec.field(default_factory=dict[str, JobRecord])


class RunRecord(Schema, frozen=True, kw_only=True, omit_defaults=True):
    """One due time of one job."""

    job: str
    slot: str
    due: float
    outcome: Outcome = "running"
    member: str = ""
    epoch: int = 0
    started: float = 0.0
    ended: float = 0.0
    error: str = ""


class RunOrder(Schema, frozen=True, kw_only=True):
    """Somebody wants a run now."""

    job: str


class RunHistory(Schema, frozen=True, kw_only=True):
    runs: tuple[RunRecord, ...] = ()


class RunStarted(Event, frozen=True, kw_only=True):
    name: ClassVar[str] = "plg:scheduler:run-started"
    job: str
    slot: str
    due: float
    epoch: int


class RunEnded(Event, frozen=True, kw_only=True):
    name: ClassVar[str] = "plg:scheduler:run-ended"
    job: str
    slot: str
    outcome: str
    error: str = ""


class RunsMissed(Event, frozen=True, kw_only=True):
    """Due times that passed while nobody could run them, and will not be made up for."""

    name: ClassVar[str] = "plg:scheduler:runs-missed"
    job: str
    count: int
    first: float
    last: float


class HandlerMissing(Event, frozen=True, kw_only=True):
    """The coordinator has no code for this job; it stays due for a member that has."""

    name: ClassVar[str] = "plg:scheduler:handler-missing"
    job: str


def run_key(job: str, slot: str) -> str:
    return make_key("run", job, slot)


def history_key(job: str) -> str:
    return make_key("runs", job)


def slot_of(due_s: float) -> str:
    """Milliseconds of the due time; the same on every member."""
    return f"{round(due_s * 1000.0):015d}"
