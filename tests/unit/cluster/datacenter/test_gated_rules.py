"""Jobs that gates hand over: accept, start, cancel, deliver, forget, and whose word counts."""

from __future__ import annotations

import msgspec

from squall.cluster.datacenter.commands import (
    Accepted,
    AcceptJob,
    AdjustHeld,
    CancelHeld,
    CommandOutcome,
    ConcludeWorkflows,
    Conclusion,
    Configure,
    DisownHeld,
    FinishJob,
    ForgetGated,
    KnowGates,
    MarkDelivered,
    Purge,
    PurgeGated,
    Rejected,
    StartHeld,
)
from squall.cluster.datacenter.gated_records import GatedTry
from squall.cluster.datacenter.gated_rules import CLOSED_KEEP_MS
from squall.cluster.protocol.gates.gate_messages import WorkflowAdjustment
from squall.cluster.protocol.gates.handover_keys import GateFence, HandoverNumber
from squall.cluster.protocol.job_keys import JobId
from tests.fakes.datacenter import Log, creation, submission, workflow

GATE_JOB = JobId("g1-7")
FIRST = GateFence("g1", 0, 1)
LATER = GateFence("g1", 0, 2)
RECOVERED = GateFence("g2", 1000, 1, ("g1",))
ONE, TWO = HandoverNumber(1), HandoverNumber(2)


def log() -> Log:
    made = Log()
    assert isinstance(made.apply(Configure(group="dc", lease_ms=5000)), Accepted)
    return made


def accept(number: HandoverNumber = ONE, fence: GateFence = FIRST, refusal: str = "") -> AcceptJob:
    return AcceptJob(
        gate_job=GATE_JOB,
        datacenter="eu",
        handover=number,
        fence=fence,
        create=creation(submission(workflow("A"))),
        refusal=refusal,
    )


def start(number: HandoverNumber = ONE, fence: GateFence = FIRST) -> StartHeld:
    return StartHeld(gate_job=GATE_JOB, handover=number, fence=fence, timeout_ms=9000)


def cancel(number: HandoverNumber = ONE, fence: GateFence = FIRST) -> CancelHeld:
    return CancelHeld(gate_job=GATE_JOB, handover=number, fence=fence, reason="moved", now=True)


def forget(number: HandoverNumber = ONE, fence: GateFence = FIRST) -> ForgetGated:
    return ForgetGated(gate_job=GATE_JOB, handover=number, fence=fence)


def must(made: Log, command: object) -> Accepted:
    outcome: CommandOutcome = made.apply(command)  # type: ignore[arg-type]
    assert isinstance(outcome, Accepted), outcome
    return outcome


def tried(made: Log, number: HandoverNumber = ONE) -> GatedTry:
    found = made.machine.tables.gated[GATE_JOB].find(number)
    assert found is not None
    return found


def end(made: Log, number: HandoverNumber = ONE, outcome: str = "completed") -> None:
    """The local job is over, as the director ends it."""
    job = JobId(f"{GATE_JOB}.eu{number}")
    must(
        made,
        ConcludeWorkflows(
            job=job,
            conclusions=(Conclusion(workflow="A", outcome="skipped"),),
        ),
    )
    status = "cancelled" if made.machine.tables.jobs[job].stop else outcome
    must(made, FinishJob(job=job, status=status, result="r" * 64, keep_ms=1000))  # type: ignore[arg-type]


def test_an_accepted_part_is_held_and_named_after_its_handover() -> None:
    made = log()
    job = must(made, accept()).job
    record = made.machine.tables.jobs[job]
    assert (job, record.held, record.undelivered) == ("g1-7.eu1", True, True)
    assert tried(made).state == "accepted"
    assert not must(made, accept()).changed


def test_a_part_leaves_the_key_of_its_job_to_direct_submissions() -> None:
    made = log()
    must(made, accept())
    assert must(made, creation(submission(workflow("B")))).job == "dc-3"


