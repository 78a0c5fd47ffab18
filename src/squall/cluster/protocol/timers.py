"""The timers of a datacenter's work, with a fast profile for tests.

The timers of the group itself, and how long jobs are waited for and kept, are settings
(`squall.settings.shared_sections`); unsafe combinations are refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec

from squall.settings.loader import Problem
from squall.settings.shared_sections import (
    JOB_PROFILES,
    TIMER_PROFILES,
    JobSettings,
    TimerSettings,
)

_JOBS = JobSettings()


class Timers(msgspec.Struct, frozen=True, kw_only=True):
    session_interval_s: float = 1.0
    session_workers_per_s: float = 2000.0
    """The intended sessions per second: the interval is workers / this, within its bounds."""
    session_interval_max_s: float = 2.0
    telemetry_interval_min_s: float = 0.1
    copy_s: float = 5.0
    """How often a job's leader sends copies of its reports to another manager (R8)."""
    settle_s: float = 0.3
    """How long after its end a second is shown: its reports are on their way until then."""
    execution_lease_s: float = 20.0
    lost_factor: float = 1.1
    lost_margin_s: float = 1.0
    failover_bound_s: float = 0.0
    """0 for a group of one: no other member takes over."""
    go_round_trip_max_s: float = 0.5
    start_ahead_s: float = 0.05
    """From the command that starts a workflow to its start: its shares receive the order
    meanwhile."""
    prepare_timeout_s: float = 30.0
    """The longest time from placement to Ready; then the phase returns to the queue (R7)."""
    dispatch_timeout_s: float = _JOBS.dispatch_timeout_s
    stop_grace_s: float = 10.0
    """From a stop to SIGKILL of the process group, beyond the grace of the profile (R6)."""
    refill_min_s: float = 2.0
    """A share with less time left is not refilled (R8)."""
    outbox_wait_s: float = 2.0
    """How long after the loss of an attempt near the end of its plan its final record is awaited,
    if its worker can still come back. Its silence was awaited for `lost_after_s` before."""
    stuck_s: float = _JOBS.stuck_s
    always_limit_s: float = 60.0
    """The limit of a `when="always"` workflow after a cancel or timeout of its job."""
    job_margin_s: float = 60.0
    """Added to the length of the plan if the submission names no timeout."""
    retention_s: float = _JOBS.retention_s
    retention_failed_s: float = _JOBS.retention_failed_s
    key_retention_s: float = _JOBS.key_retention_s
    jobs_kept_max: int = _JOBS.jobs_kept_max
    keys_kept_max: int = _JOBS.keys_kept_max
    retries_max: int = _JOBS.retries_max

    def telemetry_interval_s(self, workers: int) -> float:
        """The telemetry interval of each worker, for this number of workers (R14)."""
        return max(self.telemetry_interval_min_s, workers / self.session_workers_per_s)

    @property
    def lost_after_s(self) -> float:
        return self.lost_factor * self.execution_lease_s + self.lost_margin_s

    @property
    def last_loss_s(self) -> float:
        """The longest wait for a worker that falls silent in the last seconds of a plan."""
        return self.lost_after_s + self.outbox_wait_s


_FAST = Timers(
    copy_s=1.0,
    prepare_timeout_s=10.0,
    stop_grace_s=2.0,
    always_limit_s=20.0,
)


def timers_of(group: TimerSettings, members: int, jobs: JobSettings | None = None) -> Timers:
    """Combines the settings with the timers of the profile; without `jobs`, its defaults."""
    rest = _FAST if group.profile == "fast" else Timers()
    return msgspec.structs.replace(
        with_jobs(rest, jobs or job_defaults(group.profile)),
        session_interval_s=group.session_interval_s(0),
        session_interval_max_s=group.session_interval_s(1 << 40),
        session_workers_per_s=float(group.workers_per_session_s),
        execution_lease_s=group.lease_s(members),
        lost_margin_s=group.lost_after_margin_s,
        failover_bound_s=0.0 if members == 1 else group.failover_bound_s,
    )


def with_jobs(work: Timers, jobs: JobSettings) -> Timers:
    return msgspec.structs.replace(
        work,
        dispatch_timeout_s=jobs.dispatch_timeout_s,
        stuck_s=jobs.stuck_s,
        retries_max=jobs.retries_max,
        retention_s=jobs.retention_s,
        retention_failed_s=jobs.retention_failed_s,
        jobs_kept_max=jobs.jobs_kept_max,
        key_retention_s=jobs.key_retention_s,
        keys_kept_max=jobs.keys_kept_max,
    )


def job_defaults(profile: str) -> JobSettings:
    chosen = {key.removeprefix("jobs."): v for key, v in JOB_PROFILES.get(profile, {}).items()}
    return msgspec.convert(chosen, JobSettings)


def check_jobs(work: Timers) -> Iterator[Problem]:
    """Finds limits that end a job while its managers still do what they should."""
    if work.dispatch_timeout_s < work.prepare_timeout_s:
        yield Problem(
            ("jobs.dispatch_timeout_s",),
            f"dispatch_timeout_s must be at least {work.prepare_timeout_s:g}, the time that one "
            "placement has to get ready, or a workflow fails before its first try is over",
        )
    if work.stuck_s < work.last_loss_s - 1e-9:
        yield Problem(
            ("jobs.stuck_s",),
            f"stuck_s must be at least {work.last_loss_s:g}, the time until the loss of a worker "
            "is certain, or a job whose worker died ends as stuck instead of being refilled",
        )


def timers(profile: Literal["lan", "fast"], members: int) -> Timers:
    """The defaults of a profile."""
    chosen = {key.removeprefix("timers."): v for key, v in TIMER_PROFILES[profile].items()}
    return timers_of(msgspec.convert({"profile": profile, **chosen}, TimerSettings), members)
