"""The target's own counts, which Squall's numbers are compared with.

Pure counters; the caller passes the stamps (`time.perf_counter`). Delays are kept as plain
samples, not in Squall's histogram: a bug in the histogram would otherwise be on both sides of the
comparison and stay hidden. Each server process has its own `Counts`; `summarise` merges their
snapshots. Nothing here may grow without bound.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from random import Random
from typing import Any, TypeVar

import msgspec
import numpy as np

# 16 MB of samples per path and process; beyond that, a uniform selection is kept.
MAX_SAMPLES = 2_000_000
MAX_ENDPOINTS = 10_000
MAX_VALUES = 1_000_000
OTHER = "(other)"


K = TypeVar("K", str, int)


class Delays:
    """The times of one endpoint from the parsed request to the written answer."""

    __slots__ = ("_random", "count", "highest_s", "lowest_s", "samples", "sum_s")

    def __init__(self) -> None:
        self._random = Random(0)
        self.clear()

    def clear(self) -> None:
        self.samples = array("d")
        self.count = 0
        self.sum_s = 0.0
        self.lowest_s = float("inf")
        self.highest_s = 0.0

    def add(self, seconds: float) -> None:
        self.count += 1
        self.sum_s += seconds
        if seconds < self.lowest_s:
            self.lowest_s = seconds
        if seconds > self.highest_s:
            self.highest_s = seconds
        if self.count <= MAX_SAMPLES:
            self.samples.append(seconds)
            return
        place = self._random.randrange(self.count)
        if place < MAX_SAMPLES:
            self.samples[place] = seconds


class EndpointCounts:
    """The counts of one method and path. Cleared in place, because requests refer to it."""

    __slots__ = ("delays", "method", "path", "requests", "statuses")

    def __init__(self, method: str, path: str) -> None:
        self.method = method
        self.path = path
        self.requests = 0
        self.statuses: dict[int, int] = {}
        self.delays = Delays()

    def clear(self) -> None:
        self.requests = 0
        self.statuses = {}
        self.delays.clear()

    def answered(self, status: int, seconds: float) -> None:
        statuses = self.statuses
        statuses[status] = statuses.get(status, 0) + 1
        self.delays.add(seconds)


class AttemptTimes(msgspec.Struct):
    """The requests of one sender, as its `X-Squall-Attempt` header names it: how many, when, and
    how many at once. The first and last arrivals show whether two senders overlapped."""

    requests: int = 0
    first_s: float = 0.0
    last_s: float = 0.0
    in_flight: int = 0
    max_in_flight: int = 0
    seconds: dict[int, int] = {}
    """Arrivals in each second of the target's clock."""

    def arrived(self, now_s: float) -> None:
        if not self.requests:
            self.first_s = now_s
        self.requests += 1
        self.last_s = now_s
        self.in_flight += 1
        if self.in_flight > self.max_in_flight:
            self.max_in_flight = self.in_flight
        second = int(now_s)
        self.seconds[second] = self.seconds.get(second, 0) + 1

    def merge(self, other: AttemptTimes) -> AttemptTimes:
        """Adds the times of the same sender at another process of the target."""
        return AttemptTimes(
            requests=self.requests + other.requests,
            first_s=min(self.first_s, other.first_s),
            last_s=max(self.last_s, other.last_s),
            in_flight=self.in_flight + other.in_flight,
            max_in_flight=self.max_in_flight + other.max_in_flight,
            seconds=_summed((self.seconds, other.seconds)),
        )


class EndpointSnapshot(msgspec.Struct):
    method: str
    path: str
    requests: int
    statuses: dict[int, int]
    samples: bytes
    count: int
    sum_s: float
    lowest_s: float
    highest_s: float


class CountsSnapshot(msgspec.Struct):
    """All counts of one process, as plain data."""

    endpoints: list[EndpointSnapshot]
    attempts: dict[str, AttemptTimes]
    fields: dict[str, dict[str, int]]
    unanswered: dict[str, int]
    connections: dict[str, int]
    max_requests: int
    first_s: float | None
    last_s: float | None
    ids_issued: list[str]
    ids_used: dict[str, int]


