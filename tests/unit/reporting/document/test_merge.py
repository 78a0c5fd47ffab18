"""Several documents as one: everything is added, nothing averaged."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import jsonschema
import msgspec
import pytest

from squall.engine.outcome import Loss
from squall.reporting.document.build import SCHEMA_PATH, build_document, encode_document
from squall.reporting.document.merge import APART, differences, merge_outcomes
from squall.reporting.document.rebuild import rebuild
from squall.reporting.text.summary import render_summary
from squall.stats.histogram import Histogram, merged
from squall.stats.manifest import Profile
from squall.stats.thresholds.judge import ThresholdResult
from squall.stats.verdict import Verdict


def read_back(outcome: Any) -> Any:
    return rebuild(json.loads(encode_document(build_document(outcome))))


def slow(outcome: Any, seconds: float, times: int) -> Any:
    """More payments of one length, counted in the second 3."""
    row = outcome.stats.workflows["Shop"].rows["pay"]
    extra = Histogram.from_seconds([seconds] * times)
    row.outcomes["200"].service.merge(extra)
    row.outcomes["200"].count += times
    row.count += times
    row.ok += times
    window = row.windows.at(3)
    window.count += times
    window.latency.merge_data(extra.to_data())
    return outcome


def test_one_document_stays_what_it_is(make_outcome: Any) -> None:
    outcome = make_outcome()
    assert merge_outcomes([outcome]) is outcome


def test_counts_users_and_rates_add_up(make_outcome: Any) -> None:
    one, two = read_back(make_outcome()), read_back(make_outcome())
    whole = merge_outcomes([one, two])
    shop = whole.stats.workflows["Shop"]
    assert (shop.rows["pay"].count, shop.rows["pay"].failed) == (1000, 60)
    assert shop.rows["pay"].statuses == {"200": 940, "503": 20}
    assert shop.measured_s == 10.0, "side by side, not one after the other"
    assert (shop.users.max, shop.busy_max, shop.starts.planned) == (20, 14, 1000)
    assert shop.checks["has_price"].passed == 940
    assert shop.metrics["orders"].sum == 940
    assert [window.users for window in shop.windows] == [20] * 10
    assert [window.count for window in shop.rows["pay"].windows] == [100] * 10
    assert "open 100/s" in render_summary(whole)
    assert len(whole.processes) == len(whole.stats.health.processes) == 2


def test_percentiles_come_from_added_histograms(make_outcome: Any) -> None:
    one, two = make_outcome(), slow(make_outcome(), 0.5, 2000)
    wanted = merged(each.stats.workflows["Shop"].rows["pay"].latency for each in (one, two))
    whole = merge_outcomes([read_back(one), read_back(two)])
    pay = whole.stats.workflows["Shop"].rows["pay"]
    assert pay.latency == wanted
    average = (one.stats.workflows["Shop"].rows["pay"].quantile(0.5) + 0.5) / 2
    assert pay.quantile(0.5) == pytest.approx(0.5, rel=0.01)
    assert pay.quantile(0.5) != pytest.approx(average, rel=0.1)


def test_windows_of_different_widths_are_aligned_by_time(make_outcome: Any) -> None:
    wide = make_outcome()
    for row in (
        *wide.stats.workflows["Shop"].rows.values(),
        wide.stats.workflows["Shop"].iteration,
    ):
        row.windows.halve()
    wide.stats.workflows["Shop"].windows.halve()
    for pair in ([wide, make_outcome()], [make_outcome(), wide]):
        shop = merge_outcomes([read_back(each) for each in pair]).stats.workflows["Shop"]
        assert shop.rows["pay"].windows.width_s == 2
        assert [window.count for window in shop.rows["pay"].windows] == [200] * 5
        assert [window.users for window in shop.windows] == [20] * 5
        assert [window.planned for window in shop.windows] == [200] * 5


def test_the_merged_document_validates(make_outcome: Any, make_mixed: Any) -> None:
    schema = json.loads(SCHEMA_PATH.read_text())
    for parts in ([make_outcome(), make_outcome()], [make_outcome(), make_mixed()]):
        whole = merge_outcomes([read_back(part) for part in parts])
        document = json.loads(encode_document(build_document(whole)))
        jsonschema.validate(document, schema, cls=jsonschema.Draft202012Validator)


def test_the_worst_verdict_and_status_stand(make_outcome: Any) -> None:
    bad = make_outcome(
        verdict=Verdict(state="DEGRADED", reasons=["late"]), status="interrupted", interrupted=True
    )
    whole = merge_outcomes([make_outcome(), bad])
    assert whole.verdict.state == "DEGRADED"
    assert whole.verdict.reasons == ["01J9Z4: late"]
    assert whole.status == "interrupted"
    assert int(whole.exit_code) == 105


def test_thresholds_are_judged_again_on_the_whole(make_outcome: Any) -> None:
    limit = ThresholdResult(
        expression="pay.p(50) < 100ms", passed=True, value=80.0, unit="ms", samples=500
    )
    over = msgspec.structs.replace(limit, expression="pay.p(50) < 100ms over 2s")
    failed = msgspec.structs.replace(over, passed=False, value=300.0, first_failed_at_s=4.0)
    one = read_back(make_outcome(thresholds=[limit, over]))
    two = read_back(slow(make_outcome(thresholds=[limit, failed]), 0.5, 2000))
    judged, kept = merge_outcomes([one, two]).thresholds
    assert not judged.passed
    assert (judged.value, judged.samples) == (pytest.approx(500, rel=0.01), 3000)
    assert (kept.passed, kept.value, kept.note) == (False, 300.0, "the worst of the parts")


@pytest.mark.parametrize("text", ["errors < 1%", "http_req_failed: rate<0.01"])
def test_a_threshold_with_its_workflow_is_judged_again(make_mixed: Any, text: str) -> None:
    result = ThresholdResult(
        expression=f"Buy.{text}", workflow="Buy", passed=False, value=9.0, unit="%", samples=1
    )
    parts = [read_back(make_mixed(thresholds=[result])) for _ in range(2)]
    (judged,) = merge_outcomes(parts).thresholds
    assert (judged.expression, judged.workflow) == (f"Buy.{text}", "Buy")
    assert (judged.passed, judged.note) == (True, "")


@pytest.mark.parametrize(("later_s", "apart"), [(0.0, False), (9.0, False), (30.0, True)])
def test_the_rates_of_runs_that_did_not_overlap_are_not_judged_as_a_sum(
    make_outcome: Any, later_s: float, apart: bool
) -> None:
    limit = ThresholdResult(expression="rps > 40/s", passed=True, value=60.0, unit="/s", samples=9)
    slower = msgspec.structs.replace(limit, value=45.0)
    many = msgspec.structs.replace(limit, expression="errors.count < 900", value=4.0, unit="")
    one, two = make_outcome(thresholds=[limit, many]), make_outcome(thresholds=[slower, many])
    two.info = replace(two.info, started_at=two.info.started_at + timedelta(seconds=later_s))
    whole = merge_outcomes([read_back(one), read_back(two)])
    rps, errors = whole.thresholds
    shop = whole.stats.workflows["Shop"]
    if apart:
        assert (rps.value, rps.note) == (45.0, "the worst of the parts")
    else:
        assert (rps.value, rps.note) == (pytest.approx(shop.count / 10.0), "")
    assert errors.value == shop.failed, "counts are still added"
    assert (APART in render_summary(whole)) is apart


def test_parts_that_do_not_fit_together_are_reported(make_outcome: Any, make_mixed: Any) -> None:
    other = make_outcome()
    other.info = replace(other.info, id="01XXXX", warmup_s=2.0)
    shop = other.stats.workflows["Shop"]
    shop.manifest = msgspec.structs.replace(shop.manifest, profile=Profile(vus=3))
    del shop.rows["login"]
    assert differences([make_outcome(), other]) == [
        "01XXXX and 01J9Z4 have different load profiles of Shop",
        "01XXXX and 01J9Z4 have different steps of Shop: login",
        "01XXXX and 01J9Z4 have different warm-ups",
    ]
    assert (
        "different workflows: Audit, Browse, Buy, Setup, Shop"
        in (differences([make_outcome(), make_mixed()])[0])
    )
    notes = merge_outcomes([make_outcome(), other]).notes
    assert notes[0] == "merged from 2 runs: 01J9Z4, 01XXXX"
    assert any("different load profiles" in note for note in notes)


def test_an_open_and_a_closed_part_both_keep_their_latencies(make_outcome: Any) -> None:
    for first_is_closed in (True, False):
        closed, opened = read_back(make_outcome()), read_back(make_outcome())
        closed.stats.workflows["Shop"].rows["login"].response = None
        parts = [closed, opened] if first_is_closed else [opened, closed]
        login = merge_outcomes(parts).stats.workflows["Shop"].rows["login"]
        assert login.latency.count == login.count == 1000
        assert login.service.count == 1000
        assert login.latency.max_s == pytest.approx(0.120)


def test_losses_keep_naming_their_process(make_outcome: Any) -> None:
    loss = Loss(process=0, workflow="Shop", at_s=2.0, reason="killed", users=5, starts=100)
    parts = [read_back(make_outcome(losses=[loss])) for _ in range(2)]
    whole = merge_outcomes(parts)
    assert [each.process for each in whole.losses] == [0, 1]
    assert [each.index for each in whole.processes] == [0, 1]
