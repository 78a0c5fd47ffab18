"""Sessions, leases and errands, one rule at a time."""

from __future__ import annotations

import msgspec
import pytest

from squall.api.errors import SquallError
from squall.cluster.datacenter.commands import (
    ConcludeWorkflows,
    EndAttempts,
    LoseAttempts,
    LoseWorkers,
    ReturnWorkflows,
)
from squall.cluster.datacenter.workflow_contexts import (
    Context,
    collect,
    encode_context,
    handed_over,
)
from squall.cluster.ledger.interface import Fence
from squall.cluster.manager.results.committed_parts import (
    fitted_manifest,
    job_parts,
    record_digests,
)
from squall.cluster.protocol.job_keys import Attempt, AttemptKey, JobId
from squall.cluster.protocol.messages import AttemptStatus, RegisterWorker, SessionRequest
from squall.engine.run_options import RunOptions
from squall.stats.attempt_record import AttemptRecord, RecordEnd
from squall.stats.manifest import FileManifest, UseManifest
from tests.fakes.datacenter import (
    FAST,
    Bench,
    DirectorEffect,
    ModelWorker,
    Push,
    StoreCut,
    StoreValues,
    Submit,
    workflow,
)
from tests.unit.cluster.manager.lab.running_load import answer_of, running


def test_an_attempt_that_is_being_lost_is_not_granted_again() -> None:
    bench = Bench(w1=1, w2=1)
    job = running(bench)
    bench.workers["w1"].connected = False
    bench.hold = lambda effect: isinstance(effect, StoreCut)
    bench.until(lambda: bool(bench.held_effects))
    bench.workers["w1"].connected = True
    (key,) = bench.workers["w1"].held
    assert answer_of(bench, "w1").granted == []
    bench.hold = lambda _: False
    for effect in bench.held_effects:
        bench.do(effect)
    bench.settle()
    facts = bench.machine.tables.attempt(key)
    assert facts is not None and facts.state == "lost"
    assert not bench.job(job).over


def test_a_loss_of_unknown_outcome_is_still_never_granted() -> None:
    bench = Bench(w1=1, w2=1)
    running(bench)
    bench.workers["w1"].connected = False

    def loses(effect: DirectorEffect) -> bool:
        return isinstance(effect, Submit) and isinstance(effect.command, LoseAttempts)

    bench.hold = loses
    bench.until(lambda: bool(bench.held_effects))
    (held,) = bench.held_effects
    assert isinstance(held, Submit)
    bench.director.submitted(held.tag, None, bench.now)
    bench.held_effects = []
    bench.run(1.5)
    assert any(loses(effect) for effect in bench.held_effects), "it is submitted again"
    assert answer_of(bench, "w1").granted == []


def test_a_grant_counts_from_the_arrival_of_its_request() -> None:
    bench = Bench(w1=1, w2=1)
    running(bench)
    (key,) = bench.workers["w1"].held
    arrived = bench.now - 3.0
    request = SessionRequest(node="w1", boot="b1", sequence=99)
    before = bench.director.state.attempt(key).granted
    assert before is not None
    bench.director.session(
        request,
        arrived=arrived,
        now=bench.now,
        group_ms=bench.group_ms,
        fence=Fence(2, 3),
        committed=7,
    )
    assert bench.director.state.attempt(key).granted == max(before, arrived), "it never moves back"


def test_an_answer_names_fence_commit_and_lease() -> None:
    bench = Bench(w1=1)
    answer = answer_of(bench, "w1")
    assert (answer.epoch, answer.view, answer.committed) == (0, 1, bench.op)
    assert answer.lease_s == FAST.execution_lease_s
    assert answer.sequence == bench.workers["w1"].sequence


def test_a_boot_that_is_not_registered_is_told_to_and_granted_nothing() -> None:
    bench = Bench(w1=1)
    running(bench)
    request = SessionRequest(node="w1", boot="other", sequence=1)
    answer = bench.director.session(
        request,
        arrived=bench.now,
        now=bench.now,
        group_ms=bench.group_ms,
        fence=Fence(0, 1),
        committed=1,
    )
    assert answer.register and not answer.granted and not answer.prepare


