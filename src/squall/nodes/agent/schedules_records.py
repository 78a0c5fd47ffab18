"""What a store holds of scheduled load tests: which there are, and how each stands.

    loadtests                one record: every schedule, written by the clients
    loadtest/<name>          one record per schedule: how far it is decided, the run that is
                             under way, the runs that were; written by the coordinator
    blob/schedules/<digest>  bundles, sealed submissions and results (`StoreBlobs`)

Both records are replaced only on the version that was read, so each due time is decided
once, whoever believes to coordinate. A schedule has an id of its own: what is left of one
that was removed never counts for another of the same name. Nothing here does anything.
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
"""The scope of their blobs: those of the log are collected by other rules."""
SCHEDULES_MAX = 200
RUNS_MAX = 1000
"""Of one schedule, besides the time that they are kept: a week of one every ten minutes."""
KEEP_S = 7 * 86_400.0
GRACE_S = 120.0
"""How late a due time may begin that is not to be made up for: a change of the coordinator
takes less on every store."""
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
"""`due`: decided, not handed in yet. `refused`: could not be handed in. `lost`: the job is not
known any more. `skipped`: the run before it had not ended. `missed`: nobody coordinated."""
UNDER_WAY: tuple[RunState, ...] = ("due", "running")
CompareTo = Literal["", "last"]
S = TypeVar("S", bound=msgspec.Struct)


class Schedule(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A load test and its due times, as a client wrote it down. It never changes."""

    name: str
    id: str
    principal: str
    """Who added it: its jobs are theirs."""
    file: str
    """For people."""
    times: JobRecord
    """Cron or interval, and what becomes of missed due times (`squall.coordination`)."""
    compare_to: CompareTo = ""
    keep_s: float = KEEP_S
    added_at: float
    """Store time: due times count from here."""
    bundle: str = ""
    """Digest of the blob; empty for a URL."""
    submission: str = ""
    """Digest of the sealed submission, to which everything above is bound."""


class Index(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
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


class Comparison(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What `squall compare` says of a run and the one before it."""

    to: str
    """The job of the run before."""
    text: str
    judged: bool = False
    worse: int = 0
    better: int = 0
    same: int = 0
    few: int = 0
    changes: tuple[ChangeNote, ...] = ()


class Run(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One due time. Times are store time, seconds since 1970."""

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
    comparison: Comparison | None = None


class Baseline(msgspec.Struct, frozen=True, kw_only=True):
    """The run that the next one is compared with: the last that is worth it. Its result is
    kept beyond its time."""

    job: str
    result: str


class Standing(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a schedule stands."""

    id: str
    decided: float
    """Up to here every due time has its run, or was given up."""
    under_way: Run | None = None
    baseline: Baseline | None = None
    runs: tuple[Run, ...] = ()
    """The newest last."""

    def results(self) -> Iterator[str]:
        yield from (run.result for run in self.runs if run.result)
        if self.baseline is not None:
            yield self.baseline.result


class ScheduleBroken(SquallError):
    """A record that this version cannot read."""


def standing_key(name: str) -> str:
    return make_key("loadtest", name)


def new_standing(schedule: Schedule) -> Standing:
    return Standing(id=schedule.id, decided=schedule.added_at)


def standing_of(schedule: Schedule, record: Record | None) -> Standing:
    """A record of a schedule that was removed is none of this one."""
    found = None if record is None else read(Standing, record)
    return found if found is not None and found.id == schedule.id else new_standing(schedule)


def job_key(schedule: Schedule, slot: str) -> str:
    """The same for a due time on every coordinator: so it is one job."""
    return f"schedule/{schedule.name}/{schedule.id}/{slot}"


def read(kind: type[S], record: Record) -> S:
    try:
        return msgspec.msgpack.decode(record.value, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ScheduleBroken(
            f"{record.key} in the store cannot be read by this version of Squall: {error}"
        ) from None
