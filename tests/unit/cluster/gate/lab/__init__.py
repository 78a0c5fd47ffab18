"""Reports and statuses of datacenters for the tests of gates."""

from __future__ import annotations

import msgspec

from squall.cluster.gate.routing.health import Health
from squall.cluster.gate.routing.scores import DatacenterStatus
from squall.cluster.protocol.gates.federation_messages import DatacenterState

GOOD = DatacenterState(
    datacenter="eu",
    group="a1",
    reported_by="m1",
    epoch=0,
    committed=100,
    leader="m1",
    leads=True,
    leader_address="10.0.0.1:7400",
    managers=["10.0.0.1:7400", "10.0.0.2:7400", "10.0.0.3:7400"],
    managers_heard=3,
    managers_total=3,
    workers=4,
    healthy=4,
    cores=32,
    free=12,
)


def report(**changed: object) -> DatacenterState:
    return msgspec.structs.replace(GOOD, **changed)


def status(
    name: str,
    health: Health = Health.HEALTHY,
    rtt_ms: float | None = 20.0,
    *,
    cores: int = 32,
    free: int = 32,
    queued: int = 0,
    suspected: bool = False,
    held: bool = False,
    cool_down: float = 1.0,
    reason: str = "",
) -> DatacenterStatus:
    """A datacenter with all of its managers and a settled round trip."""
    return DatacenterStatus(
        name=name,
        health=health,
        reason=reason,
        suspected=suspected,
        held=held,
        cores=cores,
        free=free,
        queued=queued,
        managers_heard=3,
        managers_total=3,
        rtt_ms=rtt_ms,
        samples=0 if rtt_ms is None else 20,
        cool_down=cool_down,
    )