def test_a_worker_that_was_given_up_registers_again_with_the_same_boot() -> None:
    bench = Bench(w1=1)
    bench.apply(LoseWorkers(workers=(("w1", "b1"),)))
    assert answer_of(bench, "w1").register
    assert not bench.machine.tables.workers["w1"].gone


def test_a_former_boot_may_not_register_again() -> None:
    bench = Bench(w1=1)
    bench.workers["w1"].kill()
    bench.workers["w1"].restart()
    bench.run(1)
    old = RegisterWorker(node="w1", boot="b1", datacenter="dc", cores=1, pid=1, host="h")
    refused = bench.director.register(old, [], bench.group_ms)
    assert isinstance(refused, str) and "newer boot" in refused


def test_a_silent_worker_is_given_up_and_later_forgotten() -> None:
    bench = Bench(w1=1, w2=1)
    bench.run(1)
    bench.workers["w1"].connected = False
    bench.run(FAST.lost_after_s + 6)
    assert bench.machine.tables.workers["w1"].gone
    bench.group_ms += 3_700_000
    bench.run(6)
    assert list(bench.machine.tables.workers) == ["w2"]


def test_go_carries_the_workflows_time_and_a_refill_joins_there() -> None:
    bench = Bench(w1=1, w2=1)
    job = running(bench)
    bench.run(4)
    bench.workers["w1"].kill()
    bench.workers["w1"].restart()
    bench.until(lambda: bench.wf(job, "Load").attempts == 3)
    bench.run(1)
    joined = [m.joined_s for w in bench.workers.values() for m in w.held.values()]
    assert min(joined) == pytest.approx(0.0, abs=0.3)
    assert 5.0 <= max(joined) <= 7.0


def test_pushes_go_to_whoever_should_hear_at_once() -> None:
    bench = Bench(w1=1, w2=1)
    bench.run(0.5)
    job = bench.submit(workflow("Load", vus=1, duration_s=20))
    assert bench.pushes == ["w1"]
    bench.until(lambda: bench.job(job).started_ms > 0)
    bench.pushes.clear()
    bench.cancel(job)
    assert bench.pushes == ["w1"]


def test_many_records_become_few_commands() -> None:
    bench = Bench(w1=20)
    bench.hold = lambda effect: isinstance(effect, Push)
    job = bench.submit(workflow("Load", vus=20, duration_s=3))
    bench.finish(job)
    ends = [line for line in bench.log if line.startswith("EndAttempts")]
    assert len(ends) <= 2
    assert len(bench.log) <= 8 + 20 // 20 + 2


def test_a_rejected_errand_is_muted_for_a_moment() -> None:
    bench = Bench(w1=1)
    job = running(bench)
    asked: list[str] = []

    def refuse(effect: DirectorEffect) -> bool:
        if isinstance(effect, Submit) and isinstance(effect.command, EndAttempts):
            asked.append(effect.tag)
            bench.director.submitted(effect.tag, None, bench.now)
            return True
        return False

    bench.hold = refuse
    bench.cancel(job)
    bench.run(4)
    assert 2 <= len(asked) <= 6, "again and again, but not in a rush"
    bench.hold = lambda _: False
    assert bench.finish(job).state == "cancelled"


def test_the_deadline_is_never_in_the_past_after_a_tick() -> None:
    bench = Bench(w1=1)
    job = running(bench, duration_s=10.0)
    while not bench.job(job).over:
        bench.run(0.1)
        assert bench.director.deadline() >= bench.now - 1e-9


def test_large_values_travel_as_a_blob() -> None:
    bench = Bench(w1=1)
    stored: list[StoreValues] = []
    bench.hold = lambda effect: isinstance(effect, StoreValues) and not stored.append(effect)
    job = bench.submit(
        workflow("SetUp", is_test=False, vus=1, duration_s=1),
        workflow("Load", "SetUp", vus=1, duration_s=2, wants=["token"]),
    )
    bench.until(lambda: bench.wf(job, "SetUp").started_ms > 0)
    context = encode_context(Context(values={"token": b"x" * 5000}))
    original = bench.director.context_collected

    def collected(tag: str, job: JobId, name: str) -> None:
        original(tag, job, name, inline=context, size=len(context))

    bench.director.context_collected = collected  # type: ignore[method-assign]
    bench.until(lambda: bool(stored))
    assert stored[0].contexts == (("SetUp", context, ""),)
    assert not bench.wf(job, "Load").placed_ms
    bench.hold = lambda _: False
    bench.do(stored[0])
    bench.finish(job)
    assert bench.wf(job, "Load").outcome == "completed"


