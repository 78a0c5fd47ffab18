"""Metrics an author keeps as class attributes; the attribute's name is the metric's.

Each belongs to the process; the recorder drains it once a second with `take`.
"""

from __future__ import annotations

from array import array
from math import isfinite
from typing import ClassVar


class Metric:
    kind: ClassVar[str]

    def __init__(self, unit: str = "") -> None:
        self.unit = unit
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
        """An empty metric of the same name: subclasses of one base do not share."""
        metric = type(self)(self.unit)
        metric.name = self.name
        return metric

    def clear(self) -> None:
        self.count = self.hits = 0
        self.sum = self.minimum = self.maximum = 0.0
        del self.values[:]

    def _finite(self, value: float) -> float:
        # Decimals and the scalars of array libraries cannot travel; floats can.
        number = float(value)
        if not isfinite(number):
            raise ValueError(f"metric {self.name}: {value} is not a finite number")
        return number

    def _saw(self, value: float) -> float:
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
        self.sum += self._finite(amount)
        self.count += 1


class Gauge(Metric):
    """A level: `queue.set(17)`; last, least and greatest are kept."""

    kind = "gauge"

    def set(self, value: float) -> None:
        self._saw(value)


class Rate(Metric):
    """A share of true values: `cached.add("HIT" in header)`."""

    kind = "rate"

    def add(self, hit: bool) -> None:
        self.count += 1
        if hit:
            self.hits += 1


class Sample(Metric):
    """A distribution: `size.add(len(body))`; percentiles are kept."""

    kind = "sample"

    def add(self, value: float) -> None:
        value = self._saw(value)
        self.sum += value
        self.values.append(value)
