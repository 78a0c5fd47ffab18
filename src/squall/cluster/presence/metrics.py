"""The metrics of membership on one node."""

from __future__ import annotations

from dataclasses import fields

from squall.cluster.membership.effects import State
from squall.cluster.membership.swim.shared import MembershipCounters
from squall.cluster.presence.driver import MembershipDriver
from squall.runtime.metrics import Registry

SHOWN = (State.ALIVE, State.UNCONFIRMED, State.SUSPECT, State.DEAD, State.LEFT)


def membership_metrics(registry: Registry, driver: MembershipDriver) -> None:
    members = registry.gauges(
        "squall_membership_members", "Other members as this node sees them, by state", ["state"]
    )
    for state in SHOWN:
        members.with_labels(state.value).follow(
            lambda state=state: float(sum(each.state is state for each in driver.members()))
        )
    size = registry.gauges(
        "squall_membership_bytes",
        "Bytes of datagrams of membership since the start, by direction",
        ["direction"],
    )
    size.with_labels("sent").follow(lambda: float(driver.datagrams.bytes_sent))
    size.with_labels("received").follow(lambda: float(driver.datagrams.bytes_received))
    events = registry.gauges(
        "squall_membership_events",
        "What membership counted on this node since it began, by name",
        ["event"],
    )
    for each in fields(MembershipCounters):
        events.with_labels(each.name).follow(
            lambda name=each.name: float(getattr(driver.counters, name))
        )
    registry.gauge(
        "squall_membership_health", "Local health score: 0 healthy, 8 slow or badly connected"
    ).follow(lambda: float(driver.core.health) if driver.core is not None else 0.0)
