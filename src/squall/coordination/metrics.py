"""All metrics of the coordination library; no other module registers one.

The alert rules and the dashboard in `deploy/coordination` use these names; a test compares them.
Each metric has the label `namespace`, because one process may run members of several.
"""

from __future__ import annotations

from typing import cast

from squall.runtime.metrics import Counter, Family, Gauge, Histogram, Registry

DURATION_BUCKETS_S = (
    1.0,
    5.0,
    15.0,
    30.0,
    60.0,
    120.0,
    300.0,
    600.0,
    900.0,
    1800.0,
    3600.0,
    7200.0,
)
SIGNAL_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
ELECTION_BUCKETS_S = (0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0)
CLEANUP_BUCKETS_S = (1.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
STORE_BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0)


class MetricFamilies:
    """The metric families of one registry."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self._members(registry)
        self._leadership(registry)
        self._signals(registry)
        self._store(registry)
        self._work(registry)

    def _members(self, registry: Registry) -> None:
        one = ("namespace",)
        self.heartbeats = registry.counters(
            "coordination_heartbeats_total", "Own heartbeats by result.", (*one, "result")
        )
        self.heartbeat_p99_s = registry.gauges(
            "coordination_heartbeat_latency_p99_seconds", "p99 of the last 100 heartbeats.", one
        )
        self.members = registry.gauges(
            "coordination_members", "Members by health, as the leader sees them.", (*one, "health")
        )
        self.deaths = registry.counters(
            "coordination_members_dead_total", "Members declared dead.", one
        )
        self.warnings = registry.counters(
            "coordination_heartbeat_warnings_total", "Stale checks that raised a warning.", one
        )
        self.continuity = registry.counters(
            "coordination_continuity_violations_total", "Jumps in a member's sequence.", one
        )
        self.isolated = registry.gauges(
            "coordination_isolated",
            "1 while no heartbeat of this member gets through, or it may not register.",
            one,
        )
        self.events_dropped = registry.counters(
            "coordination_events_dropped_total", "Events that a slow listener lost.", one
        )

    def _leadership(self, registry: Registry) -> None:
        one = ("namespace",)
        self.is_leader = registry.gauges(
            "coordination_is_leader", "1 while this member may act as coordinator.", one
        )
        self.leader_seen = registry.gauges(
            "coordination_leader_seen", "1 while this member knows a live coordinator.", one
        )
        self.epoch = registry.gauges("coordination_epoch", "Highest epoch seen.", one)
        self.lease_ttl_s = registry.gauges(
            "coordination_lease_ttl_seconds", "Length of the lease in force.", one
        )
        self.elections = registry.counters(
            "coordination_elections_total", "Attempts to be elected.", (*one, "result")
        )
        self.promotions = registry.counters(
            "coordination_promotions_total", "Times this member became coordinator.", one
        )
        self.demotions = registry.counters(
            "coordination_demotions_total", "Times it ceased to be.", (*one, "reason")
        )
        self.leader_changes = registry.counters(
            "coordination_leader_changes_total", "Changes of coordinator that were seen.", one
        )
        self.renewals = registry.counters(
            "coordination_renewals_total", "Renewals of the lease.", (*one, "result")
        )
        self.election_s = registry.histograms(
            "coordination_election_duration_seconds",
            "From the need of a coordinator to its election.",
            one,
            bounds=ELECTION_BUCKETS_S,
        )
        self.epoch_drift = registry.counters(
            "coordination_epoch_drift_events_total", "Orders of an old epoch, refused here.", one
        )
        self.fencing_rejections = registry.counters(
            "coordination_fencing_rejections_total", "Writes that the store fenced off.", one
        )
        self.contention = registry.counters(
            "coordination_contention_events_total",
            "Cycles and renewals that took too long, including those without an event.",
            one,
        )
        self.active_coordinators = registry.gauges(
            "active_coordinators", "Coordinators and blocked callers in this process.", one
        )

    def _signals(self, registry: Registry) -> None:
        one = ("namespace",)
        self.blocking_s = registry.histograms(
            "blocking_coordination_duration_seconds",
            "How long a caller was blocked.",
            (*one, "task_type", "outcome"),
            bounds=DURATION_BUCKETS_S,
        )
        self.signal_latency_s = registry.histograms(
            "signal_delivery_latency_seconds",
            "From append to acknowledgment, in store time.",
            one,
            bounds=SIGNAL_BUCKETS_S,
        )
        self.timeouts = registry.counters(
            "timeout_events_total", "Blocking waits that ran out of time.", one
        )
        self.signals_sent = registry.counters(
            "coordination_signals_sent_total", "Signals sent, by result.", (*one, "result")
        )
        self.signals_rejected = registry.counters(
            "coordination_signals_rejected_total", "Refused signals.", (*one, "reason")
        )
        self.secret_age_s = registry.gauges(
            "coordination_secret_age_seconds", "Age of the secret that signs.", one
        )
        self.secret_age_limit_s = registry.gauges(
            "coordination_secret_age_limit_seconds",
            "When it is to be changed in this environment, 0 for never.",
            one,
        )
        self.secret_keys = registry.gauges(
            "coordination_secret_keys", "Secrets that are accepted.", one
        )
        self.secret_failures = registry.counters(
            "coordination_secret_read_failures_total", "Readings of the secret that failed.", one
        )

    def _store(self, registry: Registry) -> None:
        one = ("namespace",)
        self.store_s = registry.histograms(
            "coordination_store_operation_seconds",
            "Operations of the store that were answered.",
            (*one, "operation"),
            bounds=STORE_BUCKETS_S,
        )
        self.store_errors = registry.counters(
            "coordination_store_errors_total", "Tries without an answer.", (*one, "operation")
        )
        self.breaker_open = registry.gauges(
            "coordination_breaker_state", "0 closed, 1 half-open, 2 open.", one
        )
        self.breaker_failures = registry.gauges(
            "coordination_breaker_failures",
            "Operations in a row that failed, or tries that hung.",
            one,
        )
        self.breaker_opened_at = registry.gauges(
            "coordination_breaker_opened_timestamp_seconds",
            "When it opened, or a probe failed last; 0 while it is closed.",
            one,
        )
        self.records_refused = registry.counters(
            "coordination_records_refused_total",
            "Records that did not decode or verify, and were as good as absent.",
            (*one, "kind"),
        )
        self.keys = registry.gauges("coordination_keys", "Keys in the store.", (*one, "kind"))
        self.store_bytes = registry.gauges(
            "coordination_store_memory_bytes", "What the store says it uses.", one
        )
        self.store_bytes_max = registry.gauges(
            "coordination_store_memory_max_bytes", "Its limit, 0 for none.", one
        )

    def _work(self, registry: Registry) -> None:
        one = ("namespace",)
        queue = (*one, "queue")
        self.cleanup_s = registry.histograms(
            "cleanup_duration_seconds", "Runs of the cleanup.", one, bounds=CLEANUP_BUCKETS_S
        )
        self.cleanups = registry.counters(
            "coordination_cleanups_total", "Members cleaned up, by result.", (*one, "result")
        )
        self.queue_depth = registry.gauges(
            "coordination_queue_depth", "Tickets by state, on the leader.", (*queue, "state")
        )
        self.queue_age_s = registry.gauges(
            "coordination_queue_oldest_seconds", "Age of the oldest open ticket.", queue
        )
        self.claims = registry.counters(
            "coordination_queue_claims_total", "Tickets taken by this member.", queue
        )
        self.finished = registry.counters(
            "coordination_queue_finished_total",
            "Tickets that this member ended, by outcome.",
            (*queue, "outcome"),
        )
        self.expired_records = registry.counters(
            "coordination_ttl_removed_total", "Records removed by the TTL component.", one
        )
        self.schedule_runs = registry.counters(
            "coordination_schedule_runs_total", "Runs of jobs.", (*one, "job", "outcome")
        )
        self.schedule_lag_s = registry.gauges(
            "coordination_schedule_lag_seconds",
            "From the due time to the start of a run.",
            (*one, "job"),
        )


class CoordinationMetrics:
    """The metrics of one namespace: fills in its label."""

    def __init__(self, families: MetricFamilies, namespace: str = "default") -> None:
        self.families = families
        self.namespace = namespace

    def counter(self, family: Family[Counter], *labels: object) -> Counter:
        return family.with_labels(self.namespace, *labels)

    def gauge(self, family: Family[Gauge], *labels: object) -> Gauge:
        return family.with_labels(self.namespace, *labels)

    def histogram(self, family: Family[Histogram], *labels: object) -> Histogram:
        return family.with_labels(self.namespace, *labels)

    @classmethod
    def of_registry(
        cls, registry: Registry | None = None, namespace: str = "default"
    ) -> CoordinationMetrics:
        """Members of one process may share a registry; its families are made once."""
        shared = Registry() if registry is None else registry
        families = shared.once(MetricFamilies)
        return cls(families, namespace)


def metric_names() -> dict[str, str]:
    """The kind of every metric by name; also the series of each histogram."""
    names: dict[str, str] = {}
    for family in vars(MetricFamilies(Registry())).values():
        if isinstance(family, Family):
            known = cast("Family[Counter]", family)
            names[known.name] = known.kind
            if known.kind == "histogram":
                names |= {f"{known.name}_{end}": "series" for end in ("bucket", "sum", "count")}
    return names
