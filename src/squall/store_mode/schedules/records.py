"""The records of scheduled load tests in a store.

    loadtests                one record: every schedule, written by clients
    loadtest/<name>          one record per schedule: which due times are decided, the current run
                             and the past runs; written by the coordinator
    blob/schedules/<digest>  bundles, sealed submissions and results (`StoreBlobs`)

A writer replaces a record only if it still has the version that was read. So each due time is
decided once, even if two agents believe that they coordinate. Every schedule has an id of its own:
the leftovers of a removed one never count for another of the same name. This module only defines
data.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, TypeVar

import msgspec

from squall.api.errors import SquallError
from squall.coordination.scheduler.records import JobRecord
from squall.coordination.stores.interface import Record, make_key

INDEX = make_key("loadtests")
BLOBS = "schedules"
"""The scope of their blobs; those of the log are collected by other rules."""
SCHEDULES_MAX = 200
RUNS_MAX = 1000
"""Most runs kept per schedule, even if its `keep_s` allows more: a week of one every ten
minutes."""
KEEP_S = 7 * 86_400.0
GRACE_S = 120.0
"""How late a run may start if missed runs are skipped: on every store a change of the coordinator
takes less."""
NAME_MAX = 64

RunState = Literal[
    "due",
    "running",
    "completed",
    "partial",
    "failed",
    "cancelled",
    "timeout",
    "refused",
    "lost",
    "skipped",
    "missed",
]
"""`due`: decided, not submitted yet. `refused`: could not be submitted. `lost`: the managers no
longer know the job. `skipped`: the run before it had not ended. `missed`: no agent coordinated."""
UNDER_WAY: tuple[RunState, ...] = ("due", "running")
CompareTo = Literal["", "last"]
S = TypeVar("S", bound=msgspec.Struct)


class Schedule(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A load test and its due times, as a client stored it. It never changes."""

    name: str
    id: str
    principal: str
    """The user that added it and owns its jobs."""
    operator: bool = False
    """It was added with an operator's credential, whose key sealed the submission."""
    file: str
    """Shown to people."""
    times: JobRecord
    """Cron or interval, and what to do about missed due times (`squall.coordination`)."""
    compare_to: CompareTo = ""
    keep_s: float = KEEP_S
    added_at: float
    """Store time: due times count from here."""
    bundle: str = ""
    """Digest of the blob; empty for a URL."""
    submission: str = ""
    """Digest of the sealed submission, to which everything above is bound."""


class ScheduleIndex(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The record of all schedules."""

    schedules: tuple[Schedule, ...] = ()

    def find(self, name: str) -> Schedule | None:
        return next((each for each in self.schedules if each.name == name), None)


class ChangeNote(msgspec.Struct, frozen=True, kw_only=True):
    """One number of one step that is worse or better than in the run before."""

    step: str
    column: str
    judgement: str
    before: float
    after: float
    low: float
    high: float
    """Bounds of the change, as `squall compare` shows them."""


class RunComparison(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The result of `squall compare` for a run and the one before it."""

    to: str
    """The job of the run before."""
    text: str
    judged: bool = False
    worse: int = 0
    better: int = 0
    same: int = 0
    few: int = 0
    changes: tuple[ChangeNote, ...] = ()


class ScheduledRun(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The run of one due time. Times are store time, seconds since 1970."""

    slot: str
    due: float
    state: RunState = "due"
    began: float = 0.0
    ended: float = 0.0
    job: str = ""
    verdict: str = ""
    exit_code: int | None = None
    reason: str = ""
    result: str = ""
    """Digest of the job's result; empty if it left none."""
    comparison: RunComparison | None = None


class Baseline(msgspec.Struct, frozen=True, kw_only=True):
    """The run that the next one is compared with: the last comparable one. Its result is kept
    beyond `keep_s`."""

    job: str
    result: str


class ScheduleProgress(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How far a schedule has come."""

    id: str
    decided: float
    """Every due time up to here has a run or was given up. It only grows."""
    under_way: ScheduledRun | None = None
    baseline: Baseline | None = None
    runs: tuple[ScheduledRun, ...] = ()
    """The newest last."""

    def results(self) -> Iterator[str]:
        yield from (run.result for run in self.runs if run.result)
        if self.baseline is not None:
            yield self.baseline.result


class ScheduleBroken(SquallError):
    """A record that this version cannot read."""


def progress_key(name: str) -> str:
    return make_key("loadtest", name)


def new_progress(schedule: Schedule) -> ScheduleProgress:
    return ScheduleProgress(id=schedule.id, decided=schedule.added_at)


def progress_of(schedule: Schedule, record: Record | None) -> ScheduleProgress:
    """Ignores the record of a removed schedule of the same name."""
    found = None if record is None else read(ScheduleProgress, record)
    return found if found is not None and found.id == schedule.id else new_progress(schedule)


def job_key(schedule: Schedule, slot: str) -> str:
    """The key of a due time's job. It is the same on every coordinator, so there is one job."""
    return f"schedule/{schedule.name}/{schedule.id}/{slot}"


def read(kind: type[S], record: Record) -> S:
    try:
        return msgspec.msgpack.decode(record.value, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ScheduleBroken(
            f"{record.key} in the store cannot be read by this version of Squall: {error}"
        ) from None
