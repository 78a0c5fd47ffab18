"""Commands about workers, placements and attempts."""

from __future__ import annotations

import msgspec
import pytest

from squall.cluster.datacenter.commands import (
    Accepted,
    AddWorker,
    Assignment,
    Command,
    ConcludeWorkflows,
    Conclusion,
    Configure,
    DrainWorker,
    EndAttempts,
    FinishJob,
    ForgetWorkers,
    LoseAttempts,
    LoseWorkers,
    LostAttempt,
    Placement,
    PlaceWorkflows,
    RefillShares,
    Rejected,
    ReturnWorkflows,
    Started,
    StartWorkflows,
    StopJob,
    StopWorkflow,
)
from squall.cluster.datacenter.records import RecordFacts
from squall.cluster.datacenter.state_machine import Datacenter
from squall.cluster.group.clients.job_requests import event_lines
from squall.cluster.protocol.job_keys import Attempt, AttemptKey, JobId, ShareKey
from squall.cluster.protocol.messages import Counters
from tests.fakes.datacenter import Log, creation, submission, workflow


def key(job: JobId, name: str = "A", share: int = 0, attempt: int = 1) -> AttemptKey:
    return AttemptKey(job, name, share, Attempt(attempt))


def assigned(share: int, node: str, slot: int, attempt: int = 1, boot: str = "b1") -> Assignment:
    return Assignment(share, Attempt(attempt), node, boot, slot, share)


def place(job: JobId, *assignments: Assignment, name: str = "A") -> PlaceWorkflows:
    placement = Placement(workflow=name, shares=len(assignments), assignments=assignments)
    return PlaceWorkflows(job=job, placements=(placement,))


def record(of: AttemptKey, **fields: object) -> RecordFacts:
    return RecordFacts(key=of, digest=f"d{of.attempt}", size=1, **fields)  # type: ignore[arg-type]


class Set:
    """Two workers of two cores, and jobs with workflows A and B, B after A."""

    def __init__(self) -> None:
        self.log = Log()
        self.ok(Configure(group="g", lease_ms=5000))
        for node in ("w1", "w2"):
            self.ok(AddWorker(node=node, boot="b1", cores=2))
        self.job = self.create("1")
        self.other = self.create("2")

    def create(self, key: str) -> JobId:
        plan = submission(workflow("A", vus=2), workflow("B", "A"), workflow("C", "A", always=True))
        return self.ok(creation(plan, key)).job

    def ok(self, command: Command) -> Accepted:
        outcome = self.log.apply(command)
        assert isinstance(outcome, Accepted), outcome
        return outcome

    def no(self, command: Command, text: str) -> None:
        before = self.log.machine.digest()
        outcome = self.log.apply(command)
        assert isinstance(outcome, Rejected) and text in outcome.text, outcome
        tables = self.log.machine.tables
        tables.op = self.log.op - 1
        assert self.log.machine.digest() == before, "a rejected command changes nothing"
        tables.op = self.log.op

    def state(self, name: str = "A") -> str:
        found = self.log.machine.tables.jobs[self.job].workflow(name)
        assert found is not None
        return found.state.value

    def started(self) -> None:
        self.ok(place(self.job, assigned(0, "w1", 0), assigned(1, "w2", 0)))
        self.ok(StartWorkflows(job=self.job, started=(Started("A", (Attempt(1), Attempt(1))),)))


@pytest.fixture
def world() -> Set:
    return Set()


