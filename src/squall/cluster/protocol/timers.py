"""The timers of a datacenter's work, with a fast profile for tests.

The timers of the group itself are settings (`squall.settings.shared_sections`), where unsafe
combinations are refused.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from squall.settings.shared_sections import TIMER_PROFILES, TimerSettings


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
    dispatch_timeout_s: float = 300.0
    """The longest wait of a workflow for its start, over all its placements."""
    stop_grace_s: float = 10.0
    """From a stop to SIGKILL of the process group, beyond the grace of the profile (R6)."""
    refill_min_s: float = 2.0
    """A share with less time left is not refilled (R8)."""
    outbox_wait_s: float = 2.0
    """How long after the loss of an attempt near the end of its plan its final record is awaited,
    if its worker can still come back. Its silence was awaited for `lost_after_s` before."""
    stuck_s: float = 120.0
    """A job that executes nothing for this time while load is planned is stuck."""
    always_limit_s: float = 60.0
    """The limit of a `when="always"` workflow after a cancel or timeout of its job."""
    job_margin_s: float = 60.0
    """Added to the length of the plan if the submission names no timeout."""
    retention_s: float = 1800.0
    retention_failed_s: float = 3600.0
    key_retention_s: float = 86400.0
    jobs_kept_max: int = 2_000
    """Jobs that have ended; beyond it the oldest are removed before their time."""
    keys_kept_max: int = 100_000
    """Idempotency keys of jobs that were removed; beyond it the oldest are removed too."""
    retries_max: int = 3
    """How often a lost share is refilled; the next loss fails the workflow."""

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
    dispatch_timeout_s=30.0,
    stop_grace_s=2.0,
    stuck_s=20.0,
    always_limit_s=20.0,
)


def timers_of(group: TimerSettings, members: int) -> Timers:
    """Combines the timers of the group, which are settings, with those of the profile."""
    rest = _FAST if group.profile == "fast" else Timers()
    return msgspec.structs.replace(
        rest,
        session_interval_s=group.session_interval_s(0),
        session_interval_max_s=group.session_interval_s(1 << 40),
        session_workers_per_s=float(group.workers_per_session_s),
        execution_lease_s=group.lease_s(members),
        lost_margin_s=group.lost_after_margin_s,
        failover_bound_s=0.0 if members == 1 else group.failover_bound_s,
    )


def timers(profile: Literal["lan", "fast"], members: int) -> Timers:
    """The defaults of a profile."""
    chosen = {key.removeprefix("timers."): v for key, v in TIMER_PROFILES[profile].items()}
    return timers_of(msgspec.convert({"profile": profile, **chosen}, TimerSettings), members)
