"""The nine states of a workflow and the transitions between them.

Only the table decides whether a transition is allowed; any other one is an error of its caller
and changes nothing. Lost shares of a running workflow do not change its state: they are refilled
as segments (R8). A workflow whose shares are lost before its start goes all the way from FAILED
back to PENDING; its dependents are untouched, because they cannot have begun.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping


class WorkflowState(enum.Enum):
    PENDING = "pending"
    DISPATCHED = "dispatched"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    """Terminal if the workflow has an outcome; otherwise the workflow will be tried again."""
    FAILED_CANCELING_DEPENDENTS = "failed_canceling_deps"
    FAILED_READY_FOR_RETRY = "failed_ready"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"


_S = WorkflowState

TRANSITIONS: Mapping[WorkflowState, tuple[WorkflowState, ...]] = {
    _S.PENDING: (_S.DISPATCHED, _S.CANCELLING, _S.CANCELLED, _S.FAILED),
    _S.DISPATCHED: (
        _S.RUNNING,
        _S.COMPLETED,
        _S.CANCELLING,
        _S.CANCELLED,
        _S.FAILED,
        _S.PENDING,
    ),
    _S.RUNNING: (_S.COMPLETED, _S.FAILED, _S.CANCELLING),
    _S.FAILED: (_S.FAILED_CANCELING_DEPENDENTS, _S.CANCELLED),
    _S.FAILED_CANCELING_DEPENDENTS: (_S.FAILED_READY_FOR_RETRY, _S.CANCELLED),
    _S.FAILED_READY_FOR_RETRY: (_S.PENDING, _S.CANCELLED),
    _S.CANCELLING: (_S.CANCELLED, _S.COMPLETED, _S.FAILED),
    _S.COMPLETED: (),
    _S.CANCELLED: (),
}
"""CANCELLING may end as COMPLETED or FAILED: a workflow that ended by itself before the stop
reached it has completed."""

RETRY_PATH = (
    _S.FAILED,
    _S.FAILED_CANCELING_DEPENDENTS,
    _S.FAILED_READY_FOR_RETRY,
    _S.PENDING,
)
"""The transitions of a workflow that lost a share before it started."""


def allowed(before: WorkflowState, after: WorkflowState) -> bool:
    return after in TRANSITIONS[before]


def public(state: WorkflowState, over: bool) -> str:
    """The state that views show: failed and cancelled only once that is final."""
    if over:
        return state.value
    return {
        _S.DISPATCHED: "preparing",
        _S.FAILED: "retrying",
        _S.FAILED_CANCELING_DEPENDENTS: "retrying",
        _S.FAILED_READY_FOR_RETRY: "pending",
    }.get(state, state.value)
