"""How thresholds are written, and what they then speak of."""

from __future__ import annotations

import pytest

from squall.api.errors import ConfigError
from squall.stats.manifest import FileManifest, MetricManifest
from squall.stats.thresholds.judge import BoundThreshold, bind, bind_all, parse_threshold
from tests.unit.stats.lab.reports import file_manifest, workflow_manifest

METRICS = [
    MetricManifest(name="orders", kind="counter"),
    MetricManifest(name="queue", kind="gauge"),
    MetricManifest(name="cached", kind="rate"),
    MetricManifest(name="server_time", kind="sample", unit="ms"),
    MetricManifest(name="size", kind="sample", unit="kB"),
]


def shop() -> FileManifest:
    return file_manifest(workflow_manifest(metrics=METRICS, actions=["sign_in"]))


def two_tests() -> FileManifest:
    return file_manifest(
        workflow_manifest("Setup", ["tenant"], is_test=False),
        workflow_manifest("Browse", ["home", "search"]),
        workflow_manifest("Buy", ["home", "pay"]),
    )


def bound(text: str, manifest: FileManifest | None = None, of: str | None = None) -> BoundThreshold:
    return bind(parse_threshold(text, default_workflow=of), manifest or shop())


def refusal(text: str, manifest: FileManifest | None = None, of: str | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        bound(text, manifest, of)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "target", "name", "field", "stat", "q", "limit", "unit"),
    [
        ("pay.p(99) < 800ms", "row", "pay", "latency", "p", 0.99, 0.8, "ms"),
        ("pay.p(99.9) < 2s", "row", "pay", "latency", "p", 0.999, 2.0, "ms"),
        ("Shop.pay.p(50)<=250us", "row", "pay", "latency", "p", 0.5, 0.00025, "ms"),
        ("pay.avg < 500", "row", "pay", "latency", "avg", None, 0.5, "ms"),
        ("pay.med < 500", "row", "pay", "latency", "p", 0.5, 0.5, "ms"),
        ("pay.max < 5s", "row", "pay", "latency", "max", None, 5.0, "ms"),
        ("pay.count > 100", "row", "pay", "latency", "count", None, 100, ""),
        ("pay.rps >= 10/s", "row", "pay", "latency", "rps", None, 10, "/s"),
        ("pay.errors < 1%", "row", "pay", "latency", "share", None, 0.01, "%"),
        ("pay.service.p(99) < 800", "row", "pay", "service", "p", 0.99, 0.8, "ms"),
        ("Shop.pay.first_byte.p(95) < 1s", "row", "pay", "first_byte", "p", 0.95, 1.0, "ms"),
        ("pay.connect.p(95) < 1s", "connect", "", "latency", "p", 0.95, 1.0, "ms"),
        ("connect.p(95) < 1s", "connect", "", "latency", "p", 0.95, 1.0, "ms"),
        ("errors < 0.01", "rows", "", "latency", "share", None, 0.01, "%"),
        ("Shop.errors < 1%", "rows", "", "latency", "share", None, 0.01, "%"),
        ("errors.count == 0", "rows", "", "latency", "count", None, 0, ""),
        ("checks > 99%", "checks", "", "latency", "share", None, 0.99, "%"),
        ("dropped < 0.1%", "dropped", "", "latency", "share", None, 0.001, "%"),
        ("late.count < 10", "late", "", "latency", "count", None, 10, ""),
        ("rps > 100", "rows", "", "latency", "rps", None, 100, "/s"),
        ("iterations > 1000", "iteration", "", "latency", "count", None, 1000, ""),
        ("iterations > 10/s", "iteration", "", "latency", "rps", None, 10, "/s"),
        ("iteration.p(95) < 1s", "iteration", "", "latency", "p", 0.95, 1.0, "ms"),
        ("iteration.errors < 1%", "iteration", "", "latency", "share", None, 0.01, "%"),
        ("iteration.service.p(95) < 1s", "iteration", "", "service", "p", 0.95, 1.0, "ms"),
        ("orders > 10/s", "metric", "orders", "latency", "rps", None, 10, "/s"),
        ("orders > 100", "metric", "orders", "latency", "count", None, 100, ""),
        ("Shop.orders.rps > 1", "metric", "orders", "latency", "rps", None, 1, "/s"),
        ("queue < 50", "metric", "queue", "latency", "last", None, 50, ""),
        ("queue.max < 50", "metric", "queue", "latency", "max", None, 50, ""),
        ("queue.min > -5", "metric", "queue", "latency", "min", None, -5, ""),
        ("cached > 90%", "metric", "cached", "latency", "share", None, 0.9, "%"),
        ("server_time.p(95) < 0.5s", "metric", "server_time", "latency", "p", 0.95, 500, "ms"),
        ("server_time.avg < 20", "metric", "server_time", "latency", "avg", None, 20, "ms"),
        ("size.p(95) < 20", "metric", "size", "latency", "p", 0.95, 20, "kB"),
        ("http_req_duration: p(95)<500", "http_rows", "", "service", "p", 0.95, 0.5, "ms"),
        ("http_req_duration{step:pay}: p(95)<500", "row", "pay", "service", "p", 0.95, 0.5, "ms"),
        ("http_req_waiting{step: pay}:avg<500", "row", "pay", "first_byte", "avg", None, 0.5, "ms"),
        ("http_req_connecting: max<500", "connect", "", "service", "max", None, 0.5, "ms"),
        ("http_req_failed: rate<0.01", "http_rows", "", "service", "share", None, 0.01, "%"),
        ("http_req_failed{step:pay}: rate<1%", "row", "pay", "service", "share", None, 0.01, "%"),
        ("http_reqs: count>100", "requests", "", "service", "count", None, 100, ""),
        ("http_reqs: rate>100", "requests", "", "service", "rps", None, 100, "/s"),
        ("iterations: rate>5", "iteration", "", "service", "rps", None, 5, "/s"),
        ("iteration_duration: med<900", "iteration", "", "service", "p", 0.5, 0.9, "ms"),
        ("checks: rate>0.9", "checks", "", "service", "share", None, 0.9, "%"),
        ("dropped_iterations: count<5", "dropped", "", "service", "count", None, 5, ""),
        ("orders: rate>5", "metric", "orders", "latency", "rps", None, 5, "/s"),
        ("cached: rate>0.9", "metric", "cached", "latency", "share", None, 0.9, "%"),
        ("queue: value<9", "metric", "queue", "latency", "last", None, 9, ""),
        ("server_time: p(90)<9", "metric", "server_time", "latency", "p", 0.9, 9, "ms"),
    ],
)
def test_every_form_means_what_it_says(
    text: str,
    target: str,
    name: str,
    field: str,
    stat: str,
    q: float | None,
    limit: float,
    unit: str,
) -> None:
    found = bound(text)
    assert (found.target, found.name, found.stat) == (target, name, stat)
    assert found.field == field
    assert q is None or found.q == pytest.approx(q)
    assert found.limit == pytest.approx(limit)
    assert found.unit == unit
    assert str(found) == str(found.threshold) == text


