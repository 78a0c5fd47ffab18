"""Adding up the reports of a run."""

from __future__ import annotations

import pytest

from squall.stats.histogram import Histogram
from squall.stats.manifest import Model, Profile
from squall.stats.reports import ErrorSample, RowDelta
from squall.stats.totals.run import MAX_ERROR_SAMPLES, RunStats
from squall.stats.totals.step_rows import MAX_OUTCOMES
from tests.unit.stats.lab.reports import (
    CheckDelta,
    RequestsDelta,
    StartsDelta,
    counter,
    data,
    file_manifest,
    gauge,
    health,
    outcome,
    rate,
    row,
    sample,
    window,
    workflow_manifest,
)


def run(warmup_s: float = 0.0) -> RunStats:
    return RunStats(file_manifest(), warmup_s)


def test_shares_and_seconds_add_up() -> None:
    stats = run()
    for second in range(3):
        for share in range(2):
            delta = row("pay", [0.010] * 5, [0.5])
            stats.add(window(second, [delta], share=share, iterations=6))
    pay = stats.workflows["Shop"].rows["pay"]
    assert (pay.started, pay.count, pay.ok, pay.failed) == (36, 36, 30, 6)
    assert pay.count == pay.ok + pay.failed
    assert pay.statuses == {"200": 30, "503": 6}
    assert pay.reasons == {"503 Service Unavailable": 6}
    assert pay.service == Histogram.from_seconds([0.010] * 30 + [0.5] * 6)
    assert pay.outcomes["503"].service.count == 6
    assert stats.workflows["Shop"].iteration.count == 36


def test_started_equals_count_and_interrupted_at_the_end() -> None:
    stats = run()
    stats.add(window(0, [row("pay", [0.1] * 3, [0.2], interrupted=2)]))
    pay = stats.workflows["Shop"].rows["pay"]
    assert pay.started == pay.count + pay.interrupted == 6
    assert pay.in_flight == 0


def test_what_is_under_way_at_the_end_of_the_warm_up_counts_where_it_ends() -> None:
    stats = run(warmup_s=2.0)
    for second, (started, ended) in enumerate([(8, 5), (6, 5), (5, 9), (0, 0)]):
        delta = row("pay", [0.1] * ended)
        delta.started = started
        made = window(second, [delta], share=second % 2)
        made.requests = RequestsDelta(sent=started, answered=ended)
        made.in_flight = started - ended
        made.iteration.started = started
        stats.add(made)
    shop = stats.workflows["Shop"]
    assert (shop.rows["pay"].started, shop.rows["pay"].count) == (9, 9)
    assert (shop.requests.sent, shop.requests.answered) == (9, 9)
    assert shop.rows["pay"].in_flight == 0


def test_rows_stand_as_in_the_file_and_named_calls_follow() -> None:
    stats = run()
    stats.add(window(0, [row("zoom", [0.1]), row("pay", [0.1]), row("extra", [0.1])]))
    assert list(stats.workflows["Shop"].rows) == ["login", "pay", "zoom", "extra"]
    assert stats.workflows["Shop"].rows["login"].count == 0


def test_an_action_has_no_row_until_it_fails() -> None:
    stats = RunStats(file_manifest(workflow_manifest(actions=["sign_in"])))
    assert "sign_in" not in stats.workflows["Shop"].rows


def test_a_failure_without_an_exchange_is_counted_without_latency() -> None:
    stats = run()
    delta = RowDelta(name="pay", started=3, outcomes=[outcome("KeyError", False, [], unsampled=3)])
    stats.add(window(0, [delta]))
    pay = stats.workflows["Shop"].rows["pay"]
    assert (pay.failed, pay.service.count, pay.quantile(0.99)) == (3, 0, 0.0)
    assert (pay.statuses, pay.reasons) == ({}, {"KeyError": 3})


def test_a_status_and_raise_for_status_share_one_reason() -> None:
    stats = run()
    stats.add(window(0, [row("pay", [], [0.1])]))
    stats.add(window(1, [row("pay", [], [0.1], status="503 Service Unavailable")]))
    stats.add(window(1, [row("pay", [], [0.1] * 5, status="599")]))
    pay = stats.workflows["Shop"].rows["pay"]
    assert pay.reasons == {"599": 5, "503 Service Unavailable": 2}


def test_one_status_that_is_ok_here_and_failed_there_keeps_both_counts() -> None:
    stats = run()
    stats.add(window(0, [RowDelta("call", outcomes=[outcome("404", True, [0.1])])]))
    stats.add(window(0, [RowDelta("call", outcomes=[outcome("404", False, [0.2])])]))
    call = stats.workflows["Shop"].rows["call"]
    assert (call.ok, call.failed) == (1, 1)
    assert call.outcomes["404"].service.count == 1


