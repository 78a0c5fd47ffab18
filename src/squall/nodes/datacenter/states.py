"""The ten states of a workflow and the changes between them that exist.

One table; nothing else decides whether a change is allowed. A change that is not in the
table changes nothing and is an error of whoever asked for it. Lost shares of a running
workflow do not change its state: they are refilled as segments. A workflow whose shares
are lost before its start goes the whole way from FAILED back to PENDING; its dependents
are untouched, because they cannot have begun.
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
    """Terminal when the workflow has an outcome; else on its way to be tried again."""
    FAILED_CANCELING_DEPENDENTS = "failed_canceling_deps"
    FAILED_READY_FOR_RETRY = "failed_ready"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"
    AGGREGATED = "aggregated"
    """Another word for COMPLETED; no command leads to it."""


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
    _S.RUNNING: (_S.COMPLETED, _S.FAILED, _S.CANCELLING, _S.AGGREGATED),
    _S.FAILED: (_S.FAILED_CANCELING_DEPENDENTS, _S.CANCELLED),
    _S.FAILED_CANCELING_DEPENDENTS: (_S.FAILED_READY_FOR_RETRY, _S.CANCELLED),
    _S.FAILED_READY_FOR_RETRY: (_S.PENDING, _S.CANCELLED),
    _S.CANCELLING: (_S.CANCELLED, _S.COMPLETED, _S.FAILED),
    _S.COMPLETED: (),
    _S.CANCELLED: (),
    _S.AGGREGATED: (),
}
"""CANCELLING may end as COMPLETED or FAILED: what counts is the order in the log, and a
workflow that ended by itself before the stop reached it has completed."""

RETRY_PATH = (
    _S.FAILED,
    _S.FAILED_CANCELING_DEPENDENTS,
    _S.FAILED_READY_FOR_RETRY,
    _S.PENDING,
)
"""The way back of a workflow that lost a share before it started."""


def allowed(before: WorkflowState, after: WorkflowState) -> bool:
    return after in TRANSITIONS[before]


def public(state: WorkflowState, over: bool) -> str:
    """As people see it: failed and cancelled only once that is final."""
    if over:
        return {_S.AGGREGATED: "completed"}.get(state, state.value)
    return {
        _S.DISPATCHED: "preparing",
        _S.FAILED: "retrying",
        _S.FAILED_CANCELING_DEPENDENTS: "retrying",
        _S.FAILED_READY_FOR_RETRY: "pending",
    }.get(state, state.value)
