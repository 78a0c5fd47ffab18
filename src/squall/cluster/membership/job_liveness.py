"""The two layers of liveness: is the node alive, and does it respond for this job?

The first is what membership says, the second the age of the node's session for the job (R4). This
replaces job suspicions with timers of their own (CLUSTER.md S).
"""

from __future__ import annotations

from enum import StrEnum

from squall.cluster.membership.effects import State


class NodeStatus(StrEnum):
    ALIVE = "alive"
    SUSPECTED_GLOBAL = "suspected_global"
    SUSPECTED_JOB = "suspected_job"
    DEAD_GLOBAL = "dead_global"
    DEAD_JOB = "dead_job"

    @property
    def is_alive(self) -> bool:
        """Whether the node's running work goes on. A suspected node keeps it and gets no more."""
        return self not in (NodeStatus.DEAD_GLOBAL, NodeStatus.DEAD_JOB)

    @property
    def takes_new_work(self) -> bool:
        return self is NodeStatus.ALIVE


def status_for_job(
    state: State | None,
    session_age_s: float,
    *,
    suspect_after_s: float,
    dead_after_s: float,
) -> NodeStatus:
    """The status of a node for one job. `state` is None where membership is off or has never heard
    of the node: then the session alone decides. Death of the node covers all its jobs; silence
    for one job says nothing about another."""
    if state in (State.DEAD, State.LEFT, State.FORGOTTEN):
        return NodeStatus.DEAD_GLOBAL
    if session_age_s >= dead_after_s:
        return NodeStatus.DEAD_JOB
    if state is State.SUSPECT:
        return NodeStatus.SUSPECTED_GLOBAL
    if session_age_s >= suspect_after_s:
        return NodeStatus.SUSPECTED_JOB
    return NodeStatus.ALIVE