def test_reasons_without_end_do_not_use_memory_without_end() -> None:
    stats = run()
    many = MAX_OUTCOMES + 40
    for index in range(many):
        stats.add(window(0, [row("pay", [], [0.1], status=f"no order {index}")]))
    pay = stats.workflows["Shop"].rows["pay"]
    assert len(pay.outcomes) == MAX_OUTCOMES + 1
    assert pay.reasons["other failures"] == 40
    assert sum(pay.reasons.values()) == pay.failed == many


def test_latency_is_response_time_where_there_is_one() -> None:
    stats = run()
    stats.add(window(0, [row("pay", [0.1] * 4, response=[0.4] * 4), row("login", [0.1] * 4)]))
    rows = stats.workflows["Shop"].rows
    assert rows["pay"].latency.max_s == 0.4
    assert rows["pay"].service.max_s == 0.1
    assert rows["login"].latency.max_s == 0.1
    assert (rows["pay"].has_response, rows["login"].has_response) == (True, False)
    assert rows["pay"].windows.at(0).latency.max_s == 0.4


def test_the_warm_up_has_windows_but_no_totals() -> None:
    stats = run(warmup_s=2.0)
    for second in range(4):
        stats.add(
            window(
                second,
                [row("pay", [0.1] * 10)],
                iterations=10,
                checks=[CheckDelta("has_price", 9, 1)],
                metrics=[counter("orders", 10)],
                starts=StartsDelta(planned=10, made=10),
                requests=RequestsDelta(sent=10, answered=10),
                connect=[0.001],
            )
        )
    shop = stats.workflows["Shop"]
    assert (shop.rows["pay"].count, shop.iteration.count) == (20, 20)
    assert (shop.checks["has_price"].passed, shop.metrics["orders"].sum) == (18, 20)
    assert (shop.starts.made, shop.requests.sent, shop.connect.count) == (20, 20, 2)
    assert [each.count for each in shop.rows["pay"].windows] == [10, 10, 10, 10]
    assert [each.made for each in shop.windows] == [10, 10, 10, 10]
    assert shop.measured_s == 2.0


def test_set_up_workflows_have_no_warm_up() -> None:
    setup = workflow_manifest("Setup", ["tenant"], is_test=False)
    stats = RunStats(file_manifest(setup), warmup_s=5.0)
    stats.add(window(0, [row("tenant", [0.1])], workflow="Setup"))
    assert stats.workflows["Setup"].rows["tenant"].count == 1


def test_users_are_summed_over_shares_of_one_second_and_not_over_time() -> None:
    stats = run()
    for second, (first, second_share) in enumerate([(5, 5), (8, 7), (2, 3)]):
        stats.add(window(second, share=0, users=first, busy=first))
        stats.add(window(second, share=1, users=second_share, busy=1))
    stats.add(window(2, share=1, users=1))
    shop = stats.workflows["Shop"]
    assert (shop.users.now, shop.users.max, shop.busy_max) == (3, 15, 9)
    assert [each.users for each in shop.windows] == [10, 15, 5]


def test_metrics_of_all_kinds_add_up() -> None:
    stats = run()
    for second in range(2):
        stats.add(
            window(
                second,
                metrics=[
                    counter("orders", 3, count=2),
                    gauge("queue", 4.0 + second, 9.0, 5.0),
                    rate("cached", 3, 4),
                    sample("size", "kB", 10.0, 30.0),
                ],
            )
        )
    metrics = stats.workflows["Shop"].metrics
    assert (metrics["orders"].sum, metrics["orders"].count) == (6, 4)
    queue = metrics["queue"]
    assert (queue.last, queue.minimum, queue.maximum) == (5.0, 4.0, 9.0)
    assert metrics["cached"].hit_share == 0.75
    assert metrics["size"].sample_quantile(1.0) == pytest.approx(30.0)
    assert metrics["size"].mean == 20.0


def test_calls_that_no_row_shows_are_told_apart() -> None:
    stats = run()
    requests = RequestsDelta(sent=20, redirects=2, reconnects=1)
    stats.add(window(0, [row("pay", [0.1] * 9, interrupted=1)], requests=requests))
    assert stats.workflows["Shop"].other_calls == 7


def test_the_earliest_of_equal_errors_is_kept_and_told_once() -> None:
    stats = run()
    stats.add(ErrorSample("Shop", "pay", "KeyError 'id'", 4.0, "shop.py:31 in pay"))
    stats.add(ErrorSample("Shop", "pay", "KeyError 'id'", 3.0, "shop.py:31 in pay"))
    stats.add(ErrorSample("Shop", "pay", "503", 5.0))
    assert [sample.at_s for sample in stats.error_samples("Shop", "pay")] == [3.0, 5.0]
    told = stats.snapshot(6.0).new_errors
    assert [error.reason for error in told] == ["KeyError 'id'", "503 Service Unavailable"]
    assert stats.snapshot(7.0).new_errors == ()