def test_a_refusal_is_stored() -> None:
    made = log()
    must(made, accept(refusal="the queue is full"))
    must(made, accept())
    assert (tried(made).state, tried(made).reason) == ("refused", "the queue is full")
    assert not made.machine.tables.jobs


def test_a_start_acts_only_on_an_accepted_part() -> None:
    made = log()
    assert not must(made, start()).changed
    assert not made.machine.tables.gated
    job = must(made, accept()).job
    assert must(made, start()).changed
    record = made.machine.tables.jobs[job]
    assert (record.held, record.deadline_ms, tried(made).state) == (
        False,
        made.group_ms + 9000,
        "started",
    )
    assert not must(made, start()).changed


def test_the_cancellation_of_an_unknown_part_leaves_a_tombstone() -> None:
    made = log()
    must(made, cancel())
    assert not must(made, accept()).changed
    assert not must(made, start()).changed
    assert tried(made).state == "cancelled" and not made.machine.tables.jobs


def test_a_higher_number_cancels_the_lower_ones() -> None:
    made = log()
    first = must(made, accept()).job
    must(made, accept(TWO))
    assert made.machine.tables.jobs[first].stop == "cancelled"
    assert not must(made, start()).changed
    end(made)
    assert tried(made).state == "cancelled"


def test_a_lower_number_than_the_highest_creates_nothing() -> None:
    made = log()
    must(made, accept(TWO))
    must(made, accept(ONE))
    assert tried(made).state == "cancelled"
    assert list(made.machine.tables.jobs) == ["g1-7.eu2"]


def test_a_part_that_ends_before_its_start_is_refused_and_after_it_ended() -> None:
    made = log()
    must(made, accept())
    end(made, outcome="timeout")
    assert (tried(made).state, tried(made).is_final) == ("refused", False)
    must(made, accept(TWO))
    must(made, start(TWO))
    end(made, TWO)
    assert (tried(made, TWO).state, tried(made, TWO).outcome) == ("ended", "completed")


def test_a_result_is_kept_until_the_gates_have_it() -> None:
    made = log()
    must(made, KnowGates(group="g1", addresses=("h:1",)))
    job = must(made, accept()).job
    must(made, start())
    end(made)
    made.group_ms += 10_000_000
    purge = Purge(jobs=(job,), early=True)
    assert not must(made, purge).changed
    must(
        made,
        MarkDelivered(gate_job=GATE_JOB, handover=ONE, revision=tried(made).revision, group="g1"),
    )
    assert made.machine.tables.jobs[job].purge_ms == made.group_ms + 1000
    assert must(made, purge).changed


def test_a_forgotten_job_is_not_created_again_for_a_day() -> None:
    made = log()
    must(made, accept())
    must(made, cancel())
    # It is not over yet, so it stays open and the gates ask again.
    must(made, forget())
    assert not made.machine.tables.gated[GATE_JOB].closed
    end(made)
    must(made, forget())
    must(made, accept(TWO))
    must(made, start())
    assert made.machine.tables.gated[GATE_JOB].closed and len(made.machine.tables.jobs) == 1
    made.group_ms += CLOSED_KEEP_MS - 1
    assert not must(made, PurgeGated(jobs=(GATE_JOB,))).changed
    made.group_ms += 1
    assert must(made, PurgeGated(jobs=(GATE_JOB,))).changed


def test_a_former_primary_of_the_gates_is_refused() -> None:
    made = log()
    must(made, accept(fence=LATER))
    for command in (start(), cancel(), forget(), accept(TWO)):
        assert isinstance(made.apply(command), Rejected)


def test_recovered_gates_are_obeyed_and_the_former_ones_refused_for_good() -> None:
    made = log()
    must(made, accept())
    must(made, start(fence=RECOVERED))
    assert isinstance(made.apply(cancel(fence=GateFence("g1", 0, 99))), Rejected)
    assert isinstance(made.apply(cancel(fence=GateFence("g3", 5000, 1, ("g1",)))), Rejected)


