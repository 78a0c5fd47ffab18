"""Jobs of the gates: keys, stop, end, purge, adjustments."""

from __future__ import annotations

import msgspec

from squall.cluster.assignments.commands import (
    AdjustParts,
    CreateGateJob,
    ForgetTries,
    KnowDatacenters,
    PartLoad,
)
from squall.cluster.assignments.job_rules import UNFORGOTTEN_MS
from squall.cluster.protocol.command_outcomes import Rejected
from squall.cluster.protocol.job_commands import ExtendJob, FailJob, FinishJob, Purge, StopJob
from tests.fakes.datacenter import submission, workflow
from tests.fakes.gates_log import GatesLog


def creation(key: str = "k", weights: tuple[float, ...] = (1.0,)) -> CreateGateJob:
    return CreateGateJob(
        principal="ann",
        key=key,
        fingerprint="f",
        submission=submission(workflow("A")),
        weights=weights,
    )


def test_a_key_finds_its_job_and_another_fingerprint_is_a_conflict() -> None:
    log = GatesLog()
    first = log.must(creation())
    again = log.must(creation())
    assert (again.job, again.changed) == (first.job, False)
    assert isinstance(log.apply(msgspec.structs.replace(creation(), fingerprint="g")), Rejected)


def test_weights_must_sum_to_one() -> None:
    log = GatesLog()
    for weights in ((), (0.5,), (0.6, 0.6), (1.5, -0.5), (float("nan"),)):
        assert isinstance(log.apply(creation(weights=weights)), Rejected), weights


def test_a_job_without_a_start_ends_at_once_when_it_is_stopped() -> None:
    log = GatesLog()
    job = log.create("eu")
    log.must(StopJob(job=job, kind="cancelled", reason="cancelled by ann"))
    # Nothing of it runs, so its end does not wait for eu; the cancellation is driven on.
    log.must(FinishJob(job=job, status="cancelled", keep_ms=1000))
    assert log.current(job).cancel and not log.current(job).settled
    assert job in log.machine.tables.open and job not in log.machine.tables.active


def test_a_started_job_ends_when_all_parts_are_over() -> None:
    log = GatesLog()
    job = log.started("eu", "us")
    finish = FinishJob(job=job, status="completed", keep_ms=1000)
    log.report(job, "ended", 0, result="r0")
    assert isinstance(log.apply(finish), Rejected)
    log.must(StopJob(job=job, kind="cancelled", reason="cancelled by ann"))
    assert isinstance(log.apply(finish), Rejected), "us may still make load"
    log.report(job, "ended", 1, result="r1")
    assert log.job(job).state == "completing"
    log.must(finish)
    assert not log.must(msgspec.structs.replace(finish, status="failed")).changed
    assert log.job(job).state == "completed"


def test_a_job_is_purged_when_every_datacenter_has_forgotten_it() -> None:
    log = GatesLog()
    job = log.started("eu")
    log.report(job, "ended", result="r")
    log.must(FinishJob(job=job, status="completed", keep_ms=1000))
    log.group_ms += 5000
    purge = Purge(jobs=(job,), key_keep_ms=1000)
    assert not log.must(purge).changed
    log.must(ForgetTries(forgotten=((job, "eu"),)))
    assert log.must(purge).changed
    assert not log.machine.tables.jobs and ("ann", "k") in log.machine.tables.keys


def test_a_datacenter_that_never_comes_back_delays_the_purge_by_a_day() -> None:
    log = GatesLog()
    job = log.create("eu")
    log.must(StopJob(job=job, kind="cancelled", reason="cancelled by ann"))
    log.must(FinishJob(job=job, status="cancelled"))
    log.group_ms += UNFORGOTTEN_MS
    assert log.must(Purge(jobs=(job,))).changed


def test_an_adjustment_is_apportioned_and_takes_effect_once() -> None:
    log = GatesLog()
    job = log.started("eu", "us")
    command = AdjustParts(
        job=job,
        workflows=("A",),
        rate_per_s=30.0,
        parts=(PartLoad(20.0), PartLoad(10.0)),
        request_id="r1",
    )
    assert log.must(command).value == 1
    assert not log.must(command).changed
    loads = [dict(part.adjustments)["A"].rate_per_s for part in log.job(job).parts]
    assert loads == [20.0, 10.0]
    unapportioned = msgspec.structs.replace(command, parts=(), request_id="r2")
    assert isinstance(log.apply(unapportioned), Rejected)


def test_extensions_stay_within_their_cap() -> None:
    log = GatesLog()
    job = log.started("eu")
    assert log.must(ExtendJob(job=job, by_ms=5000, cap_ms=8000)).value == 5000
    assert log.must(ExtendJob(job=job, by_ms=5000, cap_ms=8000)).value == 8000
    assert not log.must(ExtendJob(job=job, by_ms=5000, cap_ms=8000)).changed


def test_a_broken_job_fails_and_its_parts_are_cancelled() -> None:
    log = GatesLog()
    job = log.started("eu")
    log.must(FailJob(job=job, error="KeyError: x"))
    assert log.job(job).state == "failed" and log.current(job).cancel
    assert log.machine.tables.alarms


def test_a_datacenter_with_a_part_is_not_removed() -> None:
    log = GatesLog()
    job = log.create("eu")
    leave = KnowDatacenters(datacenters=(("eu", ()), ("us", ())))
    log.must(leave)
    assert set(log.machine.tables.datacenters) == {"eu", "ap"}
    assert not log.must(leave).changed
    assert log.job(log.create("eu", key="2")).state == "queued", "it gets no other part"
    assert isinstance(log.move(job, 0, "us"), Rejected)


def test_a_recovered_group_stops_what_was_not_started_and_never_tries_it_again() -> None:
    log = GatesLog()
    waits, runs = log.create("eu", key="1"), log.started("us", key="2")
    log.machine.begin_group("g2", 1000)
    assert log.machine.tables.former == ("g1",)
    assert log.job(waits).stop == "failed" and not log.job(runs).stop
    assert isinstance(log.move(waits, 0, "ap"), Rejected)
    # What the lost end of the other log had started is counted when it is reported.
    log.report(waits, "ended", result="r")
    assert log.current(waits).state == "ended"
    assert log.create("eu", key="3").startswith("g2-")


def test_a_captured_state_is_loaded_with_its_tickets() -> None:
    log = GatesLog()
    job = log.create("eu", "us")
    other = GatesLog().machine
    other.load(log.machine.capture().slices())
    assert other.digest() == log.machine.digest()
    assert other.tables.tickets == {"eu": job, "us": job}
    assert list(other.tables.open) == [job]
