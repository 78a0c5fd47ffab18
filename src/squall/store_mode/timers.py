"""Timers of store mode: one set per kind of store, and a fast one for tests.

Two sets belong together: those of the election (which agent coordinates) and those of the work
(sessions, leases). A lease must outlast two changes of the coordinator, or the death of one would
stop healthy load; the check is that of a group of managers, with the election's bound in place of
the group's. It must never accept a combination that breaks this.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from squall.api.errors import ConfigError
from squall.cluster.protocol.timers import Timers, check_jobs, timers, with_jobs
from squall.coordination.timing import PROFILES, Timing
from squall.settings.shared_sections import JobSettings

Profile = Literal["normal", "fast"]
POLLED = ("s3",)
"""Schemes of stores that are polled and charge for each request."""
COPY_S = 5.0
COPY_POLLED_S = 15.0


class AgentTimers(msgspec.Struct, frozen=True, kw_only=True):
    """The timers of an agent: those of the election and those of its work."""

    election: Timing
    work: Timers
    copy_s: float = COPY_S
    """How often the coordinator stores copies of the reports it received."""
    unsafe: bool = False
    """The election's timing is so fast that only tests may use it."""


NORMAL_TIMING = Timing(
    heartbeat_interval=1.2,
    heartbeat_ttl=15.0,
    dead_after=30.0,
    monitor_interval=5.0,
    lease_ttl=4.0,
    cold_start_observation_window=0.0,
    cold_start_preparation_delay=0.0,
)
"""Redis and SQLite answer in milliseconds."""
POLLED_TIMING = Timing(
    heartbeat_interval=2.0,
    heartbeat_ttl=30.0,
    dead_after=60.0,
    monitor_interval=10.0,
    lease_ttl=6.0,
    cold_start_observation_window=0.0,
    cold_start_preparation_delay=0.0,
)
"""S3: an answer takes a tenth of a second, a message up to two polls. A change of the coordinator
takes 8 s at most, so that a lease of 25 s outlasts two."""
POLLED_FAST_TIMING = msgspec.structs.replace(
    PROFILES["fast"],
    heartbeat_interval=1.0,
    heartbeat_ttl=6.0,
    dead_after=9.0,
    monitor_interval=1.0,
    lease_ttl=4.0,
)

_LAN = msgspec.structs.replace(
    timers("lan", 3),
    session_interval_s=1.0,
    session_interval_max_s=1.5,
    telemetry_interval_min_s=0.5,
    settle_s=0.9,
    go_round_trip_max_s=1.0,
    start_ahead_s=0.1,
)
_S3 = msgspec.structs.replace(
    _LAN,
    session_interval_s=3.0,
    session_interval_max_s=3.0,
    telemetry_interval_min_s=5.0,
    settle_s=8.0,
    execution_lease_s=25.0,
    go_round_trip_max_s=4.0,
    start_ahead_s=5.0,
    prepare_timeout_s=60.0,
    # Two sessions: one that returns, and one that brings the record.
    outbox_wait_s=6.0,
)
_FAST = msgspec.structs.replace(
    timers("fast", 1),
    telemetry_interval_min_s=0.2,
    settle_s=0.5,
    go_round_trip_max_s=1.0,
    start_ahead_s=0.1,
)
_S3_FAST = msgspec.structs.replace(
    _FAST,
    session_interval_s=1.0,
    session_interval_max_s=1.0,
    telemetry_interval_min_s=1.0,
    settle_s=4.0,
    execution_lease_s=14.0,
    go_round_trip_max_s=4.0,
    start_ahead_s=2.0,
    prepare_timeout_s=30.0,
)


def agent_timers(
    url: str, profile: Profile = "normal", jobs: JobSettings | None = None
) -> AgentTimers:
    """The timers for the store at `url`; all its agents must use the same. `jobs` are settings."""
    polled, fast = url.partition(":")[0] in POLLED, profile == "fast"
    if fast:
        election, work = (POLLED_FAST_TIMING, _S3_FAST) if polled else (PROFILES["fast"], _FAST)
    else:
        election, work = (POLLED_TIMING, _S3) if polled else (NORMAL_TIMING, _LAN)
    work = msgspec.structs.replace(work, failover_bound_s=election.failover)
    if jobs is not None:
        work = with_jobs(work, jobs)
    copy_s = 1.0 if fast else COPY_POLLED_S if polled else COPY_S
    chosen = AgentTimers(election=election, work=work, copy_s=copy_s, unsafe=fast)
    check_agent_timers(chosen)
    return chosen


def check_agent_timers(chosen: AgentTimers) -> None:
    work, failover_s = chosen.work, chosen.election.failover
    for problem in check_jobs(work):
        raise ConfigError(problem.text)
    least_s = 2.0 * failover_s + 3.0 * work.session_interval_max_s
    if work.execution_lease_s < least_s - 1e-9:
        raise ConfigError(
            f"execution_lease_s is {work.execution_lease_s:g}: it must be at least "
            f"2 x {failover_s:g} (a change of the coordinator) + 3 x session_interval_max_s "
            f"= {least_s:g}, or the death of a coordinator stops healthy load"
        )
    if work.failover_bound_s < failover_s - 1e-9:
        raise ConfigError(
            f"failover_bound_s is {work.failover_bound_s:g}: the election takes up to "
            f"{failover_s:g}"
        )
