"""Sections of the settings tree that no other package owns: the cluster, the timers of a
control group, jobs, TLS, the log, the metrics.

A value marked as shared must be equal on all members of a group and is part of the digest
that they compare when they connect. No section holds a secret; it names the file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from squall.settings.loader import Problem

SHARED = {"shared": True}
DEFAULT_CLUSTER = "squall"
"""The cluster id where none is set."""
DRAIN_TIMEOUT_S = 30.0
DRAIN_MAX_S = 86_400.0

Seconds = Annotated[float, Meta(gt=0)]
SharedSeconds = Annotated[float, Meta(gt=0, extra=SHARED)]
SharedDelay = Annotated[float, Meta(ge=0, extra=SHARED)]
Count = Annotated[int, Meta(ge=1)]
ClusterName = Annotated[
    str, Meta(pattern=r"^([a-z0-9][a-z0-9-]{0,62})?$", examples=["load-eu"], extra=SHARED)
]


class ClusterSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Identity and secrets of the cluster."""

    id: ClusterName = ""
    """Part of every key: nodes of two clusters cannot talk, even with one secret."""
    secret_file: str = ""
    """The file of the secret that this node sends with."""
    accepted_secret_files: tuple[str, ...] = ()
    """Files of further secrets that it accepts while the secret is changed."""
    managers: tuple[str, ...] = ()
    """Where clients and workers find managers: host:port, dns:NAME or srv:NAME; a flag overrides
    it."""
    dns_server: str = ""
    """The DNS server for dns: and srv: names, such as "10.0.0.53"; empty: those of the system."""


class TimerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Timers of a control group; `profile` sets the defaults of all of them."""

    profile: Annotated[Literal["lan", "wan", "fast"], Meta(extra=SHARED)] = "lan"
    heartbeat_round_s: SharedSeconds = 0.25
    check_quorum_s: SharedSeconds = 1.5
    follower_timeout_s: SharedSeconds = 2.0
    stagger_s: SharedDelay = 0.3
    """Added to a follower's timeout for each rank, so that candidates do not collide."""
    jitter_s: SharedDelay = 0.3
    failover_bound_s: SharedSeconds = 3.9
    """Longest time without a primary when two of five members die."""
    session_interval_min_s: SharedSeconds = 1.0
    session_interval_max_s: SharedSeconds = 2.0
    workers_per_session_s: Annotated[int, Meta(ge=1, extra=SHARED)] = 2000
    execution_lease_s: SharedSeconds = 15.0
    execution_lease_alone_s: SharedSeconds = 20.0
    """For a group of one: a restart of the only manager must fit into the lease."""
    lost_after_margin_s: SharedSeconds = 1.0

    def session_interval_s(self, workers: int) -> float:
        """Seconds between two sessions of one worker."""
        wanted_s = workers / self.workers_per_session_s
        return min(max(wanted_s, self.session_interval_min_s), self.session_interval_max_s)

    def lease_s(self, members: int) -> float:
        return self.execution_lease_alone_s if members == 1 else self.execution_lease_s

    def lost_after_s(self, longest_lease_s: float) -> float:
        """1.1 times the lease covers clocks that differ by 5 % in both directions."""
        return 1.1 * longest_lease_s + self.lost_after_margin_s