def test_other_gates_have_no_say_in_a_job() -> None:
    made = log()
    assert isinstance(made.apply(accept(fence=GateFence("g9", 9, 9))), Rejected)


def test_gates_that_were_replaced_are_refused_also_for_jobs_of_their_own() -> None:
    made = log()
    must(made, KnowGates(group="g1", addresses=("h:1",)))
    must(made, accept())
    must(made, KnowGates(group="g2", former=("g1",), addresses=("h:2",)))
    assert isinstance(made.apply(start()), Rejected)
    assert isinstance(made.apply(KnowGates(group="g1", addresses=("h:1",))), Rejected)
    assert list(made.machine.tables.gates) == ["g2"]


def test_recovered_gates_get_every_report_again() -> None:
    made = log()
    must(made, KnowGates(group="g1", addresses=("h:1",)))
    must(made, accept(refusal="full"))
    must(made, MarkDelivered(gate_job=GATE_JOB, handover=ONE, revision=1, group="g1"))
    must(made, KnowGates(group="g2", former=("g1",), addresses=("h:2",)))
    assert not tried(made).is_delivered
    # The answer of the former gates was under way.
    late = MarkDelivered(gate_job=GATE_JOB, handover=ONE, revision=1, group="g1")
    assert isinstance(made.apply(late), Rejected)


def test_a_part_that_the_gates_do_not_know_ends_and_closes_by_itself() -> None:
    made = log()
    must(made, KnowGates(group="g1", addresses=("h:1",)))
    job = must(made, accept()).job
    must(made, start())
    must(made, DisownHeld(gate_job=GATE_JOB, handover=ONE, group="g1", reason="not known"))
    assert made.machine.tables.jobs[job].stop == "cancelled"
    end(made)
    assert made.machine.tables.gated[GATE_JOB].closed


def test_forget_ends_the_handovers_that_the_gates_do_not_name() -> None:
    made = log()
    must(made, accept())
    job = must(made, accept(TWO)).job
    must(made, start(TWO))
    end(made)
    must(made, forget(ONE, RECOVERED))
    assert made.machine.tables.jobs[job].stop == "cancelled"
    end(made, TWO)
    must(made, forget(ONE, RECOVERED))
    assert made.machine.tables.gated[GATE_JOB].closed


def test_the_latest_adjustment_of_the_gates_wins() -> None:
    made = log()
    job = must(made, accept()).job
    must(made, start())

    def adjust(seq: int, rate: float) -> AdjustHeld:
        return AdjustHeld(
            gate_job=GATE_JOB,
            handover=ONE,
            fence=FIRST,
            adjust_seq=seq,
            workflows=(WorkflowAdjustment(workflow="A", rate_per_s=rate),),
            extension_ms=seq * 1000,
        )

    must(made, adjust(2, 20.0))
    assert not must(made, adjust(1, 10.0)).changed
    record = made.machine.tables.jobs[job]
    assert (record.workflows[0].adjustment.rate_per_s, record.extension_ms) == (20.0, 2000)


def test_a_direct_submission_is_left_to_the_gates_once_they_are_known() -> None:
    made = log()
    before = creation(submission(workflow("A")), "before")
    job = must(made, before).job
    must(made, KnowGates(group="g1", addresses=("h:1",)))
    assert must(made, before).job == job, "a repeated submission finds its job"
    after = creation(submission(workflow("A")), "after")
    assert isinstance(made.apply(after), Rejected)
    assert must(made, msgspec.structs.replace(after, direct=True)).changed


def test_the_gated_jobs_are_part_of_a_captured_state() -> None:
    made = log()
    must(made, KnowGates(group="g1", addresses=("h:1",)))
    must(made, accept())
    other = log().machine
    other.load(made.machine.capture().slices())
    assert other.digest() == made.machine.digest()
    assert other.tables.gated == made.machine.tables.gated
