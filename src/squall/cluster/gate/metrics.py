"""The metrics of a gate: jobs by state. There is no label per job, so that the number of series
stays bounded. Those of datacenters are in `routing_metrics`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

from squall.cluster.assignments.state_machine import Assignments
from squall.cluster.ledger.interface import Ledger
from squall.cluster.protocol.messages import JobState
from squall.runtime.metrics import Registry


def gate_metrics(
    registry: Registry,
    machine: Assignments,
    ledger: Ledger,
) -> None:
    jobs = registry.gauges("squall_jobs", "Jobs by state", ["state"])
    for state in get_args(JobState):
        jobs.with_labels(state).follow(_jobs_in(machine, state))
    registry.gauge("squall_applied_op", "The last command that was applied").follow(
        lambda: float(ledger.applied)
    )
    registry.gauge("squall_leads", "1 on the gate that leads").follow(
        lambda: 1.0 if ledger.is_primary else 0.0
    )
    registry.gauge("squall_alarms", "Broken job invariants").follow(
        lambda: float(len(machine.tables.alarms))
    )


def _jobs_in(machine: Assignments, state: str) -> Callable[[], float]:
    return lambda: float(sum(job.state == state for job in machine.tables.jobs.values()))