def test_a_placement_takes_all_its_cores_or_none(world: Set) -> None:
    world.ok(place(world.other, assigned(0, "w2", 1)))
    world.no(place(world.job, assigned(0, "w1", 0), assigned(1, "w2", 1)), f"to {world.other}")
    assert list(world.log.machine.tables.slots) == [("w2", 1)]
    world.ok(place(world.job, assigned(0, "w1", 0), assigned(1, "w2", 0)))
    assert world.state() == "dispatched"
    assert world.log.machine.tables.jobs[world.job].state == "preparing"


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        (assigned(0, "w1", 2), "no core 2"),
        (assigned(0, "w1", -1), "no core -1"),
        (assigned(0, "w9", 0), "not the boot"),
        (assigned(0, "w1", 0, boot="b2"), "not the boot"),
        (assigned(0, "w1", 0, attempt=2), "is not next"),
        (assigned(1, "w1", 0), "not 0 to n - 1"),
    ],
)
def test_a_placement_on_what_is_not_there_is_rejected(
    world: Set, bad: Assignment, text: str
) -> None:
    world.no(place(world.job, bad), text)


def test_a_later_layer_waits_for_the_earlier_one(world: Set) -> None:
    world.no(place(world.job, assigned(0, "w1", 0), name="B"), "earlier layer")
    world.no(place(world.job, assigned(0, "w1", 0), name="X"), "no workflow X")
    world.started()
    world.no(place(world.job, assigned(0, "w1", 1), name="B"), "earlier layer")
    world.no(place(world.job, assigned(0, "w1", 1)), "is running")


def test_shares_of_one_job_may_share_a_core(world: Set) -> None:
    world.ok(place(world.job, assigned(0, "w1", 0), assigned(1, "w1", 0)))
    use = world.log.machine.tables.slots[("w1", 0)]
    assert len(use.attempts) == 2
    world.ok(EndAttempts(ended=(record(key(world.job)),)))
    assert ("w1", 0) in world.log.machine.tables.slots
    world.ok(EndAttempts(ended=(record(key(world.job, share=1)),)))
    assert not world.log.machine.tables.slots


def test_a_start_names_the_current_attempts_of_all_shares(world: Set) -> None:
    world.ok(place(world.job, assigned(0, "w1", 0), assigned(1, "w2", 0)))
    one, two = Attempt(1), Attempt(2)
    world.no(StartWorkflows(job=world.job, started=(Started("A", (one,)),)), "2 shares")
    world.no(StartWorkflows(job=world.job, started=(Started("A", (one, two)),)), "not current")
    world.ok(LoseAttempts(lost=(LostAttempt(key(world.job), "gone"),)))
    world.no(StartWorkflows(job=world.job, started=(Started("A", (one, one)),)), "not current")


def test_a_returned_placement_is_queued_again_when_nothing_of_it_may_run(world: Set) -> None:
    world.ok(place(world.job, assigned(0, "w1", 0), assigned(1, "w2", 0)))
    world.ok(
        ReturnWorkflows(job=world.job, workflows=("A",), returned=(key(world.job),), reason="full")
    )
    assert world.state() == "dispatched"
    world.no(
        StartWorkflows(job=world.job, started=(Started("A", (Attempt(1), Attempt(1))),)),
        "not placed",
    )
    world.ok(EndAttempts(ended=(record(key(world.job, share=1)),)))
    assert world.state() == "pending"
    history = [t.state.value for t in world.log.machine.tables.jobs[world.job].workflows[0].history]
    assert history == ["pending", "dispatched", "pending"]
    world.ok(place(world.job, assigned(0, "w1", 0, attempt=2), assigned(1, "w2", 0, attempt=2)))


def test_a_loss_before_the_start_goes_the_whole_way_of_a_failure(world: Set) -> None:
    world.ok(place(world.job, assigned(0, "w1", 0)))
    world.ok(ReturnWorkflows(job=world.job, workflows=("A",), reason="silent"))
    world.ok(LoseAttempts(lost=(LostAttempt(key(world.job), "gone"),)))
    history = [t.state.value for t in world.log.machine.tables.jobs[world.job].workflows[0].history]
    assert history[1:] == [
        "dispatched",
        "failed",
        "failed_canceling_deps",
        "failed_ready",
        "pending",
    ]