def test_the_tail_is_read() -> None:
    plain = parse_threshold("pay.p(99) < 2s")
    assert (plain.over_s, plain.abort, plain.abort_after_s) == (None, False, 0.0)
    over = parse_threshold("pay.p(99) < 2s over 10s, abort after 30s")
    assert (over.over_s, over.abort, over.abort_after_s) == (10, True, 30.0)
    assert parse_threshold("errors<1% ,  abort").abort
    assert parse_threshold("pay.p(99)<500 over 1m").over_s == 60


@pytest.mark.parametrize(
    ("text", "column", "words"),
    [
        ("", 1, "expected a name"),
        ("   ", 4, "expected a name"),
        ("pay", 4, "expected a comparison; the text ends"),
        ("pay.p99 < 800ms", 5, 'write "p(99)"'),
        ("pay.p(99 < 800ms", 5, 'write "p(99)"'),
        ("pay.P(99) < 800ms", 5, 'write "p(99)"'),
        ("pay.p() < 800ms", 5, 'write "p(95)"'),
        ("pay.p(101) < 800ms", 5, "between 50 and 99.99"),
        ("pay.p(10) < 800ms", 5, "between 50 and 99.99"),
        ("p(95) < 500", 1, 'write which step: "pay.p(95)"'),
        ("pay.p(95).max < 500", 10, "nothing may follow a percentile"),
        ("pay.p(95) = 500", 11, 'write "=="'),
        ("pay.p(95) =< 500", 11, 'write "<="'),
        ("pay.p(95) <> 500", 11, 'write "!="'),
        ("pay.p(95) is 500", 11, 'expected a comparison; found "is"'),
        ("pay.p(95) < fast", 13, 'expected a value; found "fast"'),
        ("pay.p(95) < 5min", 14, '"min" is not a unit'),
        ("pay.p(95) < 1m", 14, "write seconds: 60s"),
        ("pay.p(95) < 500ms over", 23, 'expected a duration after "over"'),
        ("pay.p(95) < 500ms over 0.5s", 24, "whole seconds"),
        ("pay.p(95) < 500ms over 2h", 24, "whole seconds"),
        ("pay.p(95) < 500ms over 10x", 24, "is not a duration"),
        ("pay.p(95) < 500ms, stop", 20, 'expected "abort"'),
        ("pay.p(95) < 500ms abort", 19, 'write ", abort" with a comma'),
        ("pay.p(95) < 500ms, abort after", 31, "expected a duration"),
        ("pay.p(95) < 500ms, abort now", 26, "after the end"),
        ("http_req_duration{url:/}: p(95)<5", 18, "write {step:name}"),
        ("pay.crunch < 5", 5, 'has no statistic "crunch"'),
        ("pay.cuont < 5", 5, 'did you mean "count"?'),
        ("pya.p(95) < 5", 1, 'did you mean "pay"?'),
        ("Shop.pya.p(95) < 5", 6, 'did you mean "pay"?'),
        ("erors < 1%", 1, 'did you mean "errors"?'),
        ("zzz.p(95) < 5", 1, "steps are login, pay, sign_in"),
        ("pay < 5", 1, 'write "pay.p(95)"'),
        ("sign_in.p(95) < 5", 1, "is not measured"),
        ("pay.service < 5", 5, "needs a statistic"),
        ("pay.max.p(95) < 5", 5, "cannot be followed"),
        ("pay.service.max.min < 5", 13, "cannot be followed"),
        ("errors.p(95) < 5", 8, "has no percentiles"),
        ("checks.max < 5", 8, "it takes no statistic"),
        ("size < 5", 1, "needs a statistic"),
        ("http_req_duration < 500", 1, "with a colon"),
        ("http_req_durations: p(95)<5", 1, 'did you mean "http_req_duration"?'),
        ("http_req_failed: p(95)<5", 18, "has no percentiles"),
        ("iteration_duration{step:pay}: p(95)<5", 1, "is not kept per step"),
        ("orders{step:pay}: count>5", 1, "is not kept per step"),
        ("http_req_duration{step:pya}: p(95)<5", 1, 'did you mean "pay"?'),
        ("pay.p(95) < 5%", 13, "does not fit a time"),
        ("pay.p(95) < 5/s", 13, "does not fit a time"),
        ("pay.p(95) < -5", 13, "cannot be below 0"),
        ("errors < 5ms", 10, "does not fit a share"),
        ("checks > 99", 10, "write 99%"),
        ("rps > 5%", 7, "does not fit a rate"),
        ("pay.count > 5/s", 13, "does not fit a count"),
        ("size.p(95) < 5ms", 14, '"size" is in kB'),
        ("queue < 5%", 9, '"queue" has no unit'),
    ],
)
def test_a_mistake_is_one_line_with_its_column_and_what_to_do(
    text: str, column: int, words: str
) -> None:
    message = refusal(text)
    assert f"column {column}:" in message
    assert words in message