def test_small_values_travel_in_the_preparation() -> None:
    bench = Bench(w1=1)
    job = bench.submit(
        workflow("SetUp", is_test=False, vus=1, duration_s=1),
        workflow("Load", "SetUp", vus=1, duration_s=5, wants=["token"]),
    )
    context = encode_context(Context(values={"token": b"\xa3abc"}))
    original = bench.director.context_collected

    def collected(tag: str, job: JobId, name: str) -> None:
        original(tag, job, name, inline=context, size=len(context))

    bench.director.context_collected = collected  # type: ignore[method-assign]
    bench.until(lambda: bench.wf(job, "Load").started_ms > 0)
    (model,) = bench.workers["w1"].held.values()
    assert model.preparation.spec.values == {"token": b"\xa3abc"}


def test_of_several_shares_the_first_one_that_gives_a_value_wins() -> None:
    ends = [
        RecordEnd(elapsed_s=1.0, values={"a": b"1"}),
        RecordEnd(elapsed_s=1.0, values={"a": b"2", "b": b"3"}, provided={"p": b"4"}),
    ]
    context = collect(ends)
    assert context.values == {"a": b"1", "b": b"3"} and context.provided == {"p": b"4"}


def test_state_values_reach_only_who_both_sides_name() -> None:
    giver = workflow("Give")
    giver.provides = {"token": ["Use"], "other": ["Else"]}
    user = workflow("Use", "Give")
    user.uses = [UseManifest(hook="take", sources=["Give"], arguments=["token", "other"])]
    manifest = FileManifest(path="f.py", workflows=[giver, user])
    contexts = {"Give": Context(provided={"token": b"1", "other": b"2"})}
    given = handed_over(manifest, user, contexts)
    assert given.received == {"take.token": b"1"}
    assert given.values == {"token": b"1"}


def test_the_parts_of_a_result_tell_every_attempt_and_its_fate() -> None:
    bench = Bench(w1=1, w2=1)
    job = running(bench, duration_s=30.0)
    bench.run(3)
    bench.workers["w1"].kill()
    bench.workers["w1"].restart()
    bench.until(lambda: bench.wf(job, "Load").attempts == 3)
    parts = None

    def assembling(effect: DirectorEffect) -> bool:
        nonlocal parts
        if type(effect).__name__ != "AssembleResult":
            return False
        record = bench.job(job)
        tables = bench.machine.tables
        digests = list(record_digests(tables, record))
        assert len(digests) == 3
        stored = {
            digest: AttemptRecord(workflow="Load", share=0, attempt=1, worker="w1")
            for digest in digests
        }
        parts = job_parts(tables, record, "completed", stored, bench.group_ms)
        return False

    bench.hold = assembling
    bench.finish(job)
    assert parts is not None
    fates = {(part.share, part.attempt): part.fate for part in parts.attempts}
    assert sorted(fates.values()) == ["ended", "ended", "lost"]
    (gone,) = [part for part in parts.attempts if part.fate == "lost"]
    assert gone.reason == "worker w1 restarted" and gone.users == 1 and gone.shares == 2
    assert 0 < (gone.silence_end_s or 0) <= gone.lost_at_s + 0.1
    assert [w.status for w in parts.workflows] == ["completed"]
    assert parts.elapsed_s == pytest.approx(30.0, abs=1.0)
    manifest = fitted_manifest(bench.job(job))
    assert manifest.workflow("Load").profile.vus == 2


def test_a_stopped_share_that_had_nothing_more_to_tell_lost_nothing() -> None:
    """It ended after its last report. If its process reported the end, nothing is missing; if it
    died, the load in between is unknown."""
    bench = Bench(w1=1)
    job = running(bench)
    bench.hold = lambda effect: type(effect).__name__ == "AssembleResult"
    bench.cancel(job)
    bench.until(lambda: bool(bench.held_effects))
    record = bench.job(job)
    tables = bench.machine.tables
    (digest,) = record_digests(tables, record)
    for reported_by_process, fate in ((True, "ended"), (False, "lost")):
        end = RecordEnd(
            elapsed_s=1.35, cut="cancelled by ann", reported_by_process=reported_by_process
        )
        stored = AttemptRecord(
            workflow="Load", share=0, attempt=1, worker="w1", silent_from_s=1.0, end=end
        )
        parts = job_parts(tables, record, "cancelled", {digest: stored}, bench.group_ms)
        (part,) = parts.attempts
        assert part.fate == fate
        assert bool(part.unknown) == bool(part.unknown_iterations) == (not reported_by_process)


