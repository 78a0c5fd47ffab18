"""Counters, gauges and histograms of a node; prometheus-client makes their text form.

A registry belongs to one node; nothing is global. Labels are declared with the metric, and
the number of series is bounded: further label values fall into one series labelled "other"
and are counted. So memory does not grow with what peers send. Nothing here raises in the
middle of the work that it measures.

The values are our own, because prometheus-client has no way to read a counter back, and
telemetry does. It is imported only where the text is made: `squall run` does without it.
"""

from __future__ import annotations

import importlib
import itertools
import math
import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from squall.api.errors import ConfigError

if TYPE_CHECKING:
    from prometheus_client.core import Metric

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
OTHER = "other"
LATENCY_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Counter:
    """Only rises."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def add(self, amount: float = 1.0) -> None:
        if amount > 0.0:
            self.value += amount


class Gauge:
    """Goes up and down, or follows a function that each scrape calls."""

    __slots__ = ("_function", "_value")

    def __init__(self) -> None:
        self._value = 0.0
        self._function: Callable[[], float] | None = None

    def set(self, value: float) -> None:
        self._value = value

    def add(self, amount: float = 1.0) -> None:
        self._value += amount

    def follow(self, function: Callable[[], float]) -> None:
        self._function = function

    @property
    def value(self) -> float:
        if self._function is None:
            return self._value
        try:
            return self._function()
        except Exception:
            return math.nan


class Histogram:
    """Counts per bucket; a bucket holds values up to its bound, the last one all others."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        if value == value:
            self.counts[bisect_left(self.bounds, value)] += 1
            self.total += value

    def buckets(self) -> list[tuple[str, float]]:
        """Upper bound and cumulative count of each bucket."""
        sums = itertools.accumulate(self.counts)
        labels = map(_bound_label, (*self.bounds, math.inf))
        return list(zip(labels, sums, strict=True))


Child = TypeVar("Child", Counter, Gauge, Histogram)
Made = TypeVar("Made")


class Family(Generic[Child]):
    """A metric with its labels; `with_labels` gives one series."""

    def __init__(
        self,
        kind: str,
        name: str,
        text: str,
        labels: Sequence[str],
        make: Callable[[], Child],
        series: int,
    ) -> None:
        self.kind = kind
        self.name = name
        self.text = text
        self.labels = tuple(labels)
        self.overflowed = 0
        self._make = make
        self._series = series
        self._children: dict[tuple[str, ...], Child] = {}

    def with_labels(self, *values: object) -> Child:
        """Keep the result where it is used often. Values are in the order of the labels."""
        key = tuple(map(str, values))
        child = self._children.get(key)
        if child is not None:
            return child
        if len(key) != len(self.labels):
            raise ValueError(f"{self.name} has the labels {self.labels}, not {len(key)} values")
        if len(self._children) >= self._series:
            self.overflowed += 1
            key = (OTHER,) * len(self.labels)
        return self._children.setdefault(key, self._make())

    def __iter__(self) -> Iterator[tuple[tuple[str, ...], Child]]:
        return iter(list(self._children.items()))

    def collected(self) -> Metric:
        from prometheus_client.core import (
            CounterMetricFamily,
            GaugeMetricFamily,
            HistogramMetricFamily,
        )

        if self.kind == "histogram":
            shown = HistogramMetricFamily(self.name, self.text, labels=self.labels)
        elif self.kind == "counter":
            shown = CounterMetricFamily(self.name, self.text, labels=self.labels)
        else:
            shown = GaugeMetricFamily(self.name, self.text, labels=self.labels)
        for values, child in self:
            if isinstance(child, Histogram):
                assert isinstance(shown, HistogramMetricFamily)
                shown.add_metric(values, child.buckets(), child.total)
            else:
                assert not isinstance(shown, HistogramMetricFamily)
                shown.add_metric(values, child.value)
        return shown


class Registry:
    """All metrics of a node, in the order in which they were made."""

    def __init__(self, *, series_per_metric: int = 1000) -> None:
        self._series = series_per_metric
        self._families: dict[str, Family[Any]] = {}
        self._made: dict[object, Any] = {}

    def once(self, make: Callable[[Registry], Made]) -> Made:
        """The result of `make(self)`, made at the first call. It lives as long as the registry; a
        table elsewhere would keep alive both of them and all that their gauges follow."""
        if make not in self._made:
            self._made[make] = make(self)
        return self._made[make]

    def counters(self, name: str, text: str, labels: Sequence[str]) -> Family[Counter]:
        if not name.endswith("_total"):
            raise ConfigError(f"counter {name} must be called {name}_total")
        return self._add(Family("counter", name, text, labels, Counter, self._series))

    def gauges(self, name: str, text: str, labels: Sequence[str]) -> Family[Gauge]:
        return self._add(Family("gauge", name, text, labels, Gauge, self._series))

    def histograms(
        self,
        name: str,
        text: str,
        labels: Sequence[str],
        *,
        bounds: Sequence[float] = LATENCY_BUCKETS_S,
    ) -> Family[Histogram]:
        rising = all(low < high for low, high in itertools.pairwise(bounds))
        if not bounds or not rising or not all(map(math.isfinite, bounds)) or "le" in labels:
            raise ConfigError(f"histogram {name} needs rising finite bounds and no label le")
        make = partial(Histogram, tuple(bounds))
        return self._add(Family("histogram", name, text, labels, make, self._series))

    def counter(self, name: str, text: str) -> Counter:
        return self.counters(name, text, ()).with_labels()

    def gauge(self, name: str, text: str) -> Gauge:
        return self.gauges(name, text, ()).with_labels()

    def histogram(
        self, name: str, text: str, *, bounds: Sequence[float] = LATENCY_BUCKETS_S
    ) -> Histogram:
        return self.histograms(name, text, (), bounds=bounds).with_labels()

    def collect(self) -> Iterator[Metric]:
        """The families as prometheus-client knows them: this is a collector, so a host
        application can also register it with its own `CollectorRegistry`."""
        from prometheus_client.core import CounterMetricFamily

        for family in self._families.values():
            yield family.collected()
        overflowed = [family for family in self._families.values() if family.overflowed]
        if overflowed:
            text = "Lookups of a series beyond the bound of its metric."
            shown = CounterMetricFamily("squall_metrics_overflowed", text, labels=["metric"])
            for family in overflowed:
                shown.add_metric([family.name], family.overflowed)
            yield shown

    def exposition(self) -> str:
        """The text form, version 0.0.4."""
        from prometheus_client import generate_latest

        return generate_latest(self).decode()

    def _add(self, family: Family[Child]) -> Family[Child]:
        name = family.name
        if not NAME.fullmatch(name) or name in self._families:
            raise ConfigError(f"metric {name!r} exists already or is not a name")
        for label in family.labels:
            if not LABEL.fullmatch(label) or label.startswith("__"):
                raise ConfigError(f"metric {name}: {label!r} is not the name of a label")
        self._families[name] = family
        return family


def load_text_format() -> None:
    """Imports prometheus-client, which takes about 100 ms: before a node serves, because the
    first scrape must not stop its event loop for so long."""
    importlib.import_module("prometheus_client")


def _bound_label(bound: float) -> str:
    return "+Inf" if math.isinf(bound) else str(int(bound) if bound == int(bound) else bound)