def test_a_long_text_is_not_quoted_in_full() -> None:
    assert len(refusal("x" * 10_000 + " < 5")) < 600
    assert len(refusal("errors < " + "y" * 10_000)) < 400


def test_a_step_of_two_workflows_must_be_qualified() -> None:
    message = refusal("home.p(95) < 5", two_tests())
    assert '"Browse.home" or "Buy.home"' in message
    assert bound("Buy.home.p(95) < 5", two_tests()).workflows == ("Buy",)
    assert bound("pay.p(95) < 5", two_tests()).workflows == ("Buy",)
    assert bound("home.p(95) < 5", two_tests(), of="Browse").workflows == ("Browse",)
    k6 = bound("http_req_duration{step:home}: p(95)<5", two_tests(), of="Buy")
    assert k6.workflows == ("Buy",)


def test_names_without_a_workflow_speak_of_all_tests() -> None:
    assert bound("errors < 1%", two_tests()).workflows == ("Browse", "Buy")
    assert bound("errors < 1%", two_tests(), of="Buy").workflows == ("Buy",)
    assert bound("tenant.p(95) < 1s", two_tests()).workflows == ("Setup",)


def test_a_step_of_another_workflow_is_suggested_by_its_full_name() -> None:
    assert 'write "Buy.pay"' in refusal("pay.p(95) < 5", two_tests(), of="Browse")
    assert bound("Buy.pay.p(95) < 5", two_tests(), of="Browse").workflows == ("Buy",)


