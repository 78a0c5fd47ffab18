"""The metric model: live values never fall, and the last ones are those of the document."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from squall.reporting.document.build import build_document
from squall.reporting.outputs.live.exponential import SCALE, exponential
from squall.reporting.outputs.live.metrics import METRICS, Deltas, MetricSource, Points
from squall.stats.histogram import Histogram
from squall.stats.snapshot import Snapshot
from tests.lab.outputs import RUN, step_totals


def live_snapshot(outcome: Any) -> Snapshot:
    outcome.stats.shows_histograms = True
    return outcome.stats.snapshot(10.0)


def executions(points: Points) -> dict[tuple[str, ...], float]:
    return {
        tuple(value for _, value in each.labels[-3:]): each.value
        for each in points.values
        if each.metric.name == "executions"
    }


def test_the_last_values_are_the_totals_of_the_document(make_outcome: Any) -> None:
    outcome = make_outcome()
    document = build_document(outcome)
    source = MetricSource(RUN)
    live = source.of_snapshot(live_snapshot(outcome))
    final = source.of_document(document)
    assert executions(final) == step_totals(document)
    # Everything was reported by then, so that the last live values are the same.
    assert executions(live) == executions(final)
    names = {each.metric.name for each in final.values}
    counters = {name for name, metric in METRICS.items() if metric.type == "counter"}
    assert names >= counters - {"datacenter_executions"}
    both = [
        {(each.metric.name, each.labels): each.value for each in points.values
         if each.metric.type == "counter"}
        for points in (live, final)
    ]  # fmt: skip
    assert both[0] == both[1]
    rows = {each.labels[-2:]: each.data.count for each in live.distributions}
    assert rows == {each.labels[-2:]: each.data.count for each in final.distributions}


def test_every_value_has_the_run_the_tags_and_the_labels_of_its_metric(make_outcome: Any) -> None:
    points = MetricSource(RUN).of_snapshot(live_snapshot(make_outcome()))
    common = (("run", "01J9Z4"), ("env", "staging"), ("tag_step", "one"))
    for each in (*points.values, *points.distributions):
        assert each.labels[:3] == common
        assert tuple(name for name, _ in each.labels[3:]) == each.metric.labels


def test_totals_never_fall_when_another_manager_knows_less(make_outcome: Any) -> None:
    snapshot = live_snapshot(make_outcome())
    source = MetricSource(RUN)
    first = source.of_snapshot(snapshot)
    workflow = snapshot.workflows[0]
    rows = tuple(replace(row, count=1, failed=0, latency=None) for row in workflow.rows)
    less = replace(snapshot, workflows=(replace(workflow, rows=rows, bytes_sent=0),))
    second = source.of_snapshot(less)
    assert executions(second) == executions(first)


def test_what_a_counter_grew_by_adds_up_also_after_a_failed_delivery(make_outcome: Any) -> None:
    outcome = make_outcome()
    source, deltas = MetricSource(RUN), Deltas()
    added: dict[Any, float] = {}
    live = source.of_snapshot(live_snapshot(outcome))
    deltas.of(live)
    # Not delivered: the next ones hold it.
    for points in (live, source.of_document(build_document(outcome))):
        for each in deltas.of(points):
            key = (each.metric.name, each.labels)
            added[key] = added.get(key, 0.0) + each.value
        deltas.delivered()
    last = {(each.metric.name, each.labels): each.value for each in live.values}
    assert added and all(last[key] == value for key, value in added.items())
    assert deltas.of(live) == []


def test_an_exponential_histogram_holds_each_value_in_its_bucket() -> None:
    values = [0.0001, 0.001, 0.0153, 0.25, 1.0, 7.5]
    base = 2.0 ** (2.0**-SCALE)
    for value in values:
        found = exponential(Histogram.from_seconds([value]).to_data())
        assert found.counts == [1]
        low, high = base**found.offset, base ** (found.offset + 1)
        assert low * 0.992 <= value <= high * 1.008
    whole = exponential(Histogram.from_seconds(values * 3).to_data())
    assert sum(whole.counts) == 18 and whole.counts[0] == whole.counts[-1] == 3