def test_error_samples_are_bounded() -> None:
    stats = run()
    for index in range(MAX_ERROR_SAMPLES + 5):
        stats.add(ErrorSample("Shop", "pay", f"no order {index}", 1.0))
    assert (len(stats.errors), stats.errors_not_kept) == (MAX_ERROR_SAMPLES, 5)


def test_recent_speaks_of_the_last_complete_seconds() -> None:
    stats = run()
    for second in range(5):
        for share in range(2):
            stats.add(window(second, [row("pay", [0.1 * (second + 1)] * 10)], share=share))
    stats.add(window(5, [row("pay", [9.0])], share=0))
    rate_per_s, histogram = stats.recent("Shop", "pay", 2)
    assert (rate_per_s, histogram.count, histogram.max_s) == (20.0, 40, 0.5)


def test_a_silent_share_is_waited_for_two_seconds() -> None:
    stats = run()
    stats.add(window(0, share=0))
    stats.add(window(0, share=1))
    for second in range(1, 9):
        stats.add(window(second, share=0))
    assert stats.workflows["Shop"].complete_second == 6


def test_a_rate_of_long_ago_is_not_shown_as_the_present_one() -> None:
    stats = run()
    for second in range(2):
        stats.add(window(second, [row("pay", [0.1] * 3)], iterations=3))
    shown = [stats.snapshot(now_s).workflows[0] for now_s in (2.5, 7.5, 8.5)]
    assert [each.rate_now_per_s > 0 for each in shown] == [True, True, False]
    assert shown[-1].executions_now_per_s == shown[-1].samples_now == 0
    assert shown[-1].iterations == shown[0].iterations > 0


def test_health_is_kept_per_process() -> None:
    stats = run()
    for second in range(1, 5):
        stats.add(health(second * 1.001, cpu=0.25, lag_s=[0.001] * 9 + [0.002], gc_max_s=0.01))
        stats.add(health(second * 0.999, process=1, cpu=0.75, rss_mb=60 + second))
    processes = stats.health.processes
    assert (processes[0].cpu_max, processes[1].cpu_max) == (0.25, 0.75)
    assert processes[1].rss_max_mb == 64
    assert stats.health.cpu == pytest.approx(0.5, abs=0.01)
    assert processes[0].seconds == pytest.approx(4, abs=0.01)
    assert stats.health.lag.count == 80
    assert [each.reports for each in stats.health.windows] == [2, 2, 2, 2]
    assert stats.health.windows.at(0).lag_max_s == 0.002


def test_seconds_are_kept_only_for_a_while() -> None:
    stats = run()
    stats.keep_seconds(30)
    for second in range(200):
        stats.add(window(second, [row("pay", [0.1])]))
    shop = stats.workflows["Shop"]
    assert 30 < len(shop.seconds) <= shop.keep_s
    assert len(shop.latest(30)) == 30
    assert shop.rows["pay"].count == 200


def test_first_byte_and_connect_are_merged() -> None:
    stats = run()
    for second in range(2):
        stats.add(window(second, [row("pay", [0.2], first_byte=[0.1])], connect=[0.01, 0.02]))
    shop = stats.workflows["Shop"]
    assert shop.connect == Histogram.from_data(data([0.01, 0.02] * 2))
    first_byte = shop.rows["pay"].first_byte
    assert first_byte is not None and first_byte.count == 2


def test_requests_in_flight_belong_to_their_step() -> None:
    stats = run()
    report = window(0, [row("pay", [0.1] * 9)], requests=RequestsDelta(sent=12))
    report.rows[0].started = 12
    stats.add(report)
    assert stats.workflows["Shop"].other_calls == 0


@pytest.mark.parametrize(
    ("model", "duration_s", "elapsed_s", "rated_s"),
    [
        ("iterations", 86400.0, 0.001, 1.0),
        ("iterations", 86400.0, 4.2, 4.2),
        ("closed", 0.5, 0.51, 0.51),
        ("closed", 60.0, 0.1, 1.0),
    ],
)
def test_a_rate_is_per_second_also_of_a_run_that_took_a_millisecond(
    model: Model, duration_s: float, elapsed_s: float, rated_s: float
) -> None:
    profile = Profile(model=model, iterations=5, duration_s=duration_s)
    stats = RunStats(file_manifest(workflow_manifest(profile=profile)))
    stats.add(window(0, [row("pay", [0.0001] * 5)], iterations=5))
    stats.workflows["Shop"].elapsed_s = elapsed_s
    assert stats.workflows["Shop"].rated_s == rated_s
    assert stats.workflows["Shop"].measured_s == elapsed_s