def test_a_step_may_have_the_name_of_a_statistic_or_of_a_workflow() -> None:
    odd = file_manifest(workflow_manifest("Shop", ["errors", "Shop"]))
    assert bound("errors < 1%", odd).target == "rows"
    assert (bound("errors.p(95) < 1", odd).target, bound("Shop.p(95) < 1", odd).target) == (
        "row",
        "row",
    )


def test_a_step_may_be_called_like_a_short_percentile() -> None:
    pages = file_manifest(workflow_manifest("Shop", ["p1", "p95"]))
    assert bound("p1.p(95) < 1s", pages).name == "p1"
    assert bound("p95.max < 1s", pages).name == "p95"


def test_all_thresholds_of_a_file_and_the_command_line_are_bound() -> None:
    manifest = file_manifest(workflow_manifest(thresholds=["pay.p(95) < 5", "errors < 1%"]))
    found = bind_all(manifest, ["rps > 5"])
    assert [str(each) for each in found] == [
        "pay.p(95) < 5",
        "errors < 1%",
        "rps > 5",
        "errors < 100%",
    ]
    assert [each.builtin for each in found] == [False, False, False, True]


def test_a_file_without_a_test_has_no_built_in_threshold() -> None:
    assert bind_all(file_manifest(workflow_manifest(is_test=False))) == []


def scoped(text: str, *scopes: str, manifest: FileManifest | None = None) -> BoundThreshold:
    return bind(parse_threshold(text, scopes=scopes), manifest or shop(), scopes)


def test_a_threshold_may_be_about_one_datacenter() -> None:
    found = scoped("eu: pay.p(99) < 800ms", "eu", "us-east-1")
    assert (found.scope, found.row, str(found)) == ("eu", "pay", "eu: pay.p(99) < 800ms")
    assert scoped("us-east-1: errors < 1%, abort", "us-east-1").threshold.abort
    assert scoped("eu:rps > 3", "eu").stat == "rps"
    assert scoped("eu: http_req_duration: p(95) < 500", "eu").threshold.k6
    assert scoped("pay.p(99) < 800ms", "eu").scope == ""
    assert scoped("orders: count > 3", "eu").scope == "", "a metric in the k6 form"


def test_the_workflow_of_a_class_stands_after_the_scope() -> None:
    manifest = two_tests()
    manifest.workflows[2].thresholds = ["eu: pay.p(99) < 800ms"]
    (found, _) = bind_all(manifest, scopes=["eu", "us"])
    assert (found.scope, str(found)) == ("eu", "eu: Buy.pay.p(99) < 800ms")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ap: pay.p(99) < 800ms", 'column 1: no datacenter "ap"; there are eu, us'),
        ("ap: errors < 1%", 'no metric or datacenter "ap"; there are eu, us'),
        ("ap-1: errors < 1%", 'no datacenter "ap-1"; there are eu, us'),
        ("eu: http_req_duratoin: p(95) < 5", 'no metric "http_req_duratoin"; did you mean'),
    ],
)
def test_an_unknown_datacenter_is_refused_before_the_start(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        scoped(text, "eu", "us")
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_a_scope_needs_a_run_in_datacenters() -> None:
    assert "this run has no datacenters" in refusal("eu: pay.p(99) < 800ms")