TIMER_PROFILES: Mapping[str, Mapping[str, object]] = {
    "lan": {},
    # For gates, which are regions apart. They grant no leases; the lease only has to pass the check
    # that it outlasts two failovers.
    "wan": {
        "timers.heartbeat_round_s": 1.0,
        "timers.check_quorum_s": 6.0,
        "timers.follower_timeout_s": 8.0,
        "timers.stagger_s": 1.0,
        "timers.jitter_s": 1.0,
        "timers.failover_bound_s": 14.0,
        "timers.execution_lease_s": 40.0,
        "timers.execution_lease_alone_s": 40.0,
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


Retention = Annotated[float, Meta(ge=10)]


class JobSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How long jobs are waited for and kept. The manager that leads applies its own values."""

    queue_max: Count = 5_000
    """Jobs that wait for cores; a further submission is refused until there is room."""
    dispatch_timeout_s: Seconds = 300.0
    """The longest wait of a workflow for its start, over all its placements; then it fails."""
    stuck_s: Seconds = 120.0
    """A job that executes nothing for this time while load is planned is ended as stuck."""
    retries_max: Annotated[int, Meta(ge=0, le=100)] = 3
    """How often a lost share is refilled; the next loss fails the workflow."""
    retention_s: Retention = 1800.0
    """How long a job and its result are kept after it completed, also in part."""
    retention_failed_s: Retention = 3600.0
    """The same for a job that ended otherwise."""
    jobs_kept_max: Annotated[int, Meta(ge=10)] = 2_000
    """Jobs that have ended; beyond it the oldest are removed before their time."""
    key_retention_s: Retention = 86_400.0
    """How long the key of a submission is remembered after its job was removed."""
    keys_kept_max: Annotated[int, Meta(ge=100)] = 100_000
    """Keys of jobs that were removed; beyond it the oldest are removed before their time."""


JOB_PROFILES: Mapping[str, Mapping[str, object]] = {
    "fast": {"jobs.dispatch_timeout_s": 30.0, "jobs.stuck_s": 20.0},
}
"""Defaults of `[jobs]` that `timers.profile` chooses."""


class GateRoutingSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How gates treat the datacenters that run parts of a job. Managers do not read it."""

    lost_wait_s: Annotated[float, Meta(ge=1, le=86_400)] = 75.0
    """How long the gates wait for a datacenter that was cut off after its part began. It counts
    from the end of the plan or the stop of the job, or from its last answer if that came later;
    then the part is lost. With `--on-dc-loss drop` nothing is waited for."""


ROUTING_PROFILES: Mapping[str, Mapping[str, object]] = {"fast": {"routing.lost_wait_s": 10.0}}
"""Defaults of `[routing]` that `timers.profile` chooses."""


class MembershipSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Which nodes live, as the nodes tell each other by datagrams: advice for people and placement.
    The manager that leads applies its own values to its datacenter."""

    max_nodes: Annotated[int, Meta(ge=0, le=1_000)] = 200
    """It is on while a datacenter has at most so many managers and workers together; 0: off."""
    probe_interval_s: Seconds = 1.0
    """How often a node probes another one."""
    probe_timeout_s: Seconds = 0.3
    """How long it waits for the direct answer before it asks others to probe."""


MEMBERSHIP_PROFILES: Mapping[str, Mapping[str, object]] = {
    "fast": {"membership.probe_interval_s": 0.2, "membership.probe_timeout_s": 0.06},
    "wan": {"membership.probe_interval_s": 2.0, "membership.probe_timeout_s": 0.8},
}
"""Defaults of `[membership]` that `timers.profile` chooses."""


class TLSSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Files of mutual TLS between nodes and clients: all three, or none for links that are
    sealed with the secret alone."""

    certificate: str = ""
    """PEM, with `URI:squall:<role>` among its alternative names."""
    key: str = ""
    ca: str = ""
    """The authority that signed the certificates of all nodes and clients."""

    def __post_init__(self) -> None:
        files = {"certificate": self.certificate, "key": self.key, "ca": self.ca}
        missing = [name for name, file in files.items() if not file]
        if missing and len(missing) < len(files):
            raise ValueError(f"{missing[0]} is not set: TLS needs certificate, key and ca")


class WorkerNodeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """A worker or agent, and `squall drain`."""

    drain_timeout_s: Annotated[float, Meta(ge=0, le=DRAIN_MAX_S)] = DRAIN_TIMEOUT_S
    """How long the running shares of a worker that drains may go on; 0: they end at once."""


class LogSettings(msgspec.Struct, frozen=True, kw_only=True):
    level: Literal["debug", "info", "warning", "error"] = "info"
    json: bool = False
    events_per_s: Seconds = 5.0
    """The lasting rate per event name; suppressed events are counted and shown with the next."""
    burst: Count = 50


class MetricsSettings(msgspec.Struct, frozen=True, kw_only=True):
    listen: Annotated[str, Meta(pattern=r"^(.+:[0-9]{1,5})?$", examples=["127.0.0.1:9464"])] = ""
    """host:port of /metrics, /healthz and /readyz; empty: no endpoint."""


def check_membership(membership: MembershipSettings) -> Iterator[Problem]:
    """Finds timeouts that leave no time to ask others before the next probe."""
    if membership.probe_timeout_s >= membership.probe_interval_s:
        yield Problem(
            ("membership.probe_timeout_s", "membership.probe_interval_s"),
            "probe_timeout_s must be below probe_interval_s, or no time is left in which other "
            "nodes can probe the one that does not answer",
        )


def check_timers(timers: TimerSettings) -> Iterator[Problem]:
    """Finds combinations that would depose a healthy primary or let a load run twice."""
    if timers.check_quorum_s >= timers.follower_timeout_s:
        yield Problem(
            ("timers.check_quorum_s", "timers.follower_timeout_s"),
            "check_quorum_s must be below follower_timeout_s, or an old primary still "
            "believes that it leads when the next one is elected",
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
    if low_s > high_s:
        yield Problem(
            ("timers.session_interval_min_s", "timers.session_interval_max_s"),
            "session_interval_min_s must not exceed session_interval_max_s",
        )
    least_s = 2 * timers.failover_bound_s + 3 * high_s
    for name in ("execution_lease_s", "execution_lease_alone_s"):
        lease_s: float = getattr(timers, name)
        if lease_s < least_s - 1e-9:
            yield Problem(
                (f"timers.{name}",),
                f"{name} must be at least 2 x failover_bound_s + 3 x "
                f"session_interval_max_s = {least_s:g}, or a failover stops healthy load",
            )
