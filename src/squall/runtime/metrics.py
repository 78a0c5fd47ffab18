"""Counters, gauges and histograms of a node, and their text form for Prometheus.

A registry belongs to one node; there is nothing global. Labels are declared with the
metric, and the number of their combinations is bounded: what comes after falls into one
series labelled "other" and is counted. It must never grow with what peers send, and never
raise in the middle of the work that it measures.
"""

from __future__ import annotations

import itertools
import math
import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

from squall.api.errors import ConfigError

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
OTHER = "other"
LATENCY_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
SIZE_BUCKETS_BYTES = (256.0, 1024.0, 4096.0, 16384.0, 65536.0, 262144.0, 1048576.0)


class Counter:
    """Only rises."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def add(self, amount: float = 1.0) -> None:
        if amount > 0.0:
            self.value += amount


class Gauge:
    """Goes up and down, or follows a function that is asked when the text is made."""

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
    """Counts per bucket; a bucket holds values up to its bound, and the last all others."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        if value == value:
            self.counts[bisect_left(self.bounds, value)] += 1
            self.total += value


Child = TypeVar("Child", Counter, Gauge, Histogram)
Made = TypeVar("Made")


class Family(Generic[Child]):
    """A metric with its labels; `with_labels` gives the series to count on."""

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


class Registry:
    """All metrics of a node, in the order in which they were made."""

    def __init__(self, *, series_per_metric: int = 1000) -> None:
        self._series = series_per_metric
        self._families: dict[str, Family[Any]] = {}
        self._made: dict[object, Any] = {}

    def once(self, make: Callable[[Registry], Made]) -> Made:
        """What `make` makes of this registry, made at the first call. It lives as long as the
        registry does; a table elsewhere would keep both, and all that gauges follow."""
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

    def exposition(self) -> str:
        """The text form, version 0.0.4."""
        lines: list[str] = []
        for family in self._families.values():
            lines.append(f"# HELP {family.name} {_escaped(family.text)}")
            lines.append(f"# TYPE {family.name} {family.kind}")
            for values, child in family:
                lines.extend(_samples(family.name, family.labels, values, child))
        overflowed = [family for family in self._families.values() if family.overflowed]
        if overflowed:
            name = "squall_metrics_overflowed_total"
            lines.append(f"# HELP {name} Lookups of a series beyond the bound of its metric.")
            lines.append(f"# TYPE {name} counter")
            lines.extend(
                f"{name}{_labelled(('metric',), (family.name,))} {family.overflowed}"
                for family in overflowed
            )
        return "\n".join(lines) + "\n"

    def _add(self, family: Family[Child]) -> Family[Child]:
        name = family.name
        if not NAME.fullmatch(name) or name in self._families:
            raise ConfigError(f"metric {name!r} exists already or is not a name")
        for label in family.labels:
            if not LABEL.fullmatch(label) or label.startswith("__"):
                raise ConfigError(f"metric {name}: {label!r} is not the name of a label")
        self._families[name] = family
        return family


def _samples(
    name: str, labels: tuple[str, ...], values: tuple[str, ...], child: Counter | Gauge | Histogram
) -> Iterator[str]:
    if not isinstance(child, Histogram):
        yield f"{name}{_labelled(labels, values)} {_number(child.value)}"
        return
    seen = 0
    for bound, count in zip((*child.bounds, math.inf), child.counts, strict=True):
        seen += count
        yield f"{name}_bucket{_labelled((*labels, 'le'), (*values, _number(bound)))} {seen}"
    yield f"{name}_sum{_labelled(labels, values)} {_number(child.total)}"
    yield f"{name}_count{_labelled(labels, values)} {seen}"


def _labelled(labels: tuple[str, ...], values: tuple[str, ...]) -> str:
    if not labels:
        return ""
    pairs = zip(labels, values, strict=True)
    return (
        "{" + ",".join(f'{label}="{_escaped(value, quotes=True)}"' for label, value in pairs) + "}"
    )


def _escaped(text: str, *, quotes: bool = False) -> str:
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if quotes else text


def _number(value: float) -> str:
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    if value != value:
        return "NaN"
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(float(value))
