"""The results of datacenters become one, with one verdict and one set of thresholds."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from squall.api.errors import ExitCode
from squall.cluster.protocol.encoded_reports import raw
from squall.cluster.protocol.gates.job_reports import JobReports, WorkflowReports
from squall.cluster.results.assemble import assemble
from squall.cluster.results.datacenter_totals import DatacenterTotals, MergedTotals
from squall.cluster.results.job_result import (
    JobResult,
    decode_result,
    encode_result,
    outcome_of,
)
from squall.cluster.results.lost_datacenter import lost_result
from squall.cluster.results.merge_datacenters import EndedPart, merge_results
from squall.engine.outcome import Loss
from squall.engine.run_options import RunOptions
from squall.reporting.loss_lines import loss_line
from squall.stats.manifest import Profile
from tests.unit.cluster.results.lab.records import (
    OPEN,
    STARTED_AT,
    ended,
    health,
    manifest,
    parts,
    record,
    refilled,
    window,
)

WHOLE = manifest(Profile(vus=20, max_vus=20, duration_s=10.0))


def result(latency_s: float, count: int = 4, **changes: Any) -> JobResult:
    """What one datacenter of ten users did in ten seconds."""
    reports = [window(s, 0, [latency_s] * count, users=5, busy=5) for s in range(10)]
    other = [window(s, 1, [latency_s] * count, users=5, busy=5) for s in range(10)]
    attempts = [
        ended(record(0, reports, healths=[health(0, 1.0), health(0, 2.0)])),
        ended(record(1, other, healths=[health(1, 1.0)])),
    ]
    return assemble(manifest(), RunOptions(), parts(attempts, **changes))


def merge(*results: JobResult, thresholds: tuple[str, ...] = (), **more: Any) -> JobResult:
    names = ("eu", "us", "ap")
    ended_parts = [
        EndedPart(name, 1 / len(results), each) for name, each in zip(names, results, strict=False)
    ]
    return merge_results("j1+j2", WHOLE, RunOptions(thresholds=thresholds), ended_parts, **more)


def test_counts_are_sums_and_percentiles_come_from_all_samples() -> None:
    merged = merge(result(0.01), result(0.2, count=1))
    outcome = outcome_of(decode_result(encode_result(merged)))
    home = outcome.stats.workflows["Shop"].rows["home"]
    assert home.count == 10 * 2 * 4 + 10 * 2 * 1
    assert home.quantile(0.5) < 0.05 < home.quantile(0.95)
    assert outcome.stats.workflows["Shop"].users.max == 20
    assert sorted(outcome.stats.health.processes) == [0, 1, 2, 3]
    assert [process.worker for process in outcome.processes] == ["eu/w1"] * 2 + ["us/w1"] * 2
    assert (outcome.status, outcome.verdict.state) == ("completed", "VALID")
    assert outcome.exit_code == ExitCode.PASSED
    eu, us = outcome.datacenters
    assert (eu.name, eu.state, eu.part, eu.tries) == ("eu", "completed", 0.5, 1)
    assert eu.stats.workflows["Shop"].rows["home"].count == 80
    assert us.stats.workflows["Shop"].rows["home"].count == 20


def test_thresholds_are_judged_once_over_all_or_in_their_scope() -> None:
    merged = merge(
        result(0.01),
        result(0.2),
        thresholds=("home.p(99) < 100ms", "eu: home.p(99) < 100ms", "us: home.rps > 7"),
    )
    found = {each.expression: each for each in merged.thresholds}
    assert not found["home.p(99) < 100ms"].passed
    assert found["eu: home.p(99) < 100ms"].passed
    assert found["us: home.rps > 7"].value == pytest.approx(8.0)
    assert outcome_of(merged).exit_code == ExitCode.THRESHOLDS


def test_a_sliding_threshold_sees_the_sum_of_a_second() -> None:
    merged = merge(result(0.01), result(0.01), thresholds=("home.rps > 15 over 3s",))
    assert merged.thresholds[0].passed
    assert merged.thresholds[0].value == pytest.approx(16.0)


def test_the_verdict_is_that_of_the_worst_datacenter_and_names_it() -> None:
    first = [window(s, 1, [0.01] * 4, users=5) for s in range(4)]
    broken = assemble(manifest(), RunOptions(), parts(refilled(first)))
    assert broken.verdict.state != "VALID"
    merged = merge(result(0.01), broken)
    assert merged.verdict.state == broken.verdict.state
    assert all(reason.startswith("us: ") for reason in merged.verdict.reasons)
    (loss,) = merged.losses
    assert loss.datacenter == "us"
    assert loss_line(loss).startswith("worker us/w2 lost")


def test_datacenters_that_began_apart_are_noted() -> None:
    merged = merge(result(0.01), result(0.01, started_at=STARTED_AT + 3.0))
    assert "us began 3.0 s after eu; windows count from the start of each" in merged.notes
    assert merged.elapsed_s == pytest.approx(13.1)
    assert [each.later_s for each in merged.datacenters] == [0.0, 3.0]


def test_what_a_datacenter_noted_is_noted_once_with_its_name() -> None:
    noted = msgspec.structs.replace(result(0.01), notes=["Shop: rate set to 60/s", "odd file"])
    whole = msgspec.structs.replace(WHOLE, warnings=["odd file"])
    ended_parts = [EndedPart("eu", 0.5, noted), EndedPart("us", 0.5, noted)]
    merged = merge_results("j", whole, RunOptions(), ended_parts)
    assert [note for note in merged.notes if "odd" in note or "rate" in note] == [
        "odd file",
        "eu: Shop: rate set to 60/s",
        "us: Shop: rate set to 60/s",
    ]


def test_a_cancelled_part_is_an_interrupted_run_unless_a_threshold_ended_it() -> None:
    cancelled = result(0.01, state="cancelled", reason="cancelled by ann")
    merged = merge(result(0.01), cancelled)
    assert (merged.state, merged.status, merged.interrupted) == ("cancelled", "interrupted", True)
    aborted = merge(cancelled, cancelled, aborted_by="errors < 1%, abort")
    assert (aborted.state, aborted.status, aborted.interrupted) == ("completed", "completed", False)
    assert outcome_of(aborted).exit_code == ExitCode.THRESHOLDS


def test_a_result_without_datacenters_is_encoded_as_before() -> None:
    plain = msgspec.to_builtins(result(0.01))
    assert "datacenters" not in plain


def lost_part(profile: Profile, seconds: int, per_s: int) -> DatacenterTotals:
    """A part that reported so many seconds and then was lost."""
    totals = MergedTotals(WHOLE, RunOptions(), [("us", 1.0, manifest(profile))])
    reports = [window(s, 0, [0.01] * per_s, users=10) for s in range(seconds)]
    shop = WorkflowReports(
        name="Shop", started_at_s=0.0, upto=seconds, reports=[raw(each) for each in reports]
    )
    sent = JobReports(stream="m1/1", elapsed_s=float(seconds), workflows=[shop])
    totals.take(0, sent, 100.0)
    totals.lose(0, "gave up after 6 s")
    return totals.parts[0]


def lost(profile: Profile, seconds: int = 4, per_s: int = 8) -> JobResult:
    part = lost_part(profile, seconds, per_s)
    return lost_result("j2", manifest(profile), RunOptions(), part, started_at=STARTED_AT)


def the_loss(found: JobResult) -> Loss:
    (loss,) = found.losses
    return loss


def test_a_lost_datacenter_counts_up_to_its_last_report_and_is_invalid() -> None:
    merged = merge(result(0.01), lost(Profile(vus=10, max_vus=10, duration_s=10.0)))
    outcome = outcome_of(merged)
    assert outcome.stats.workflows["Shop"].rows["home"].count == 80 + 4 * 8
    assert (outcome.status, outcome.verdict.state) == ("partial", "INVALID")
    assert outcome.exit_code == ExitCode.INVALID
    (reason,) = outcome.verdict.reasons
    assert reason == (
        "datacenter us lost, last heard at 4.0 s: Shop, 10 users missing for 6.0 s, "
        "not refilled, 0 to 6030 requests not known (estimate)"
    )
    assert outcome.datacenters[1].state == "lost"


def test_the_rest_of_a_planned_rate_is_missing_and_may_have_been_made() -> None:
    loss = the_loss(lost(OPEN, seconds=4, per_s=20))
    assert (loss.starts, loss.cut_at_s, loss.below_target_s) == (120, 4.0, 6.0)
    # 5 % more iterations than are planned, of two requests each.
    assert (loss.unknown_iterations, loss.unknown_requests) == (126, 252)
    assert lost(OPEN, seconds=4, per_s=20).missing_starts == {"Shop": 120}


def test_a_datacenter_lost_before_its_first_report_did_nothing_that_is_known() -> None:
    found = lost(OPEN, seconds=0)
    assert found.reports == []
    assert the_loss(found).starts == 200


def test_a_datacenter_lost_before_its_first_report_may_have_sent_all_that_its_users_can() -> None:
    """What nothing is known of is not known, whatever the load model."""
    shop = the_loss(lost(Profile(vus=10, max_vus=10, duration_s=10.0), seconds=0))
    assert shop.unknown_requests >= 10 * 10.0 / 0.001, "a request a millisecond of each user"
    counted = the_loss(
        lost(Profile(model="iterations", vus=2, max_vus=2, iterations=30, duration_s=60.0), 0)
    )
    assert counted.unknown_iterations == 30