def test_a_workflow_that_failed_to_start_is_in_the_parts_as_the_refusal() -> None:
    bench = Bench()
    job = bench.submit(workflow("Load"))
    record = msgspec.structs.replace(
        bench.job(job), stop="failed", reason="no module named x", exit_code=104
    )
    parts = job_parts(bench.machine.tables, record, "failed", {}, bench.group_ms)
    assert (parts.refusal, parts.refusal_code) == ("no module named x", 104)


def test_a_conclusion_is_not_overtaken_by_a_cancel_that_comes_after_the_end() -> None:
    bench = Bench(w1=1)
    job = bench.submit(workflow("Load", vus=1, duration_s=2))
    bench.hold = lambda effect: (
        isinstance(effect, Submit) and isinstance(effect.command, ConcludeWorkflows)
    )
    bench.until(lambda: bool(bench.held_effects))
    bench.cancel(job)
    bench.hold = lambda _: False
    for effect in bench.held_effects:
        # It is lost; the director concludes again, now of a cancelled job.
        assert isinstance(effect, Submit)
        bench.director.submitted(effect.tag, None, bench.now)
    record = bench.finish(job)
    assert record.state == "cancelled"
    assert record.workflows[0].outcome == "completed"


def test_a_job_whose_secrets_cannot_be_read_fails_and_harms_no_other() -> None:
    bench = Bench(w1=2)
    good = running(bench)

    def unreadable(job: object) -> RunOptions:
        raise SquallError("the job's secrets cannot be read")

    bench.director._options_of = unreadable
    bad = bench.submit(workflow("Load", vus=1, duration_s=3))
    bench.workers["w2"] = ModelWorker("w2", 1)
    bench.register(bench.workers["w2"])
    record = bench.finish(bad, 20)
    assert record.state == "failed" and "secrets" in record.reason
    assert bench.job(good).state == "running" and bench.wf(good, "Load").lost == 0


def test_what_is_returned_because_it_was_never_granted_is_not_granted_meanwhile() -> None:
    bench = Bench(w1=1, w2=1)
    bench.run(0.5)
    bench.workers["w2"].connected = False
    refused = AttemptStatus(
        key=AttemptKey(JobId("g-0"), "Load", 0, Attempt(1)), phase="refused", retryable=True
    )
    bench.workers["w1"].refuse = lambda key: msgspec.structs.replace(refused, key=key)
    bench.hold = lambda effect: (
        isinstance(effect, Submit) and isinstance(effect.command, ReturnWorkflows)
    )
    bench.submit(workflow("Load", vus=2, duration_s=5))
    bench.until(lambda: bool(bench.held_effects))
    (held,) = bench.held_effects
    assert isinstance(held, Submit) and isinstance(held.command, ReturnWorkflows)
    assert len(held.command.returned) == 2
    bench.workers["w2"].connected = True
    answer = answer_of(bench, "w2")
    assert not answer.granted and not answer.prepare


def test_records_that_the_log_did_not_take_are_not_tried_without_a_pause() -> None:
    bench = Bench(w1=1)
    job = bench.submit(workflow("Load", vus=1, duration_s=3.0))

    def ends(effect: DirectorEffect) -> bool:
        return isinstance(effect, Submit) and isinstance(effect.command, EndAttempts)

    bench.hold = ends
    bench.until(lambda: bool(bench.held_effects))
    (held,) = bench.held_effects
    assert isinstance(held, Submit)
    bench.director.failed(held.tag, bench.now)
    bench.now, bench.group_ms = bench.now + 0.2, bench.group_ms + 200
    assert bench.director.tick(bench.now, bench.group_ms) == []
    assert bench.director.deadline() > bench.now
    bench.hold = lambda _: False
    bench.held_effects.clear()
    assert bench.finish(job).state == "completed"
