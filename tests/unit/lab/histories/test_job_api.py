"""The model of the job API permits what docs/guarantees.md promises, and nothing else."""

from __future__ import annotations

from lab.histories.job_api import (
    CONFLICT,
    NOT_FOUND,
    Adjust,
    Adjusted,
    Cancel,
    Cancelled,
    Extend,
    Extended,
    JobAnswer,
    JobModel,
    JobOperation,
    JobRequest,
    Look,
    Recorded,
    Submit,
    Submitted,
    Viewed,
    counted,
    problem_of,
    shown_adjustment,
)
from lab.histories.linearizability import NEVER

QUEUED = JobModel(runs=False, cap_ms=60_000)
RUNS = JobModel(runs=True, cap_ms=60_000)
CREATED = (Submit("a"), Submitted("j1", created=True))
STATUS = Look("j1")


def problem(*steps: tuple[JobRequest, JobAnswer | None], model: JobModel = QUEUED) -> str:
    """Checks operations that follow each other; one without an answer stays open."""
    recorded = [
        Recorded(
            "key",
            JobOperation("c", request, at, NEVER if answer is None else at + 0.5, answer),
        )
        for at, (request, answer) in enumerate(steps)
    ]
    return problem_of(recorded, model)


def shows(state: str, adjusted: str = "", job: str = "j1") -> tuple[JobRequest, JobAnswer]:
    return Look(job), Viewed(job, state, adjusted)


def test_a_key_makes_one_job() -> None:
    assert not problem(CREATED, (Submit("a"), Submitted("j1", created=False)))
    assert problem(CREATED, (Submit("a"), Submitted("j2", created=False)))
    assert problem(CREATED, (Submit("a"), Submitted("j1", created=True)))


def test_other_content_under_a_used_key_is_a_conflict() -> None:
    assert not problem(CREATED, (Submit("b"), CONFLICT))
    assert problem(CREATED, (Submit("b"), Submitted("j1", created=False)))
    assert problem(CREATED, (Submit("a"), CONFLICT))


def test_a_submission_without_an_answer_may_have_made_the_job() -> None:
    lost = (Submit("a"), None)
    assert not problem(lost, (Submit("a"), Submitted("j1", created=False)), shows("queued"))
    assert not problem(lost, (Submit("b"), Submitted("j1", created=True)))
    assert not problem(lost, (Submit("b"), CONFLICT), shows("queued"))
    assert problem(lost, (Submit("b"), CONFLICT), shows("queued"), shows("queued", job="j2"))


def test_an_accepted_job_is_seen_by_every_later_read() -> None:
    assert problem(CREATED, (STATUS, NOT_FOUND))
    assert problem(CREATED, (Look("", "list"), NOT_FOUND))
    assert not problem((Look("", "list"), NOT_FOUND), CREATED, shows("queued"))


def test_a_cancelled_job_never_runs_again() -> None:
    cancelled = (Cancel("j1", now=False), Cancelled(repeated=False))
    ends = (shows("stopping"), shows("completing"), shows("cancelled"))
    assert not problem(CREATED, shows("queued"), cancelled, *ends)
    assert problem(CREATED, cancelled, shows("queued"))
    assert problem(CREATED, shows("running"), cancelled, shows("running"), model=RUNS)
    assert problem(CREATED, cancelled, *reversed(ends))


def test_only_the_first_cancellation_is_not_repeated() -> None:
    first = (Cancel("j1", now=False), Cancelled(repeated=False))
    now = (Cancel("j1", now=True), Cancelled(repeated=False))
    assert not problem(CREATED, first, (Cancel("j1", now=False), Cancelled(repeated=True)))
    assert problem(CREATED, first, first)
    assert not problem(CREATED, first, now), "the second one ends what still runs"
    assert problem(CREATED, now, first)


def test_nothing_is_cancelled_unless_a_client_asks() -> None:
    assert problem(CREATED, shows("cancelled"))
    assert problem(CREATED, shows("stopping"))
    assert not problem(CREATED, (Cancel("j1", now=False), None), shows("cancelled"))


def test_a_terminal_state_is_final() -> None:
    assert not problem(CREATED, shows("running"), shows("completed"), model=RUNS)
    assert problem(CREATED, shows("completed"), shows("running"), model=RUNS)
    assert problem(CREATED, shows("completed"), shows("failed"), model=RUNS)
    assert problem(CREATED, shows("running"), model=QUEUED), "there is no worker"


def test_an_adjustment_takes_effect_once_and_is_shown() -> None:
    five = (Adjust("j1", 5, None), Adjusted(1))
    paused = (Adjust("j1", None, True), Adjusted(2))
    assert not problem(CREATED, five, shows("queued", "5 users"), paused)
    assert not problem(CREATED, five, paused, shows("queued", "5 users, paused"))
    assert problem(CREATED, five, shows("queued", ""))
    assert problem(CREATED, five, (Adjust("j1", None, True), Adjusted(3)))


def test_a_lost_adjustment_may_come_late_but_only_once() -> None:
    lost = (Adjust("j1", 5, None), None)
    seven = (Adjust("j1", 7, None), Adjusted(1))
    assert not problem(CREATED, lost, seven, shows("queued", "7 users"), shows("queued", "5 users"))
    assert problem(
        CREATED, lost, shows("queued", "5 users"), (Adjust("j1", 7, None), Adjusted(2)),
        shows("queued", "5 users"),
    )  # fmt: skip


def test_a_stopped_job_takes_no_adjustment() -> None:
    cancelled = (Cancel("j1", now=False), Cancelled(repeated=False))
    assert not problem(CREATED, cancelled, (Adjust("j1", 5, None), CONFLICT))
    assert problem(CREATED, cancelled, (Adjust("j1", 5, None), Adjusted(1)))
    assert problem(CREATED, (Adjust("j1", 5, None), CONFLICT))


def test_an_extension_names_the_sum() -> None:
    ten, twenty = Extend("j1", 10_000), Extend("j1", 20_000)
    assert not problem(CREATED, (ten, Extended(10_000)), (ten, Extended(10_000)))
    assert not problem(CREATED, (twenty, Extended(20_000)), (ten, Extended(20_000)))
    assert problem(CREATED, (ten, Extended(10_000)), (ten, Extended(20_000)))
    assert not problem(CREATED, (Extend("j1", 99_000), Extended(60_000)))
    assert problem(CREATED, (Extend("j1", 99_000), Extended(99_000)))


def test_a_refusal_that_names_the_end_needs_an_end() -> None:
    cancelled = (Cancel("j1", now=False), Cancelled(repeated=False))
    refused = (Look("j1", "refusal"), CONFLICT)
    assert not problem(CREATED, cancelled, refused, shows("cancelled"))
    assert problem(CREATED, cancelled, refused, shows("stopping"))
    assert problem(CREATED, refused)


def test_keys_are_checked_apart() -> None:
    operation: JobOperation = JobOperation("c", CREATED[0], 0.0, 1.0, CREATED[1])
    recorded = [Recorded("one", operation), Recorded("two", operation)]
    assert not problem_of(recorded, QUEUED)
    assert problem_of([*recorded, recorded[1]], QUEUED)
    assert counted(recorded) == {"submit": 2}


def test_shown_adjustments_read_as_the_product_writes_them() -> None:
    assert shown_adjustment(None, False) == ""
    assert shown_adjustment(1, False) == "1 user"
    assert shown_adjustment(3, True) == "3 users, paused"
