"""The table of workflow states, as a matrix."""

from __future__ import annotations

from itertools import product

import pytest

from squall.cluster.datacenter.workflow_states import (
    RETRY_PATH,
    TRANSITIONS,
    WorkflowState,
    allowed,
    public,
)

S = WorkflowState
CATALOGUE = {
    (S.PENDING, S.DISPATCHED),
    (S.PENDING, S.CANCELLING),
    (S.PENDING, S.CANCELLED),
    (S.PENDING, S.FAILED),
    (S.DISPATCHED, S.RUNNING),
    (S.DISPATCHED, S.COMPLETED),
    (S.DISPATCHED, S.PENDING),
    (S.DISPATCHED, S.CANCELLING),
    (S.DISPATCHED, S.CANCELLED),
    (S.DISPATCHED, S.FAILED),
    (S.RUNNING, S.COMPLETED),
    (S.RUNNING, S.FAILED),
    (S.RUNNING, S.CANCELLING),
    (S.FAILED, S.FAILED_CANCELING_DEPENDENTS),
    (S.FAILED, S.CANCELLED),
    (S.FAILED_CANCELING_DEPENDENTS, S.FAILED_READY_FOR_RETRY),
    (S.FAILED_CANCELING_DEPENDENTS, S.CANCELLED),
    (S.FAILED_READY_FOR_RETRY, S.PENDING),
    (S.FAILED_READY_FOR_RETRY, S.CANCELLED),
    (S.CANCELLING, S.CANCELLED),
    (S.CANCELLING, S.COMPLETED),
    (S.CANCELLING, S.FAILED),
}


@pytest.mark.parametrize(("before", "after"), list(product(S, S)), ids=lambda s: s.value)
def test_every_pair_of_states_is_allowed_or_not_as_the_table_says(before: S, after: S) -> None:
    assert allowed(before, after) == ((before, after) in CATALOGUE)


def test_there_are_nine_states_and_two_have_no_way_out() -> None:
    assert len(TRANSITIONS) == 9
    assert [state for state, out in TRANSITIONS.items() if not out] == [S.COMPLETED, S.CANCELLED]


def test_the_way_back_into_the_queue_is_a_path_of_allowed_steps() -> None:
    for before, after in zip((S.DISPATCHED, *RETRY_PATH), RETRY_PATH, strict=False):
        assert allowed(before, after)


def test_people_see_failed_and_cancelled_only_when_that_is_final() -> None:
    shown = {public(state, over=False) for state in S if state not in (S.COMPLETED, S.CANCELLED)}
    assert shown == {"pending", "preparing", "running", "retrying", "cancelling"}
    assert public(S.FAILED, over=True) == "failed"
