"""Sections of the settings tree that no other package owns: who belongs together, the
timers of a control group, the log, the metrics.

A number carries its origin. A value marked as shared must be equal among the members of
a group and is part of the digest that they compare when they connect. It must never hold
a secret itself: a secret is named by the file that holds it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from squall.api.errors import ConfigError
from squall.runtime.settings import Problem

SHARED = {"shared": True}

Seconds = Annotated[float, Meta(gt=0)]
SharedSeconds = Annotated[float, Meta(gt=0, extra=SHARED)]
SharedDelay = Annotated[float, Meta(ge=0, extra=SHARED)]
SharedPeriod = Annotated[float, Meta(gt=0, extra=SHARED)] | None
Count = Annotated[int, Meta(ge=1)]
ClusterName = Annotated[
    str, Meta(pattern=r"^([a-z0-9][a-z0-9-]{0,62})?$", examples=["load-eu"], extra=SHARED)
]


class ClusterSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Who belongs together."""

    id: ClusterName = ""
    """Part of every key: nodes of two clusters cannot talk, even with one secret."""
    secret_file: str = ""
    """The secret that this node sends with."""
    accepted_secret_files: tuple[str, ...] = ()
    """Others that it still understands, while secrets are rotated."""
    managers: tuple[str, ...] = ()
    """host:port of the managers that a client or worker talks to, where no flag says it."""


class TimerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Timers of a control group; `profile` chooses all of them at once."""

    profile: Annotated[Literal["lan", "wan", "fast"], Meta(extra=SHARED)] = "lan"
    heartbeat_round_s: SharedSeconds = 0.25
    check_quorum_s: SharedSeconds = 1.5
    follower_timeout_s: SharedSeconds = 2.0
    stagger_s: SharedDelay = 0.3
    """Added to a follower's timeout for each rank, so that candidates do not collide."""
    jitter_s: SharedDelay = 0.3
    failover_bound_s: SharedSeconds = 3.9
    """Longest time without a primary when two of five members die."""
    session_interval_min_s: SharedPeriod = 1.0
    session_interval_max_s: SharedPeriod = 2.0
    workers_per_session_s: Annotated[int, Meta(ge=1, extra=SHARED)] = 2000
    execution_lease_s: SharedPeriod = 15.0
    """None in a group without workers, as gates are."""
    execution_lease_alone_s: SharedPeriod = 60.0
    """In a group of one, where a restart of the only manager has to fit in."""
    lost_after_margin_s: SharedSeconds = 1.0

    def session_interval_s(self, workers: int) -> float:
        """Seconds between two sessions of one worker."""
        low = _held(self.session_interval_min_s, "timers.session_interval_min_s")
        high = _held(self.session_interval_max_s, "timers.session_interval_max_s")
        return min(max(workers / self.workers_per_session_s, low), high)

    def lease_s(self, members: int) -> float:
        if members == 1:
            return _held(self.execution_lease_alone_s, "timers.execution_lease_alone_s")
        return _held(self.execution_lease_s, "timers.execution_lease_s")

    def lost_after_s(self, longest_lease_s: float) -> float:
        """1.1 times the lease covers clocks that differ by 5 % in both directions."""
        return 1.1 * longest_lease_s + self.lost_after_margin_s


TIMER_PROFILES: Mapping[str, Mapping[str, object]] = {
    "lan": {},
    "wan": {
        "timers.heartbeat_round_s": 1.0,
        "timers.check_quorum_s": 6.0,
        "timers.follower_timeout_s": 8.0,
        "timers.stagger_s": 1.0,
        "timers.jitter_s": 1.0,
        "timers.failover_bound_s": 14.0,
        "timers.session_interval_min_s": None,
        "timers.session_interval_max_s": None,
        "timers.execution_lease_s": None,
        "timers.execution_lease_alone_s": None,
    },
    "fast": {
        "timers.heartbeat_round_s": 0.05,
        "timers.check_quorum_s": 0.3,
        "timers.follower_timeout_s": 0.4,
        "timers.stagger_s": 0.05,
        "timers.jitter_s": 0.05,
        "timers.failover_bound_s": 0.8,
        "timers.session_interval_min_s": 0.2,
        "timers.session_interval_max_s": 0.2,
        "timers.execution_lease_s": 2.5,
        "timers.execution_lease_alone_s": 5.0,
        "timers.lost_after_margin_s": 0.2,
    },
}