def test_a_new_attempt_needs_the_end_of_the_one_before(world: Set) -> None:
    world.started()
    refill = RefillShares(job=world.job, workflow="A", assignments=(assigned(0, "w2", 1, 2),))
    world.no(refill, "live attempt")
    world.ok(LoseAttempts(lost=(LostAttempt(key(world.job), "gone"),)))
    world.ok(refill)
    world.no(refill, "is not next")
    attempts = world.log.machine.tables.attempts[ShareKey(world.job, "A", 0)]
    assert [a.state for a in attempts] == ["lost", "live"]
    assert attempts[1].refill


def test_a_stopped_workflow_is_not_refilled(world: Set) -> None:
    world.started()
    world.ok(LoseAttempts(lost=(LostAttempt(key(world.job), "gone"),)))
    world.ok(StopJob(job=world.job, kind="cancelled", reason="x"))
    refill = RefillShares(job=world.job, workflow="A", assignments=(assigned(0, "w2", 1, 2),))
    world.no(refill, "being stopped")
    world.no(place(world.job, assigned(0, "w1", 1), name="B"), "")


def test_a_late_record_replaces_the_cut_of_a_lost_attempt_once(world: Set) -> None:
    world.started()
    cut = record(key(world.job), complete=False, silent_from_s=3.0)
    world.ok(LoseAttempts(lost=(LostAttempt(key(world.job), "gone", cut, 5.0),)))
    final = record(key(world.job), counters=Counters(made=9))
    assert world.ok(EndAttempts(ended=(final,))).changed
    assert not world.ok(EndAttempts(ended=(record(key(world.job)),))).changed
    facts = world.log.machine.tables.attempt(key(world.job))
    assert facts is not None and facts.state == "lost" and facts.facts == final


@pytest.mark.parametrize(
    ("dead_ms", "silent_from_s", "when"),
    [
        (8500, 6.0, "died at 7.5 s"),
        (0, 6.0, "last heard at 8.0 s"),
        (0, 0.0, "last heard at 2.0 s"),
    ],
)
def test_the_event_of_a_loss_has_the_time_of_the_death(
    world: Set, dead_ms: int, silent_from_s: float, when: str
) -> None:
    """On the clock of the events, which counts from the creation of the job."""
    world.log.group_ms += 2000
    world.started()
    world.log.group_ms += 15_000
    if dead_ms:
        dead = AddWorker(node="w1", boot="b2", cores=2, dead_boots=("b1",), dead_ms=dead_ms)
        world.ok(dead)
    cut = record(key(world.job), complete=False, silent_from_s=silent_from_s)
    world.ok(LoseAttempts(lost=(LostAttempt(key(world.job), "w1 is gone", cut, 15.0),)))
    tables = world.log.machine.tables
    job = tables.jobs[world.job]
    shown = event_lines(job, tables.shown_events(job))
    assert f"    17.0 s  A share 0 on w1 lost, {when}: w1 is gone" in shown


def test_of_two_cuts_the_one_that_covers_more_is_kept(world: Set) -> None:
    world.started()
    held = record(key(world.job), complete=False, silent_from_s=4.0)
    world.ok(AddWorker(node="w1", boot="b2", cores=2, dead_boots=("b1",), held=(held,)))
    facts = world.log.machine.tables.attempt(key(world.job))
    assert facts is not None and facts.dead and facts.state == "live"
    cut = record(key(world.job), complete=False, silent_from_s=3.0)
    world.ok(LoseAttempts(lost=(LostAttempt(key(world.job), "restarted", cut, 5.0),)))
    facts = world.log.machine.tables.attempt(key(world.job))
    assert facts is not None and facts.facts == held


