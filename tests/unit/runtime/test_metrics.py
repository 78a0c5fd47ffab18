"""The registry and its text form, read back by another parser."""

from __future__ import annotations

import math

import pytest
from prometheus_client.parser import text_string_to_metric_families

from squall.api.errors import ConfigError
from squall.runtime.metrics import OTHER, Registry


def parsed(registry: Registry) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(registry.exposition())
        for sample in family.samples
    }


def types(registry: Registry) -> dict[str, str]:
    families = text_string_to_metric_families(registry.exposition())
    return {family.name: family.type for family in families}


def test_counters_gauges_and_histograms_are_read_back_as_they_were_counted() -> None:
    registry = Registry()
    frames = registry.counters("squall_frames_total", "Frames.", ("class", "peer"))
    frames.with_labels("CONTROL", "a:1").add()
    frames.with_labels("CONTROL", "a:1").add(2)
    frames.with_labels("DATA", "b").add(0.5)
    registry.gauge("squall_queue_messages", "Waiting.").set(-3)
    waits = registry.histogram("squall_wait_s", "Waits.", bounds=(0.1, 1.0))
    for value in (0.05, 0.1, 0.5, 5.0):
        waits.observe(value)
    samples = parsed(registry)
    assert samples["squall_frames_total", (("class", "CONTROL"), ("peer", "a:1"))] == 3
    assert samples["squall_frames_total", (("class", "DATA"), ("peer", "b"))] == 0.5
    assert samples["squall_queue_messages", ()] == -3
    assert samples["squall_wait_s_bucket", (("le", "0.1"),)] == 2
    assert samples["squall_wait_s_bucket", (("le", "1"),)] == 3
    assert samples["squall_wait_s_bucket", (("le", "+Inf"),)] == 4
    assert samples["squall_wait_s_count", ()] == 4
    assert samples["squall_wait_s_sum", ()] == pytest.approx(5.65)
    assert types(registry) == {
        "squall_frames": "counter",
        "squall_queue_messages": "gauge",
        "squall_wait_s": "histogram",
    }


@pytest.mark.parametrize("value", ['a"b', "back\\slash", "line\nbreak", "", "ü{},=", "\\n"])
def test_any_label_value_survives_the_text_form(value: str) -> None:
    registry = Registry()
    registry.counters("c_total", 'Help with "quotes", \\ and\nbreaks.', ("v",)).with_labels(
        value
    ).add()
    assert parsed(registry) == {("c_total", (("v", value),)): 1.0}


def test_special_numbers_survive_the_text_form() -> None:
    registry = Registry()
    numbers = registry.gauges("g", "Numbers.", ("n",))
    for number in (math.inf, -math.inf, 1e300, 1e-9, 12345678901234567890.0, 0.1):
        numbers.with_labels(number).set(number)
    numbers.with_labels("nan").set(math.nan)
    samples = parsed(registry)
    for number in (math.inf, -math.inf, 1e300, 1e-9, 12345678901234567890.0, 0.1):
        assert samples["g", (("n", str(number)),)] == number
    assert math.isnan(samples["g", (("n", "nan"),)])


def test_an_empty_registry_and_an_unused_metric_are_valid_text() -> None:
    registry = Registry()
    assert parsed(registry) == {}
    registry.counters("c_total", "Unused.", ("a",))
    assert types(registry) == {"c": "counter"}


def test_the_number_of_series_is_bounded_and_the_rest_is_counted_together() -> None:
    registry = Registry(series_per_metric=3)
    peers = registry.counters("c_total", "By peer.", ("peer",))
    for number in range(100):
        peers.with_labels(number).add()
    samples = parsed(registry)
    assert samples["c_total", (("peer", "2"),)] == 1
    assert samples["c_total", (("peer", OTHER),)] == 97
    assert samples["squall_metrics_overflowed_total", (("metric", "c_total"),)] == 97
    assert len(samples) == 5


def test_a_gauge_can_follow_a_function_that_may_fail() -> None:
    registry = Registry()
    queue: list[int] = [1, 2]
    registry.gauge("good", "Follows.").follow(lambda: len(queue))
    registry.gauge("bad", "Fails.").follow(lambda: 1 / 0)
    queue.append(3)
    samples = parsed(registry)
    assert samples["good", ()] == 3
    assert math.isnan(samples["bad", ()])


def test_a_counter_never_falls_and_a_histogram_ignores_what_is_no_number() -> None:
    registry = Registry()
    counter = registry.counter("c_total", "Rises.")
    counter.add(2)
    counter.add(-1)
    histogram = registry.histogram("h", "Values.")
    histogram.observe(math.nan)
    assert counter.value == 2
    assert sum(histogram.counts) == 0


def test_names_that_prometheus_would_refuse_are_refused_here() -> None:
    registry = Registry()
    registry.gauge("taken", "x")
    for make in (
        lambda: registry.gauge("taken", "x"),
        lambda: registry.gauge("has-dash", "x"),
        lambda: registry.counter("no_suffix", "x"),
        lambda: registry.gauges("g", "x", ("1st",)),
        lambda: registry.gauges("g", "x", ("__own",)),
        lambda: registry.histograms("h", "x", ("le",)),
        lambda: registry.histogram("h", "x", bounds=(2.0, 1.0)),
        lambda: registry.histogram("h", "x", bounds=()),
    ):
        with pytest.raises(ConfigError):
            make()


def test_a_wrong_number_of_label_values_is_a_mistake_of_ours() -> None:
    family = Registry().counters("c_total", "x", ("a", "b"))
    with pytest.raises(ValueError, match="c_total has the labels"):
        family.with_labels("only one")
