"""Metrics that an author declares as class attributes; the attribute names the metric.

Each process has its own; the recorder reads and clears it once a second.
"""

from __future__ import annotations

from array import array
from math import isfinite
from typing import ClassVar

from squall.api.quantities import text_of


class Metric:
    """The base class of all metrics; holds the values added since the last report."""

    kind: ClassVar[str]

    def __init__(self, unit: str = "") -> None:
        self.unit = text_of(f"{type(self).__name__} unit", unit, 'write one, such as "ms" or "B"')
        self.name = ""
        self.count = 0
        self.sum = 0.0
        self.last = 0.0
        self.minimum = 0.0
        self.maximum = 0.0
        self.hits = 0
        self.values = array("d")

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def fresh(self) -> Metric:
        """An empty metric of the same name, so that subclasses of one base do not share one."""
        metric = type(self)(self.unit)
        metric.name = self.name
        return metric

    def clear(self) -> None:
        self.count = self.hits = 0
        self.sum = self.minimum = self.maximum = 0.0
        del self.values[:]

    def _finite(self, value: float) -> float:
        # A report cannot encode Decimals and the scalars of array libraries.
        number = float(value)
        if not isfinite(number):
            raise ValueError(f"metric {self.name}: {value} is not a finite number")
        return number

    def _observe(self, value: float) -> float:
        value = self._finite(value)
        if not self.count or value < self.minimum:
            self.minimum = value
        if not self.count or value > self.maximum:
            self.maximum = value
        self.count += 1
        self.last = value
        return value


class Counter(Metric):
    """Counts: `orders.add()`, `bytes_seen.add(812)`."""

    kind = "counter"

    def add(self, amount: float = 1) -> None:
        """Adds one, or `amount`."""
        self.sum += self._finite(amount)
        self.count += 1


class Gauge(Metric):
    """A level: `queue.set(17)`; keeps the last, the lowest and the highest value."""

    kind = "gauge"

    def set(self, value: float) -> None:
        """Sets the present level."""
        self._observe(value)


class Rate(Metric):
    """A share of true values: `cached.add("HIT" in header)`."""

    kind = "rate"

    def add(self, hit: bool) -> None:
        """Counts one case, and whether it was a hit."""
        self.count += 1
        if hit:
            self.hits += 1


class Sample(Metric):
    """A distribution: `size.add(len(body))`; gives percentiles."""

    kind = "sample"

    def add(self, value: float) -> None:
        """Adds one value to the distribution."""
        value = self._observe(value)
        self.sum += value
        self.values.append(value)
