"""How long things take in a datacenter: one table, with a fast column for tests.

The group's own timers are in the settings tree (`squall.runtime.sections`), where unsafe
combinations are refused; here is what a datacenter's work needs besides.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from squall.runtime.sections import TIMER_PROFILES, TimerSettings


class Timers(msgspec.Struct, frozen=True, kw_only=True):
    session_interval_s: float = 1.0
    session_workers_per_s: float = 2000.0
    """The interval grows with the workers: workers / this, up to `session_interval_max_s`."""
    session_interval_max_s: float = 2.0
    telemetry_interval_min_s: float = 0.1
    copy_s: float = 5.0
    """How often a job's leader gives another manager a copy of what was reported to it."""
    settle_s: float = 0.3
    """After the end of a second its reports are on their way for so long; then it is shown."""
    execution_lease_s: float = 60.0
    lost_factor: float = 1.1
    lost_margin_s: float = 1.0
    failover_bound_s: float = 0.0
    """0 for a group of one: nobody takes over."""
    go_round_trip_max_s: float = 0.5
    start_ahead_s: float = 0.05
    """From the command that starts a workflow to its start: the time in which its shares
    hear of it, so that none joins late."""
    prepare_timeout_s: float = 30.0
    """From placement to Ready; then the reservations are returned."""
    dispatch_timeout_s: float = 300.0
    """Longest wait of a placed workflow for its start, over all attempts to place it."""
    stop_grace_s: float = 10.0
    """From a stop to SIGKILL of the process group, beyond the profile's own grace."""
    refill_min_s: float = 2.0
    """With less than this left of a share there is no refill."""
    outbox_wait_s: float = 30.0
    stuck_s: float = 120.0
    """Without an executed action while load is planned: the job is stuck."""
    always_limit_s: float = 60.0
    """Of a `when="always"` workflow after cancel or timeout."""
    job_margin_s: float = 60.0
    """Added to the plan's length where the submission names no timeout."""
    retention_s: float = 1800.0
    retention_failed_s: float = 3600.0
    key_retention_s: float = 86400.0
    retries_max: int = 3
    """How often a share is given out again after a loss; the next loss fails the workflow."""

    def telemetry_interval_s(self, workers: int) -> float:
        """How often each of so many workers sends what it measured."""
        return max(self.telemetry_interval_min_s, workers / self.session_workers_per_s)

    @property
    def lost_after_s(self) -> float:
        return self.lost_factor * self.execution_lease_s + self.lost_margin_s


_FAST = Timers(
    copy_s=1.0,
    prepare_timeout_s=10.0,
    dispatch_timeout_s=30.0,
    stop_grace_s=2.0,
    outbox_wait_s=6.0,
    stuck_s=20.0,
    always_limit_s=20.0,
)


def timers_of(group: TimerSettings, members: int) -> Timers:
    """The timers of a group are settings, checked at start; the rest follows the profile."""
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
    """All defaults of a profile."""
    chosen = {key.removeprefix("timers."): v for key, v in TIMER_PROFILES[profile].items()}
    return timers_of(msgspec.convert({"profile": profile, **chosen}, TimerSettings), members)
