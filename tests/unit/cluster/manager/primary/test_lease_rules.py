"""When an attempt may be lost, when its silence ends, what its share needs then."""

from __future__ import annotations

import math

import msgspec
import pytest

from squall.cluster.datacenter.records import (
    AttemptFacts,
    JobRecord,
    RecordFacts,
    WorkflowRecord,
)
from squall.cluster.manager.primary.lease_rules import (
    Grants,
    ShareNeed,
    lease_end,
    lost_at,
    remaining_s,
    share_need,
)
from squall.cluster.protocol.job_keys import Attempt, AttemptKey, JobId
from squall.cluster.protocol.messages import Counters
from squall.cluster.protocol.timers import Timers
from squall.stats.manifest import Profile
from tests.fakes.datacenter import submission, workflow

TIMERS = Timers()
KEY = AttemptKey(JobId("g-1"), "A", 0, Attempt(1))
LIVE = AttemptFacts(
    number=Attempt(1), node="w1", boot="b", slot=0, process=0, created_ms=0, lease_ms=60_000
)
CLOSED = Profile(model="closed", vus=2, max_vus=2, duration_s=100.0)
WORKFLOW = WorkflowRecord(name="A", layer=0, started_ms=10_000, shares=1)
JOB = JobRecord(
    job=JobId("g-1"),
    op=1,
    principal="ann",
    key="k",
    fingerprint="",
    submission=submission(workflow("A")),
    created_ms=0,
    workflows=(WORKFLOW,),
)
replace = msgspec.structs.replace


@pytest.mark.parametrize(
    ("granted", "began", "dispatched", "latest"),
    [(50.0, 0.0, 0.0, 50.0), (50.0, 70.0, 0.0, 70.0), (50.0, 0.0, 90.0, 90.0), (None, 3, 2, 3)],
)
def test_a_loss_waits_after_the_latest_of_grant_leading_and_dispatch(
    granted: float | None, began: float, dispatched: float, latest: float
) -> None:
    grants = Grants(granted, began, dispatched)
    assert lost_at(LIVE, grants, TIMERS) == pytest.approx(latest + 1.1 * 60 + 1)


def test_the_longest_lease_counts_not_the_one_of_the_settings() -> None:
    longer = replace(LIVE, lease_ms=100_000)
    assert lost_at(longer, Grants(0.0, 0.0, 0.0), TIMERS) == pytest.approx(111.0)


def test_a_proven_death_is_a_loss_at_once() -> None:
    assert lost_at(replace(LIVE, dead=True), Grants(50.0, 60.0, 0.0), TIMERS) == -math.inf


def test_the_silence_ends_with_the_lease_or_now() -> None:
    grants = Grants(50.0, 0.0, 0.0)
    assert lease_end(LIVE, grants, 200.0) == 110.0
    assert lease_end(LIVE, grants, 80.0) == 80.0


def need(
    *attempts: AttemptFacts,
    at_s: float = 20.0,
    profile: Profile = CLOSED,
    iterations: int = 0,
    job: JobRecord = JOB,
    wf: WorkflowRecord = WORKFLOW,
    may_return: bool = True,
) -> ShareNeed:
    now_ms = 10_000 + int(at_s * 1000)
    return share_need(job, wf, profile, attempts, iterations, now_ms, TIMERS, may_return=may_return)


def lost(at_s: float = 15.0, made: int = 0, number: int = 1) -> AttemptFacts:
    cut = RecordFacts(key=KEY, complete=False, counters=Counters(made=made))
    ended_ms = 10_000 + int(at_s * 1000)
    return replace(
        LIVE, number=Attempt(number), state="lost", ended_ms=ended_ms, reason="gone", facts=cut
    )


def ended(cut: str = "", error: str = "") -> AttemptFacts:
    return replace(LIVE, state="ended", facts=RecordFacts(key=KEY, cut=cut, error=error))


def test_a_share_with_a_live_attempt_needs_nothing() -> None:
    assert need(LIVE).kind == "live"


def test_an_end_by_itself_or_by_an_error_settles_a_share() -> None:
    assert need(ended()).kind == "settled"
    assert need(ended(error="boom")).kind == "settled"
    assert need(ended(error="boom", cut="stopped")).kind == "settled"


def test_a_lost_or_cut_share_is_refilled_while_enough_of_its_time_is_left() -> None:
    assert need(lost()).kind == "refill"
    assert need(ended(cut="lease ended")).kind == "refill"
    assert need(lost(), at_s=98.0).kind == "refill"
    assert need(lost(97.5), at_s=98.1).kind == "wait"
    assert need(ended(cut="lease ended"), at_s=98.1).kind == "settled"


def test_the_outbox_is_awaited_for_a_while_at_most_to_the_deadline() -> None:
    waiting = need(lost(97.5), at_s=99.0)
    assert waiting == ShareNeed("wait", 10_000 + 97_500 + 2_000)
    assert need(lost(97.5), at_s=99.6).kind == "settled"
    limited = replace(JOB, deadline_ms=108_500, extension_ms=700)
    assert need(lost(97.5), at_s=99.0, job=limited).until_ms == 109_200


def test_nothing_is_awaited_of_a_boot_that_is_gone() -> None:
    assert need(replace(lost(97.5), dead=True), at_s=99.0).kind == "settled"
    # Another boot registered without this record.
    assert need(lost(97.5), at_s=99.0, may_return=False).kind == "settled"


def test_a_late_record_settles_a_share_that_was_waiting() -> None:
    whole = replace(lost(97.5), facts=RecordFacts(key=KEY))
    assert need(whole, at_s=99.0).kind == "settled"


def test_a_stopped_job_or_workflow_refills_nothing() -> None:
    assert need(lost(), job=replace(JOB, stop="cancelled")).kind == "settled"
    assert need(lost(), wf=replace(WORKFLOW, stop="failed")).kind == "settled"


def test_a_share_is_given_out_again_three_times_and_the_fourth_loss_exhausts_it() -> None:
    three = (lost(), lost(number=2), lost(number=3))
    assert need(*three).kind == "refill"
    assert need(*three, lost(number=4)) == ShareNeed("exhausted", reason="gone")
    cut = replace(ended(cut="core process 3 ended"), number=Attempt(4))
    assert need(*three, cut).kind == "exhausted"


def test_iterations_that_were_reported_are_not_made_again() -> None:
    profile = replace(CLOSED, model="iterations", iterations=100)
    assert need(lost(made=30), profile=profile, iterations=100) == ShareNeed(
        "refill", iterations_done=30
    )
    two = (lost(made=30), lost(made=50, number=2))
    assert need(*two, profile=profile, iterations=100).iterations_done == 80
    done = need(lost(made=100), at_s=16.0, profile=profile, iterations=100)
    assert done.kind == "wait", "all made; its record may still come"


def test_set_up_work_has_its_whole_time_again() -> None:
    once = replace(CLOSED, model="once")
    assert remaining_s(WORKFLOW, once, 1_000_000) == 100.0
    assert remaining_s(WORKFLOW, CLOSED, 60_000) == 50.0
    assert need(lost(300.0), at_s=400.0, profile=once).kind == "refill"
