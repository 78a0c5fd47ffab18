"""The settings tree of every node: the sections of all packages, and how they are loaded.

A package owns the meaning and the limits of its section; here they are only put together,
with the defaults that depend on a node's role and the checks that cross sections. It must
never hold a number that a section could hold.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

import msgspec

from squall.control.settings import (
    GATE_ADMISSION,
    MANAGER_ADMISSION,
    WORKER_ADMISSION,
    AdmissionSettings,
    BreakerSettings,
    RetryBudgetSettings,
    RetryPolicy,
)
from squall.runtime.sections import (
    TIMER_PROFILES,
    ClusterSettings,
    LogSettings,
    MetricsSettings,
    TimerSettings,
    check_timers,
)
from squall.runtime.settings import Loaded, Overlay, Problem, Profile, Sources, load
from squall.wire.limits import WireLimits

Role = Literal["gate", "manager", "worker", "client"]


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    cluster: ClusterSettings = ClusterSettings()
    timers: TimerSettings = TimerSettings()
    wire: WireLimits = msgspec.field(default_factory=WireLimits)
    admission: AdmissionSettings = AdmissionSettings()
    retry: RetryPolicy = RetryPolicy()
    retry_budget: RetryBudgetSettings = RetryBudgetSettings()
    breaker: BreakerSettings = BreakerSettings()
    log: LogSettings = LogSettings()
    metrics: MetricsSettings = MetricsSettings()


def load_settings(role: Role, sources: Sources) -> Loaded[Settings]:
    """The settings of a node in this role; `ConfigError` names every mistake."""
    return load(
        Settings,
        sources,
        overlay=Overlay(f"default of a {role}", _ROLE_DEFAULTS[role]),
        profiles=(Profile("timers.profile", TIMER_PROFILES),),
        checks=(lambda settings: check_timers(settings.timers), _check_together),
    )


def _check_together(settings: Settings) -> Iterator[Problem]:
    if settings.wire.dial_timeout_s > settings.breaker.probe_timeout_s:
        yield Problem(
            ("wire.dial_timeout_s", "breaker.probe_timeout_s"),
            "dial_timeout_s must not exceed probe_timeout_s, or a probe of a dead peer is "
            "given up while it still dials",
        )


def _admission(limits: AdmissionSettings) -> dict[str, object]:
    plain = AdmissionSettings()
    return {
        f"admission.{name}": getattr(limits, name)
        for name in limits.__struct_fields__
        if getattr(limits, name) != getattr(plain, name)
    }


# Queue sizes by role: a gate talks to many managers, a worker to few.
_ROLE_DEFAULTS: Mapping[Role, Mapping[str, object]] = {
    "gate": {
        **_admission(GATE_ADMISSION),
        "wire.queue_messages": 1000,
        "timers.profile": "wan",
    },
    "manager": _admission(MANAGER_ADMISSION),
    "worker": {**_admission(WORKER_ADMISSION), "wire.queue_messages": 250},
    "client": {},
}