class Counts:
    """The counters of one server process."""

    def __init__(self) -> None:
        self._endpoints: dict[tuple[str, str], EndpointCounts] = {}
        self.open = 0
        self.in_flight = 0
        self.silent_open = 0
        self.generation = 0
        self.clear()

    def clear(self) -> None:
        """Resets the counts; open connections and requests in flight still count as such."""
        for endpoint in self._endpoints.values():
            endpoint.clear()
        self.generation += 1
        self.attempts: dict[str, AttemptTimes] = {}
        self.fields: dict[str, dict[str, int]] = {}
        self.unanswered: dict[str, int] = {}
        self.opened = 0
        self.silent_closed = 0
        self.max_open = self.open
        self.max_in_flight = self.in_flight
        self.first_s: float | None = None
        self.last_s: float | None = None
        self.ids_issued: dict[str, int] = {}
        self.ids_used: dict[str, int] = {}

    def endpoint(self, method: str, path: str) -> EndpointCounts:
        found = self._endpoints.get((method, path))
        if found is None:
            if len(self._endpoints) >= MAX_ENDPOINTS and path != OTHER:
                return self.endpoint(method, OTHER)
            found = self._endpoints[method, path] = EndpointCounts(method, path)
        return found

    def arrived(self, endpoint: EndpointCounts, now_s: float) -> None:
        endpoint.requests += 1
        if self.first_s is None:
            self.first_s = now_s
        self.last_s = now_s
        self.in_flight += 1
        if self.in_flight > self.max_in_flight:
            self.max_in_flight = self.in_flight

    def attempt(self, value: str, now_s: float) -> None:
        times = self.attempts.get(value)
        if times is None:
            if len(self.attempts) >= MAX_VALUES:
                value = OTHER
            times = self.attempts.get(value) or AttemptTimes()
            self.attempts[value] = times
        times.arrived(now_s)

    def attempt_over(self, value: str) -> None:
        """Counts the end of a request of this sender, answered or not."""
        times = self.attempts.get(value)
        if times is not None and times.in_flight:
            times.in_flight -= 1

    def field(self, name: str, value: str) -> None:
        values = self.fields.get(name)
        if values is None:
            if len(self.fields) >= 100:
                return
            values = self.fields[name] = {}
        _bounded_add(values, value)

    def lost(self, why: str) -> None:
        self.unanswered[why] = self.unanswered.get(why, 0) + 1

    def issued(self, identity: str) -> None:
        _bounded_add(self.ids_issued, identity)

    def used(self, identity: str) -> None:
        _bounded_add(self.ids_used, identity)

    def connection_counted(self) -> None:
        """Counts a connection, at its first counted request."""
        self.opened += 1
        self.open += 1
        if self.open > self.max_open:
            self.max_open = self.open

    def snapshot(self) -> CountsSnapshot:
        return CountsSnapshot(
            endpoints=[_snapshot(each) for each in self._endpoints.values() if each.requests],
            attempts={name: msgspec.structs.replace(t) for name, t in self.attempts.items()},
            fields={name: dict(values) for name, values in self.fields.items()},
            unanswered=dict(self.unanswered),
            connections={
                "opened": self.opened + self.silent_closed + self.silent_open,
                "open": self.open + self.silent_open,
                "max_open": self.max_open,
                "silent": self.silent_closed + self.silent_open,
            },
            max_requests=self.max_in_flight,
            first_s=self.first_s,
            last_s=self.last_s,
            ids_issued=list(self.ids_issued),
            ids_used=dict(self.ids_used),
        )