class LogSettings(msgspec.Struct, frozen=True, kw_only=True):
    level: Literal["debug", "info", "warning", "error"] = "info"
    json: bool = False
    events_per_s: Seconds = 5.0
    """Of each event name, lasting; what is above is counted and shown with the next."""
    burst: Count = 50


class MetricsSettings(msgspec.Struct, frozen=True, kw_only=True):
    listen: Annotated[str, Meta(pattern=r"^(.+:[0-9]{1,5})?$", examples=["127.0.0.1:9464"])] = ""
    """host:port of /metrics, /healthz and /readyz; empty: no endpoint."""
    connections: Count = 32
    request_timeout_s: Seconds = 5.0
    request_head_max_bytes: Annotated[int, Meta(ge=512, le=1 << 16)] = 8 * 1024
    series_per_metric: Count = 1000


def check_timers(timers: TimerSettings) -> Iterator[Problem]:
    """Combinations that would lose leaders for nothing, or let a load run twice."""
    if timers.check_quorum_s >= timers.follower_timeout_s:
        yield Problem(
            ("timers.check_quorum_s", "timers.follower_timeout_s"),
            "check_quorum_s must be below follower_timeout_s, or an old primary still "
            "believes in itself when the next is chosen",
        )
    if timers.follower_timeout_s < 8 * timers.heartbeat_round_s - 1e-9:
        yield Problem(
            ("timers.follower_timeout_s", "timers.heartbeat_round_s"),
            f"follower_timeout_s must be at least 8 x heartbeat_round_s = "
            f"{8 * timers.heartbeat_round_s:g}, or a few lost heartbeats cost a primary",
        )
    least_s = (
        timers.follower_timeout_s
        + 4 * timers.stagger_s
        + timers.jitter_s
        + timers.heartbeat_round_s
    )
    if timers.failover_bound_s < least_s - 1e-9:
        yield Problem(
            ("timers.failover_bound_s",),
            f"failover_bound_s must be at least {least_s:g}: follower_timeout_s + "
            "4 x stagger_s + jitter_s + heartbeat_round_s, the last candidate of five",
        )
    yield from _check_leases(timers)


def _check_leases(timers: TimerSettings) -> Iterator[Problem]:
    low_s, high_s = timers.session_interval_min_s, timers.session_interval_max_s
    if low_s is None or high_s is None:
        return
    if low_s > high_s:
        yield Problem(
            ("timers.session_interval_min_s", "timers.session_interval_max_s"),
            "session_interval_min_s must not exceed session_interval_max_s",
        )
    least_s = 2 * timers.failover_bound_s + 3 * high_s
    for name in ("execution_lease_s", "execution_lease_alone_s"):
        lease_s: float | None = getattr(timers, name)
        if lease_s is not None and lease_s < least_s - 1e-9:
            yield Problem(
                (f"timers.{name}",),
                f"{name} must be at least 2 x failover_bound_s + 3 x "
                f"session_interval_max_s = {least_s:g}, or a failover stops healthy load",
            )


def require_cluster(cluster: ClusterSettings) -> None:
    """A real node has a cluster and a secret; there is no insecure default."""
    if not cluster.id:
        raise ConfigError(
            'cluster.id is not set: give the cluster a name, such as id = "load-eu" under '
            "[cluster] in squall.toml, the same on all its nodes"
        )
    if not cluster.secret_file:
        raise ConfigError(
            "cluster.secret_file is not set: name the file that holds the cluster's secret, "
            "the same secret on all its nodes"
        )


def _held(value: float | None, key: str) -> float:
    if value is None:
        raise ConfigError(
            f'{key} is not set: this profile is for gates, which hold no workers; use "lan"'
        )
    return value
