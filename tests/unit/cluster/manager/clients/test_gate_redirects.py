"""A manager names a gate for a job of the gates."""

from __future__ import annotations

from squall.cluster.datacenter.commands import Configure, KnowGates
from squall.cluster.manager.clients.api import gate_of
from squall.cluster.protocol.job_keys import JobId
from tests.fakes.datacenter import Log


def test_a_job_of_the_gates_and_of_those_before_them_is_theirs() -> None:
    log = Log()
    log.apply(Configure(group="dc", lease_ms=5000))
    tables = log.machine.tables
    assert gate_of(tables, JobId("g1-7")) == ""
    log.apply(KnowGates(group="g2", former=("g1",), addresses=("h:1", "h:2")))
    for job in ("g1-7", "g2-9"):
        assert gate_of(tables, JobId(job)) in ("h:1", "h:2")
    for job in ("dc-3", "g3-1", ""):
        assert gate_of(tables, JobId(job)) == ""