def summarise(parts: list[CountsSnapshot]) -> dict[str, Any]:
    """The document of `/counts`. Maxima of several processes add up to an upper bound."""
    endpoints = [each for part in parts for each in part.endpoints]
    by_path: dict[str, list[EndpointSnapshot]] = {}
    for each in endpoints:
        by_path.setdefault(each.path, []).append(each)
    attempts: dict[str, AttemptTimes] = {}
    for name, times in (entry for part in parts for entry in part.attempts.items()):
        attempts[name] = attempts[name].merge(times) if name in attempts else times
    firsts = [part.first_s for part in parts if part.first_s is not None]
    lasts = [part.last_s for part in parts if part.last_s is not None]
    return {
        "total": sum(each.requests for each in endpoints),
        "paths": _summed({each.path: each.requests} for each in endpoints),
        "methods": _summed({f"{each.method} {each.path}": each.requests} for each in endpoints),
        "statuses": _summed(
            {str(status): n for status, n in each.statuses.items()} for each in endpoints
        ),
        "attempts": {name: times.requests for name, times in attempts.items()},
        "attempt_times": {name: msgspec.to_builtins(t) for name, t in attempts.items()},
        "unanswered": _summed(part.unanswered for part in parts),
        "connections": _summed(part.connections for part in parts),
        "max_concurrent_requests": sum(part.max_requests for part in parts),
        "first_arrival_s": min(firsts, default=None),
        "last_arrival_s": max(lasts, default=None),
        "delays": {path: delay_summary(group) for path, group in by_path.items()},
        "all_delays": delay_summary(endpoints),
        "fields": {
            name: _summed(part.fields.get(name, {}) for part in parts)
            for name in dict.fromkeys(name for part in parts for name in part.fields)
        },
        "ids": _ids_summary(parts),
    }


def delay_summary(group: list[EndpointSnapshot]) -> dict[str, float | int | None]:
    """Count, mean and quantiles in milliseconds; quantiles are samples, not interpolated."""
    group = [each for each in group if each.count]
    total = sum(each.count for each in group)
    if not total:
        return {"count": 0} | dict.fromkeys(
            ("mean_ms", "min_ms", "p50_ms", "p95_ms", "p99_ms", "max_ms")
        )
    samples = [np.frombuffer(each.samples, dtype=np.float64) for each in group]
    # Beyond the sample limit one kept sample stands for several requests.
    weights = [
        np.full(len(kept), each.count / len(kept))
        for each, kept in zip(group, samples, strict=True)
    ]
    values, weight = np.concatenate(samples), np.concatenate(weights)
    order = np.argsort(values, kind="stable")
    values, reached = values[order], np.cumsum(weight[order])

    def quantile_ms(share: float) -> float:
        # Slightly less, so that a rounded sum of weights does not reach the next sample.
        at = int(np.searchsorted(reached, share * total * (1 - 1e-12)))
        return float(values[min(at, len(values) - 1)]) * 1000

    return {
        "count": total,
        "mean_ms": sum(each.sum_s for each in group) / total * 1000,
        "min_ms": min(each.lowest_s for each in group) * 1000,
        "p50_ms": quantile_ms(0.50),
        "p95_ms": quantile_ms(0.95),
        "p99_ms": quantile_ms(0.99),
        "max_ms": max(each.highest_s for each in group) * 1000,
    }


def _snapshot(endpoint: EndpointCounts) -> EndpointSnapshot:
    delays = endpoint.delays
    return EndpointSnapshot(
        method=endpoint.method,
        path=endpoint.path,
        requests=endpoint.requests,
        statuses=dict(endpoint.statuses),
        samples=delays.samples.tobytes(),
        count=delays.count,
        sum_s=delays.sum_s,
        lowest_s=delays.lowest_s if delays.count else 0.0,
        highest_s=delays.highest_s,
    )


def _ids_summary(parts: list[CountsSnapshot]) -> dict[str, int]:
    issued = {identity for part in parts for identity in part.ids_issued}
    used = _summed(part.ids_used for part in parts)
    return {
        "issued": len(issued),
        "used": sum(1 for identity in used if identity in issued),
        "used_twice": sum(1 for n in used.values() if n > 1),
        "unknown": sum(1 for identity in used if identity not in issued),
    }


def _summed(parts: Iterable[dict[K, int]]) -> dict[K, int]:
    total: dict[K, int] = {}
    for part in parts:
        for name, n in part.items():
            total[name] = total.get(name, 0) + n
    return total


def _bounded_add(values: dict[str, int], value: str) -> None:
    if value not in values and len(values) >= MAX_VALUES:
        value = OTHER
    values[value] = values.get(value, 0) + 1
