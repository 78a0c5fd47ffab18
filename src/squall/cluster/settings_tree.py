"""The settings tree: the sections of all packages in one struct, and how it is loaded.

A package owns the meaning and the limits of its section; this module only combines them.
Managers and agents read all of it. Workers and clients read `[cluster]`, `[tls]`, `[worker]`,
`[log]` and `[metrics]`; a manager sends them the settings of links and timers.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from squall.cluster.control.settings import AdmissionSettings, ClientSettings
from squall.cluster.protocol.timers import check_jobs, timers_of
from squall.cluster.wire.limits import WireLimits
from squall.settings.loader import Problem, Profile, Sources, load
from squall.settings.shared_sections import (
    JOB_PROFILES,
    MEMBERSHIP_PROFILES,
    ROUTING_PROFILES,
    TIMER_PROFILES,
    ClusterSettings,
    GateRoutingSettings,
    JobSettings,
    LogSettings,
    MembershipSettings,
    MetricsSettings,
    TimerSettings,
    TLSSettings,
    WorkerNodeSettings,
    check_membership,
    check_timers,
)


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    cluster: ClusterSettings = ClusterSettings()
    timers: TimerSettings = TimerSettings()
    jobs: JobSettings = JobSettings()
    routing: GateRoutingSettings = GateRoutingSettings()
    membership: MembershipSettings = MembershipSettings()
    clients: ClientSettings = ClientSettings()
    wire: WireLimits = msgspec.field(default_factory=WireLimits)
    tls: TLSSettings = TLSSettings()
    worker: WorkerNodeSettings = WorkerNodeSettings()
    admission: AdmissionSettings = AdmissionSettings()
    log: LogSettings = LogSettings()
    metrics: MetricsSettings = MetricsSettings()


def load_settings(sources: Sources) -> Settings:
    """Raises `ConfigError`, which names every mistake."""
    return load(
        Settings,
        sources,
        profiles=(
            Profile("timers.profile", TIMER_PROFILES),
            Profile("timers.profile", JOB_PROFILES),
            Profile("timers.profile", ROUTING_PROFILES),
            Profile("timers.profile", MEMBERSHIP_PROFILES),
        ),
        checks=(
            lambda settings: check_timers(settings.timers),
            _check_jobs,
            lambda settings: check_membership(settings.membership),
        ),
    )


def _check_jobs(settings: Settings) -> Iterator[Problem]:
    # The leases of a group of one are the longest.
    return check_jobs(timers_of(settings.timers, 1, settings.jobs))