def test_a_new_boot_ends_what_it_holds_and_proves_only_boots_that_it_names(world: Set) -> None:
    world.started()
    world.ok(AddWorker(node="w1", boot="b2", cores=2))
    facts = world.log.machine.tables.attempt(key(world.job))
    assert facts is not None and not facts.dead
    world.ok(AddWorker(node="w1", boot="b3", cores=2, dead_boots=("b2",)))
    facts = world.log.machine.tables.attempt(key(world.job))
    assert facts is not None and not facts.dead, "b3 knows of b2, not of b1"
    world.ok(AddWorker(node="w1", boot="b4", cores=2, dead_boots=("b3", "b1"), dead_ms=70))
    facts = world.log.machine.tables.attempt(key(world.job))
    assert facts is not None and facts.dead, "the directory of b4 names b1"
    assert facts.dead_ms == 70
    dead = ("b4", "b3", "b1")
    world.ok(AddWorker(node="w1", boot="b5", cores=2, dead_boots=dead, dead_ms=90))
    facts = world.log.machine.tables.attempt(key(world.job))
    assert facts is not None and facts.dead_ms == 70, "b4 knew it first"
    world.no(AddWorker(node="w1", boot="b1", cores=2), "newer boot")
    held = record(key(world.job, share=1))
    world.ok(AddWorker(node="w2", boot="b2", cores=2, held=(held,)))
    ended = world.log.machine.tables.attempt(key(world.job, share=1))
    assert ended is not None and ended.state == "ended"


def test_a_longer_lease_counts_for_attempts_that_live(world: Set) -> None:
    world.started()
    world.ok(Configure(lease_ms=9000))
    world.ok(Configure(lease_ms=1000))
    facts = world.log.machine.tables.attempt(key(world.job))
    assert facts is not None and facts.lease_ms == 9000
    assert world.log.machine.tables.group == "g"


def test_a_conclusion_needs_that_nothing_runs_and_is_final(world: Set) -> None:
    world.started()
    done = ConcludeWorkflows(
        job=world.job, conclusions=(Conclusion(workflow="A", outcome="completed", context=b"c"),)
    )
    world.no(done, "may run")
    world.ok(EndAttempts(ended=(record(key(world.job)), record(key(world.job, share=1)))))
    assert world.ok(done).changed
    failed = Conclusion(workflow="A", outcome="failed")
    assert not world.ok(ConcludeWorkflows(job=world.job, conclusions=(failed,))).changed
    a = world.log.machine.tables.jobs[world.job].workflow("A")
    assert a is not None and a.outcome == "completed" and a.context == b"c"
    never = Conclusion(workflow="B", outcome="completed")
    world.no(ConcludeWorkflows(job=world.job, conclusions=(never,)), "never started")


def test_a_stop_of_one_workflow_leaves_the_job_running(world: Set) -> None:
    world.started()
    assert world.ok(StopWorkflow(job=world.job, workflow="A", error="lost")).changed
    assert not world.ok(StopWorkflow(job=world.job, workflow="A", error="again")).changed
    assert world.ok(StopWorkflow(job=world.job, workflow="A", error="now", now=True)).changed
    record_ = world.log.machine.tables.jobs[world.job]
    assert record_.state == "running" and record_.workflows[0].error == "lost"


def test_a_stopped_job_may_still_place_what_always_runs(world: Set) -> None:
    world.ok(StopJob(job=world.job, kind="cancelled", reason="x"))
    skipped = tuple(Conclusion(workflow=name, outcome="skipped") for name in ("A", "B"))
    world.ok(ConcludeWorkflows(job=world.job, conclusions=skipped))
    world.ok(place(world.job, assigned(0, "w1", 0), name="C"))
    states = {
        each.name: each.state.value for each in world.log.machine.tables.jobs[world.job].workflows
    }
    assert states["C"] == "dispatched"


def test_a_worker_that_is_gone_gets_nothing_until_it_registers_again(world: Set) -> None:
    world.ok(LoseWorkers(workers=(("w1", "b0"),)))
    world.ok(place(world.other, assigned(0, "w1", 1)))
    world.ok(LoseWorkers(workers=(("w1", "b1"),)))
    world.no(place(world.job, assigned(0, "w1", 0)), "not the boot")
    world.ok(ForgetWorkers(nodes=("w1", "w2")))
    assert sorted(world.log.machine.tables.workers) == ["w1", "w2"], "one lives, one has work"
    world.ok(AddWorker(node="w1", boot="b1", cores=2))
    world.ok(place(world.job, assigned(0, "w1", 0)))


