"""The metrics of a gate's datacenters. A gate has few of them, so each has series of its own."""

from __future__ import annotations

from collections.abc import Callable

from squall.cluster.gate.prober import DatacenterProber
from squall.cluster.gate.routing.health import Health
from squall.cluster.gate.routing.known_datacenters import KnownDatacenter, KnownDatacenters
from squall.runtime.interfaces import Clock
from squall.runtime.metrics import Registry


def routing_metrics(
    registry: Registry, known: KnownDatacenters, prober: DatacenterProber, clock: Clock
) -> None:
    health = registry.gauges(
        "squall_datacenter_health",
        "1 for the present health of a datacenter, as this gate sees it",
        ["datacenter", "health"],
    )
    for each in known:
        for state in Health:
            health.with_labels(each.name, state.label).follow(
                lambda each=each, state=state: float(each.finding(clock.now()).health is state)
            )
    _each(
        registry,
        known,
        "squall_datacenter_round_trip_seconds",
        "Smoothed round trip to a datacenter",
        lambda each: each.rtt.mean_ms / 1000.0,
    )
    _each(
        registry,
        known,
        "squall_datacenter_free_cores",
        "Free cores by the last report, less those of jobs that were just sent there",
        lambda each: float(each.view(clock.now()).free),
    )
    _each(
        registry,
        known,
        "squall_datacenter_queued_jobs",
        "Jobs that wait for cores, by the last report",
        lambda each: float(each.report.queued if each.report is not None else 0),
    )
    registry.gauge("squall_datacenter_probes", "Rounds of probes since the start").follow(
        lambda: float(prober.probes)
    )
    registry.gauge("squall_datacenter_probes_missed", "Of these, without any answer").follow(
        lambda: float(prober.misses)
    )
    registry.gauge(
        "squall_datacenters_silent_together",
        "1 while most datacenters fell silent at once: check the network of this gate",
    ).follow(lambda: float(known.guard_holds))


def part_counter(registry: Registry) -> Callable[[str, str], None]:
    """Returns a function that counts what happened to a part of a job, by datacenter."""
    counted = registry.counters(
        "squall_routed_parts_total",
        "Parts of jobs that were assigned to a datacenter, or refused by it",
        ["event", "datacenter"],
    )
    return lambda event, datacenter: counted.with_labels(event, datacenter).add()


def _each(
    registry: Registry,
    known: KnownDatacenters,
    name: str,
    text: str,
    value: Callable[[KnownDatacenter], float],
) -> None:
    family = registry.gauges(name, text, ["datacenter"])
    for each in known:
        family.with_labels(each.name).follow(lambda each=each: value(each))
