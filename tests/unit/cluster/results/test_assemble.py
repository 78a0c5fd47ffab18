"""The result of a job: a run without faults equals the local run; a loss is reported exactly."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from squall.api.errors import ExitCode
from squall.cluster.protocol.messages import DRAINED
from squall.cluster.results.assemble import assemble
from squall.cluster.results.job_result import (
    ResultBroken,
    decode_result,
    encode_result,
    outcome_of,
)
from squall.engine.load_change import AppliedChange
from squall.engine.outcome import WorkflowOutcome
from squall.engine.run_options import RunOptions
from squall.reporting.document.build import build_document
from squall.reporting.document.rebuild import rebuild
from squall.reporting.page.render import render_html
from squall.reporting.text.summary import render_summary
from squall.stats.attempt_record import SurvivingCounters
from squall.stats.manifest import Profile, Stage
from squall.stats.record_builder import RecordBuilder
from squall.stats.reports import ErrorSample, WindowReport
from squall.stats.thresholds.judge import ThresholdResult
from tests.unit.cluster.results.lab.records import (
    CLOSED,
    OPEN,
    ended,
    health,
    local_run,
    manifest,
    parts,
    record,
    refilled,
    window,
)

LATENCIES = st.lists(st.sampled_from([0.001, 0.004, 0.02, 0.3]), max_size=4)
WINDOWS = st.lists(st.tuples(LATENCIES, LATENCIES, st.integers(0, 5)), min_size=10, max_size=10)
THRESHOLDS = ("pay.p(95) < 200ms", "errors < 60%", "home.p(99) < 100ms over 3s", "checks > 10%")


def outcome(result: Any) -> Any:
    return outcome_of(decode_result(encode_result(result)))


def differences(one: Any, two: Any, where: str = "") -> list[str]:
    """Sums of floats may differ in their last digit by the order of adding, and with that
    the last shown digit of a mean."""
    if isinstance(one, float) and isinstance(two, float):
        return [] if one == pytest.approx(two, rel=1e-9, abs=1.5e-4) else [f"{where}: {one} {two}"]
    if isinstance(one, dict) and isinstance(two, dict):
        keys = (one.keys() | two.keys()) - {"worker"}
        return [d for k in keys for d in differences(one.get(k), two.get(k), f"{where}.{k}")]
    if isinstance(one, list) and isinstance(two, list) and len(one) == len(two):
        pairs = enumerate(zip(one, two, strict=True))
        return [d for n, (a, b) in pairs for d in differences(a, b, f"{where}[{n}]")]
    return [] if one == two else [f"{where}: {one} {two}"]


@settings(max_examples=40, deadline=None, phases=[Phase.reuse, Phase.generate])
@given(WINDOWS, WINDOWS, st.sampled_from([0.0, 2.0]), st.sampled_from([CLOSED, OPEN]))
def test_a_job_without_faults_has_the_document_of_a_local_run(one, two, warmup_s, profile) -> None:
    file = manifest(profile)
    options = RunOptions(file="shop.py", thresholds=THRESHOLDS, warmup_s=warmup_s)
    shares = [
        [window(s, n, ok, bad, users=u, busy=u) for s, (ok, bad, u) in enumerate(made)]
        for n, made in enumerate((one, two))
    ]
    file.workflows[0].warnings = ["tresholds is not a setting"]
    for n, reports in enumerate(shares):
        # What each share reports and only the sum can judge.
        reports[0].opened, reports[0].unopened = 3, n
        reports[1].rested_s = 4.0
        for report in reports:
            report.statuses = {200: 2, 404: n}
            for outcome_of_row in (each for row in report.rows for each in row.outcomes):
                outcome_of_row.raised = not outcome_of_row.ok
    healths = [[health(n, s + 1.0) for s in range(10)] for n in range(2)]
    attempts = [
        ended(record(n, shares[n], worker=f"w{n}", healths=healths[n], elapsed_s=9.6 + n / 10))
        for n in range(2)
    ]
    made = assemble(copy.deepcopy(file), options, parts(attempts))
    local = local_run(file, options, [*shares[0], *shares[1], *healths[0], *healths[1]], 9.7)
    assert not differences(build_document(outcome(made)), build_document(local))
    assert outcome(made).exit_code == local.exit_code
    assert made.verdict.state == "INVALID"
    assert "1 of 7 users of Shop did not start" in made.verdict.reasons
    assert made.notes[0] == "tresholds is not a setting"
    assert outcome(made).stats.workflows["Shop"].statuses.keys() == {200, 404}


def half(profile: Profile = CLOSED, **changes: Any) -> Any:
    """w2 is lost after four seconds; w1 refills its share at second 7."""
    file = manifest(profile, **changes.pop("workflow", {}))
    first = [window(s, 1, [0.01] * 10, users=5, busy=5) for s in range(4)]
    first[-1] = window(3, 1, [0.01] * 10, users=5, busy=5, flying=changes.pop("flying", 0))
    return file, refilled(first), changes


def test_a_lost_worker_is_accounted_for() -> None:
    file, attempts, _ = half(OPEN, flying=2, workflow={"feeds": ["user"]})
    made = assemble(file, RunOptions(file="shop.py"), parts(attempts))
    (loss,) = made.losses
    assert (loss.worker, loss.share, loss.attempt, loss.refilled_by) == ("w2", 1, 1, "w1")
    assert (loss.cut_at_s, loss.at_s, loss.below_target_s, loss.rows) == (4.0, 4.0, 3.0, 2)
    assert loss.is_last_heard
    # 10 starts a second in this share; 72 of its 100 were reported (2 of them in flight).
    assert loss.starts == 28
    # 1.05 times the 20 starts of two seconds, two steps each, and what ran: 5 busy users.
    assert not loss.is_estimate
    assert loss.unknown_iterations == 21 + 2
    assert loss.unknown_requests == 2 * 21 + 5
    stats = outcome(made).stats.workflows["Shop"]
    assert stats.starts.planned == 200
    assert stats.iteration.count == 170
    assert stats.users.max == 10
    assert made.verdict.state == "INVALID"
    assert outcome(made).exit_code == ExitCode.INVALID


def test_the_result_says_how_much_the_rows_may_lack_and_how_many_cores_ran_at_once() -> None:
    file, attempts, _ = half(OPEN, flying=2)
    lost = next(part.record for part in attempts if part.fate == "lost")
    known = {"planned": 47, "made": 47, "dropped": 0, "finished": 40, "users": 5, "busy": 5}
    known |= {"sent": 47, "answered": 47, "failed": 0}
    RecordBuilder(lost).add_counters(SurvivingCounters(**known, at_s=4.5, dead_by_s=5.0))
    lost.health.append(health(1, 1.0))
    made = assemble(file, RunOptions(file="shop.py"), parts(attempts))
    stats = outcome(made).stats.workflows["Shop"]
    assert stats.unmeasured == 5
    lacking = 5 + made.losses[0].unknown_requests
    assert f"the step rows of Shop lack up to {lacking} requests of lost shares" in made.notes
    # w1 replaced the process of w2 by a third one.
    assert [bool(each.died) for each in made.processes] == [False, True, False]
    assert made.info.cores == 2
    assert "% of 2 cores" in render_summary(outcome(made))


def test_a_closed_loss_is_bounded_by_the_lowest_latency() -> None:
    file, attempts, _ = half()
    made = assemble(file, RunOptions(file="shop.py"), parts(attempts))
    (loss,) = made.losses
    assert loss.starts is None and loss.is_estimate
    assert loss.unknown_requests == pytest.approx(5 * 200 + 5, abs=10)
    # 5 of 10 users for 3 of 10 seconds are 15 % of the load.
    assert made.verdict.state == "INVALID"
    assert made.verdict.reasons[0].startswith(
        "worker w2 lost, last heard at 4.0 s: Shop, 5 users missing for 3.0 s, refilled by w1, 0 to"
    )


def test_the_bound_of_the_log_is_taken_where_it_has_one() -> None:
    file, attempts, _ = half()
    attempts[1].unknown, attempts[1].is_estimate = 77, True
    made = assemble(file, RunOptions(file="shop.py"), parts(attempts))
    assert made.losses[0].unknown_requests == 77 and made.losses[0].is_estimate


def test_little_load_lost_is_degraded_only() -> None:
    file, attempts, _ = half()
    attempts[2].joined_s = attempts[2].record.joined_s = 4.5
    made = assemble(file, RunOptions(file="shop.py"), parts(attempts))
    assert made.losses[0].below_target_s == 0.5
    assert made.verdict.state == "DEGRADED"
    assert outcome(made).exit_code == ExitCode.PASSED


def test_a_final_record_that_came_in_time_leaves_nothing_unknown() -> None:
    file, attempts, _ = half()
    attempts[1].record = record(
        1, attempts[1].record.reports, worker="w2", elapsed_s=5.0, cut="lease ended"
    )
    made = assemble(file, RunOptions(file="shop.py"), parts(attempts))
    (loss,) = made.losses
    assert (loss.unknown_requests, loss.cut_at_s, loss.below_target_s) == (0, 5.0, 2.0)


def test_a_lost_attempt_that_had_ended_by_itself_lost_nothing() -> None:
    file, attempts, _ = half()
    attempts[1].record = record(1, attempts[1].record.reports, worker="w2", elapsed_s=10.0)
    made = assemble(file, RunOptions(file="shop.py"), parts(attempts[:2]))
    assert made.losses == [] and made.verdict.state == "VALID"


def test_what_a_dead_process_did_not_tell_is_unknown() -> None:
    file, attempts, _ = half()
    attempts[1].record = record(
        1, attempts[1].record.reports, worker="w2", elapsed_s=4.2, cut="core process 1 ended"
    )
    attempts[1].unknown, attempts[1].is_estimate = 44, True
    made = assemble(file, RunOptions(file="shop.py"), parts(attempts))
    assert (made.losses[0].unknown_requests, made.losses[0].cut_at_s) == (44, 4.2)


def test_an_attempt_that_was_told_to_stop_lost_nothing() -> None:
    file = manifest()
    stopped = record(0, [window(0, 0, [0.01])], elapsed_s=1.0, cut="stopped")
    made = assemble(
        file,
        RunOptions(file="shop.py"),
        parts(
            [ended(stopped)],
            state="cancelled",
            reason="cancelled by ann",
            workflows=[WorkflowOutcome(name="Shop", status="interrupted")],
        ),
    )
    assert made.losses == [] and made.status == "interrupted"
    assert outcome(made).exit_code == ExitCode.INTERRUPTED
    assert "cancelled by ann" in outcome(made).notes


def test_a_dropped_attempt_counts_for_nothing() -> None:
    file, attempts, _ = half()
    dropped = ended(record(0, [window(0, 0, [0.5] * 9)], attempt=9), fate="dropped")
    with_it = assemble(file, RunOptions(file="shop.py"), parts([*attempts, dropped]))
    assert with_it == assemble(file, RunOptions(file="shop.py"), parts(attempts))


def test_a_loss_carries_the_time_of_death_where_a_proof_tells_it() -> None:
    (loss,) = lost_alone(OPEN, died_at_s=3.1).losses
    assert (loss.at_s, loss.is_last_heard) == (3.1, False)


def lost_alone(profile: Profile, error: str = "", **fields: Any) -> Any:
    """A job whose only worker was lost for good; with an `error` its code raised instead."""
    made = record(
        0, [window(second, 0, [0.004]) for second in range(2)], silent_from_s=2.0,
        elapsed_s=2.0 if error else None,
    )  # fmt: skip
    fate = "lost"
    if made.end is not None:
        fate, made.end.error = "ended", error
    part = ended(made, shares=1, users=10, iterations=100, fate=fate, lost_at_s=6.0, **fields)
    attempts = [part]
    failed = WorkflowOutcome(name="Shop", status="failed", error=error or "lost", elapsed_s=2.0)
    told = parts(attempts, state="failed", workflows=[failed])
    return assemble(manifest(profile), RunOptions(file="shop.py"), told)


@pytest.mark.parametrize(
    "profile",
    [
        CLOSED,
        OPEN,
        Profile(model="iterations", vus=10, max_vus=10, iterations=100, duration_s=60.0),
        Profile(model="once", vus=1, max_vus=1, duration_s=60.0),
    ],
    ids=lambda profile: profile.model,
)
def test_what_failed_with_its_only_worker_is_lost_load_and_no_mistake_of_the_author(
    profile: Profile,
) -> None:
    made = lost_alone(profile)
    assert outcome(made).exit_code == ExitCode.INVALID
    line = "worker w1 lost, last heard at 2.0 s: Shop"
    assert any(line in reason for reason in made.verdict.reasons)
    if profile.duration_s == 10.0:
        assert made.losses[0].below_target_s == 8.0
    assert outcome(lost_alone(profile, "KeyError")).exit_code == ExitCode.AUTHOR


def test_iterations_that_nobody_made_are_counted_once() -> None:
    profile = Profile(model="iterations", vus=10, max_vus=10, iterations=200, duration_s=60.0)
    file, attempts, _ = half(profile)
    for attempt in attempts:
        attempt.iterations = 100
    made = assemble(file, RunOptions(file="shop.py"), parts(attempts))
    assert made.losses[0].iterations == 30


def test_the_order_of_attempts_does_not_matter() -> None:
    file, attempts, _ = half(OPEN)
    one = assemble(file, RunOptions(file="shop.py"), parts(attempts))
    two = assemble(file, RunOptions(file="shop.py"), parts(attempts[::-1]))
    assert encode_result(one) == encode_result(two)


def test_processes_that_host_two_shares_are_measured_once() -> None:
    file = manifest()
    told = [health(0, 1.0), health(0, 2.0)]
    attempts = [ended(record(n, [window(0, n, [0.01])], healths=told), process=0) for n in range(2)]
    stats = outcome(assemble(file, RunOptions(file="shop.py"), parts(attempts))).stats
    assert stats.health.processes[0].seconds == 2.0


def test_wide_records_keep_their_sums_and_the_word_of_the_running_judge() -> None:
    file = manifest()
    options = RunOptions(file="shop.py", thresholds=("home.p(99) < 100ms over 3s",))
    reports = [window(s, 0, [0.01, 0.02], users=3) for s in range(0, 10, 2)]
    judged = ThresholdResult(
        expression="home.p(99) < 100ms over 3s", passed=False, value=120.0, unit="ms", samples=20
    )
    attempts = [ended(record(0, reports, width_s=2))]
    made = assemble(file, options, parts(attempts, judged=[judged]))
    assert made.thresholds[0] == judged
    workflow = build_document(outcome(made))["workflows"][0]
    assert workflow["steps"][0]["windows"]["every_s"] == 2
    assert workflow["steps"][0]["windows"]["count"] == [2] * 5
    assert workflow["windows"]["users"] == [3] * 5


def test_changes_of_the_load_are_noted() -> None:
    file, attempts, _ = half()
    changes = [
        AppliedChange(workflow="Shop", at_s=3.0, rate_per_s=300.0, by="ann"),
        AppliedChange(workflow="", at_s=4.0, paused=True),
        AppliedChange(workflow="", at_s=4.02, paused=False),
        AppliedChange(workflow="", at_s=4.04, paused=True),
    ]
    made = assemble(file, RunOptions(file="shop.py"), parts(attempts, adjustments=changes))
    assert made.notes[:4] == [
        "Shop: rate set to 300/s at 3.0 s by ann",
        "paused at 4.0 s",
        "resumed at 4.0 s",
        "paused at 4.0 s",
    ]


@pytest.mark.parametrize(
    ("per_user", "lowest", "valid"),
    [
        (20, 2, True),
        (20, 3, False),  # three users would have made 60
        (20, None, False),
        (0, 2, False),  # those that stay make what all were to make
    ],
)
def test_iterations_of_users_that_were_taken_away_are_not_missing(
    per_user: int, lowest: int | None, valid: bool
) -> None:
    profile = Profile(
        model="iterations",
        vus=4,
        max_vus=4,
        iterations=80,
        iterations_per_vu=per_user,
        duration_s=60.0,
    )
    attempt = ended(record(0, [window(0, 0, [0.01] * 45)]), shares=1)
    changes = [
        AppliedChange(workflow="Shop", at_s=1.0, vus=lowest),
        AppliedChange(workflow="", at_s=2.0, vus=None if lowest is None else 4),
    ]
    made = assemble(
        manifest(profile), RunOptions(file="shop.py"), parts([attempt], adjustments=changes)
    )
    missing = ["Shop made 45 of 80 iterations"]
    assert [text for text in made.verdict.reasons if "iterations" in text] == (
        [] if valid else missing
    )


def test_a_timeout_is_no_valid_result() -> None:
    file, attempts, _ = half()
    made = assemble(
        file,
        RunOptions(file="shop.py"),
        parts(attempts, state="timeout", reason="timeout after 70 s"),
    )
    assert outcome(made).exit_code == ExitCode.INVALID


def test_a_loss_is_in_every_report() -> None:
    import json

    import jsonschema

    from squall.reporting.document.build import SCHEMA_PATH

    file, attempts, _ = half(OPEN)
    made = outcome(assemble(file, RunOptions(file="shop.py"), parts(attempts)))
    document = json.loads(json.dumps(build_document(made)))
    jsonschema.validate(document, json.loads(SCHEMA_PATH.read_text()))
    text = render_summary(made)
    missing = "Shop, 30 planned starts missing in 3.0 s"
    assert f"worker w2 lost, last heard at 4.0 s: {missing}" in text
    assert render_summary(rebuild(document)) == text
    assert "Lost load" in render_html(document) and "w2" in render_html(document)


def test_secrets_are_not_in_the_result() -> None:
    file, attempts, _ = half()
    attempts[0].record.errors.append(
        ErrorSample(
            "Shop", "pay", "bad hunter2", 1.0, "", "in hunter2", "GET /?p=hunter2", 0, "hunter2"
        )
    )
    made = assemble(file, RunOptions(file="shop.py"), parts(attempts), secrets=["hunter2"])
    assert made.errors[0].reason == "bad ***"
    assert "hunter2" not in str(made.errors)


@pytest.mark.parametrize("data", [b"", b"SQR1", b"SQR1xxxx", b"nonsense"])
def test_what_is_no_result_is_refused(data) -> None:
    with pytest.raises(ResultBroken):
        decode_result(data)


@pytest.mark.parametrize(("later_from", "missing"), [(4, []), (5, [10])])
def test_a_share_of_a_drained_worker_is_a_loss_only_if_starts_are_missing(
    later_from: int, missing: list[int]
) -> None:
    def load(share: int, seconds: range) -> list[WindowReport]:
        return [window(s, share, [0.01] * 10, users=5, busy=5) for s in seconds]

    first = record(1, load(1, range(4)), worker="w2", elapsed_s=4.0, cut=DRAINED, silent_from_s=4.0)
    later = record(1, load(1, range(later_from, 10)), attempt=2, joined_s=float(later_from))
    attempts = [
        ended(record(0, load(0, range(10)))),
        ended(first, fate="lost", lost_at_s=4.1, silence_end_s=4.0, reason=DRAINED),
        ended(later, process=2),
    ]
    made = assemble(manifest(OPEN), RunOptions(file="shop.py"), parts(attempts))
    assert [loss.starts for loss in made.losses] == missing
    assert made.verdict.state == ("DEGRADED" if missing else "VALID")


@pytest.mark.parametrize(
    ("profile", "refill", "first_s", "starts"),
    # A first attempt reports what was planned before it joined, a refill does not.
    [(OPEN, True, 1, 10), (OPEN, False, 0, 0), (CLOSED, False, 1, None)],
)
def test_a_share_that_started_late_is_a_loss_and_not_a_smaller_plan(
    profile: Profile, refill: bool, first_s: int, starts: int | None
) -> None:
    on_time = record(0, [window(s, 0, [0.01] * 10, users=5, busy=5) for s in range(10)])
    later = [window(s, 1, [0.01] * 10, users=5, busy=5) for s in range(first_s, 10)]
    late = record(1, later, worker="w2", joined_s=1.0)
    made = assemble(
        manifest(profile),
        RunOptions(file="shop.py"),
        parts([ended(on_time), ended(late, refill=refill)]),
    )
    (loss,) = made.losses
    assert loss.worker == "w2" and loss.below_target_s == 1.0 and loss.starts == starts
    assert made.verdict.state != "VALID"
    assert any("worker w2 started late at 0.0 s: Shop" in line for line in made.verdict.reasons)


@pytest.mark.parametrize(
    ("profile", "users"),
    [
        (OPEN, 4),
        (
            Profile(model="ramp", vus=0, max_vus=100, duration_s=10.0, stages=(Stage(10.0, 100),)),
            35,
        ),
    ],
)
def test_a_loss_names_the_users_that_ran_and_not_the_most_that_might(
    profile: Profile, users: int
) -> None:
    file = manifest(profile)
    first = [window(s, 1, [0.01] * 10, users=4, busy=4) for s in range(4)]
    attempts = refilled(first)
    for part in attempts:
        part.users = 100
    made = assemble(file, RunOptions(file="shop.py"), parts(attempts))
    (loss,) = made.losses
    assert loss.users == users
