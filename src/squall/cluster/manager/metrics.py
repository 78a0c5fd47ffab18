"""The metrics of a manager: counts by state. There is no label per job, so that the number of
series stays bounded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

from squall.cluster.datacenter.state_machine import Datacenter
from squall.cluster.datacenter.workflow_states import WorkflowState
from squall.cluster.ledger.interface import Ledger
from squall.cluster.protocol.messages import JobState
from squall.runtime.metrics import Registry


def manager_metrics(registry: Registry, machine: Datacenter, ledger: Ledger) -> None:
    jobs = registry.gauges("squall_jobs", "Jobs by state", ["state"])
    for state in get_args(JobState):
        jobs.with_labels(state).follow(_jobs_in(machine, state))
    workflows = registry.gauges("workflow_state_count", "Workflows by state", ["state"])
    for state in WorkflowState:
        workflows.with_labels(state.value).follow(_workflows_in(machine, state))
    workers = registry.gauges("squall_workers", "Workers by state", ["state"])
    for state, count in _WORKERS.items():
        workers.with_labels(state).follow(lambda count=count: count(machine))
    registry.gauge("squall_cores", "Cores of all workers").follow(
        lambda: float(sum(worker.cores for worker in machine.tables.workers.values()))
    )
    registry.gauge("squall_cores_taken", "Cores that a job holds").follow(
        lambda: float(len(machine.tables.slots))
    )
    registry.gauge("squall_applied_op", "The last command that was applied").follow(
        lambda: float(ledger.applied)
    )
    registry.gauge("squall_leads", "1 on the manager that leads").follow(
        lambda: 1.0 if ledger.is_primary else 0.0
    )
    registry.gauge("squall_alarms", "Broken job invariants").follow(
        lambda: float(len(machine.tables.alarms))
    )


def _jobs_in(machine: Datacenter, state: str) -> Callable[[], float]:
    return lambda: float(sum(job.state == state for job in machine.tables.jobs.values()))


def _workflows_in(machine: Datacenter, state: WorkflowState) -> Callable[[], float]:
    return lambda: float(
        sum(w.state is state for job in machine.tables.jobs.values() for w in job.workflows)
    )


_WORKERS: dict[str, Callable[[Datacenter], float]] = {
    "active": lambda machine: _workers(machine, draining=False, gone=False),
    "draining": lambda machine: _workers(machine, draining=True, gone=False),
    "gone": lambda machine: _workers(machine, draining=None, gone=True),
}


def _workers(machine: Datacenter, *, draining: bool | None, gone: bool) -> float:
    found = [w for w in machine.tables.workers.values() if w.gone == gone]
    return float(sum(draining is None or worker.draining == draining for worker in found))