def test_draining_says_how_much_still_runs(world: Set) -> None:
    world.started()
    assert world.ok(DrainWorker(node="w1", draining=True)).value == 1
    world.no(DrainWorker(node="w9", draining=True), "no worker")


def test_blobs_are_referenced_while_the_state_names_them(world: Set) -> None:
    world.started()
    world.ok(EndAttempts(ended=(record(key(world.job)), record(key(world.job, share=1)))))
    assert "d1" in set(world.log.machine.referenced())
    world.ok(StopJob(job=world.job, kind="cancelled", reason="x"))
    left = tuple(Conclusion(workflow=name, outcome="interrupted") for name in ("A", "B", "C"))
    world.ok(ConcludeWorkflows(job=world.job, conclusions=left))
    world.ok(FinishJob(job=world.job, status="cancelled", result="res"))
    named = set(world.log.machine.referenced())
    assert "d1" not in named and "res" in named


def test_a_loaded_capture_is_the_same_state_and_goes_on_alike(world: Set) -> None:
    world.started()
    captured = world.log.machine.capture()
    other = Datacenter()
    other.load(captured.slices())
    assert other.digest() == world.log.machine.digest()
    world.ok(LoseAttempts(lost=(LostAttempt(key(world.job), "gone"),)))
    other.apply(world.log.bodies[-1])
    assert other.digest() == world.log.machine.digest()
    again = Datacenter()
    again.load(captured.slices())
    assert again.digest() != other.digest(), "a capture stays as it was"
    assert list(again.tables.live["w1"]) == [key(world.job)]


def test_slices_are_of_bounded_size(world: Set) -> None:
    for number in range(300):
        world.ok(AddWorker(node=f"x{number}", boot="b", cores=1))
    sizes = [len(piece) for piece in world.log.machine.capture().slices()]
    assert len(sizes) > 5 and max(sizes) < 20_000


def test_the_group_clock_of_the_state_never_goes_back(world: Set) -> None:
    now_ms = world.log.machine.tables.group_ms
    world.log.group_ms -= 500
    world.ok(DrainWorker(node="w1", draining=False))
    assert world.log.machine.tables.group_ms == now_ms


def test_unknown_jobs_are_rejected_by_every_command_that_names_one(world: Set) -> None:
    nobody = JobId("g-99")
    commands: list[Command] = [
        place(nobody, assigned(0, "w1", 0)),
        ReturnWorkflows(job=nobody),
        StartWorkflows(job=nobody, started=()),
        RefillShares(job=nobody, workflow="A", assignments=()),
        StopWorkflow(job=nobody, workflow="A"),
        ConcludeWorkflows(job=nobody, conclusions=()),
        StopJob(job=nobody, kind="cancelled", reason="x"),
        FinishJob(job=nobody, status="failed"),
    ]
    for command in commands:
        world.no(command, "")
    assert not world.ok(EndAttempts(ended=(record(key(nobody)),))).changed
    assert not world.ok(LoseAttempts(lost=(LostAttempt(key(nobody), "x"),))).changed


def test_records_are_immutable(world: Set) -> None:
    with pytest.raises(AttributeError):
        world.log.machine.tables.jobs[world.job].state = "failed"  # type: ignore[misc]
    assert msgspec.structs.replace(world.log.machine.tables.jobs[world.job]).state == "queued"


def test_a_cancel_ends_the_way_back_into_the_queue(world: Set) -> None:
    world.ok(place(world.job, assigned(0, "w1", 0)))
    world.ok(ReturnWorkflows(job=world.job, workflows=("A",), reason="silent"))
    world.ok(StopJob(job=world.job, kind="cancelled", reason="by ann"))
    world.ok(LoseAttempts(lost=(LostAttempt(key(world.job), "gone"),)))
    assert world.state() == "cancelling"
    assert world.log.machine.tables.jobs[world.job].state == "stopping"
