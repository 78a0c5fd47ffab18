"""One row of the step table: how its executions ended, and how long they took.

A row is a step, a call with `name=`, or the iteration. Executions that ended the same
way share an outcome with a histogram of its own, which separates the latency of the 503s
from that of the 200s. Always: count = ok + failed; and once nothing is in flight,
started = count + interrupted. An execution that is under way at the end of a warm-up counts
as started after it, because it ends there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from http import HTTPStatus
from typing import TypeAlias

from squall.stats.histogram import Histogram, Packed, merged
from squall.stats.manifest import Field
from squall.stats.reports import MetricDelta, RowDelta
from squall.stats.totals.windows import RowWindow, Series

Part: TypeAlias = Histogram | Packed

MAX_OUTCOMES = 250
"""Per row. A reason with an id in it would otherwise make a histogram per execution."""
_EXPECTED, _NOT_EXPECTED = " expected", " not expected"
_OTHER = {True: "other successes", False: "other failures"}


class OutcomeStats:
    """Executions of one row that ended the same way."""

    __slots__ = ("count", "exchanges", "key", "ok", "raised", "service", "statuses")

    def __init__(self, key: str, *, ok: bool, raised: bool = False) -> None:
        self.key = key
        self.ok = ok
        # Every one of them failed in the author's code.
        self.raised = raised
        self.count = 0
        self.exchanges = 0
        self.service = Histogram()
        # Of failures that are no status: the answers before them.
        self.statuses: Counter[int] = Counter()

    @property
    def status(self) -> str:
        """The status by which they ended; empty for another reason."""
        key = self.key.removesuffix(_NOT_EXPECTED).removesuffix(_EXPECTED)
        return key if is_status(key) else ""

    @property
    def reason(self) -> str:
        """The reason for output: a status with its text, `503 Service Unavailable`."""
        return reason_text(self.key)


class RowSlice:
    """A row in a short time: one report, or one second of all shares."""

    __slots__ = ("count", "failed", "first_byte", "ok", "response", "service")

    def __init__(self) -> None:
        self.count = 0
        self.ok = 0
        self.failed = 0
        self.service: list[Packed] = []
        self.response: list[Packed] = []
        self.first_byte: list[Packed] = []

    @classmethod
    def of(cls, delta: RowDelta) -> RowSlice:
        made = cls()
        for outcome in delta.outcomes:
            made.count += outcome.count
            if outcome.ok:
                made.ok += outcome.count
            else:
                made.failed += outcome.count
            made.service.append(Packed.from_data(outcome.service))
        if delta.response is not None:
            made.response.append(Packed.from_data(delta.response))
        if delta.first_byte is not None:
            made.first_byte.append(Packed.from_data(delta.first_byte))
        return made

    def merge(self, other: RowSlice) -> None:
        self.count += other.count
        self.ok += other.ok
        self.failed += other.failed
        self.service += other.service
        self.response += other.response
        self.first_byte += other.first_byte

    @property
    def latency(self) -> list[Packed]:
        """Response time where the row has one, otherwise service time."""
        return self.response or self.service

    def parts(self, field: Field) -> Sequence[Part]:
        if field == "first_byte":
            return self.first_byte
        return self.service if field == "service" else self.latency


class RowStats:
    """One row over the whole run."""

    def __init__(self, name: str, protocol: str = "http") -> None:
        self.name = name
        self.protocol = protocol
        self.started = 0
        self.count = 0
        self.ok = 0
        self.failed = 0
        self.interrupted = 0
        self.outcomes: dict[str, OutcomeStats] = {}
        # From the planned start; only root steps and the iteration of open models.
        self.response: Histogram | None = None
        self.first_byte: Histogram | None = None
        self.windows: Series[RowWindow] = Series(RowWindow)

    def add(self, delta: RowDelta, second: int, *, counted: bool) -> RowSlice:
        """Adds one report; `counted` is false in the warm-up, which only has windows."""
        made = RowSlice.of(delta)
        window = self.windows.at(second)
        window.count += made.count
        window.failed += made.failed
        for part in made.latency:
            window.latency.merge(part)
        if counted:
            self._count(delta, made)
        else:
            self.started += delta.started - made.count - delta.interrupted
        return made

    @property
    def service(self) -> Histogram:
        """From the real send, over all outcomes; computed at each call."""
        return merged(outcome.service for outcome in self.outcomes.values())

    @property
    def latency(self) -> Histogram:
        """Response time where the row has one, otherwise service time."""
        return self.response if self.response is not None else self.service

    @property
    def has_response(self) -> bool:
        return self.response is not None

    @property
    def statuses(self) -> dict[str, int]:
        """Answers by status code, in order of the code: of executions that were ok or not, also
        of those that raised after their answer."""
        found: Counter[str] = Counter()
        for outcome in self.outcomes.values():
            if outcome.status:
                found[outcome.status] += outcome.count
            found.update({str(status): count for status, count in outcome.statuses.items()})
        return dict(sorted(found.items()))

    @property
    def reasons(self) -> dict[str, int]:
        """Failures by reason, the most frequent first."""
        # `raise_for_status()` and a plain failed status are two outcomes with one reason.
        reasons: Counter[str] = Counter()
        for outcome in self.outcomes.values():
            if not outcome.ok:
                reasons[outcome.reason] += outcome.count
        return dict(reasons.most_common())

    @property
    def always_raised(self) -> bool:
        """Whether every execution failed in the author's own code."""
        outcomes = [outcome for outcome in self.outcomes.values() if outcome.count]
        return bool(outcomes) and all(outcome.raised for outcome in outcomes)

    @property
    def exchanges(self) -> int:
        return sum(outcome.exchanges for outcome in self.outcomes.values())

    @property
    def failed_share(self) -> float:
        return self.failed / self.count if self.count else 0.0

    @property
    def in_flight(self) -> int:
        """After the end: executions of lost processes, of whose end nothing is known."""
        return self.started - self.count - self.interrupted

    def quantile(self, q: float) -> float:
        """A quantile of the latency, in seconds."""
        return self.latency.quantile(q)

    def parts(self, field: Field) -> Sequence[Part]:
        if field == "first_byte":
            return [self.first_byte] if self.first_byte is not None else []
        if field == "latency" and self.response is not None:
            return [self.response]
        return [outcome.service for outcome in self.outcomes.values()]

    def _count(self, delta: RowDelta, made: RowSlice) -> None:
        self.started += delta.started
        self.interrupted += delta.interrupted
        self.count += made.count
        self.ok += made.ok
        self.failed += made.failed
        for outcome, service in zip(delta.outcomes, made.service, strict=True):
            total = self._outcome(outcome.key, outcome.ok, outcome.raised)
            total.raised = total.raised and outcome.raised
            total.count += outcome.count
            total.exchanges += outcome.exchanges
            total.statuses.update(outcome.statuses)
            service.pour_into(total.service)
        self.response = _poured(self.response, made.response)
        self.first_byte = _poured(self.first_byte, made.first_byte)

    def _outcome(self, key: str, ok: bool, raised: bool) -> OutcomeStats:
        found = self.outcomes.get(key)
        if found is None and len(self.outcomes) >= MAX_OUTCOMES:
            key = _OTHER[ok]
        elif found is not None and found.ok is not ok:
            # Calls of one name may expect different statuses, but successes and failures with
            # one status must not share a histogram.
            key += _EXPECTED if ok else _NOT_EXPECTED
        return self.outcomes.setdefault(key, OutcomeStats(key, ok=ok, raised=raised))


class CheckStats:
    __slots__ = ("failed", "name", "passed")

    def __init__(self, name: str) -> None:
        self.name = name
        self.passed = 0
        self.failed = 0

    @property
    def passed_share(self) -> float:
        total = self.passed + self.failed
        return self.passed / total if total else 0.0


class MetricStats:
    """One metric of the author: a counter, gauge, rate or sample.

    `values` holds samples as if 1.0 of their unit were 1 ms; use `sample_quantile`.
    """

    def __init__(self, name: str, kind: str, unit: str = "") -> None:
        self.name = name
        self.kind = kind
        self.unit = unit
        self.count = 0
        self.sum = 0.0
        self.last = 0.0
        self.minimum = 0.0
        self.maximum = 0.0
        self.hits = 0
        self.values: Histogram | None = Histogram() if kind == "sample" else None

    @property
    def mean(self) -> float:
        return self.sum / self.count if self.count else 0.0

    @property
    def hit_share(self) -> float:
        return self.hits / self.count if self.count else 0.0

    def sample_quantile(self, q: float) -> float:
        """In the metric's own unit; 0.0 without samples."""
        return self.values.quantile(q) * 1e3 if self.values is not None else 0.0

    def add(self, delta: MetricDelta) -> None:
        self._note(delta)
        if delta.values is not None and self.values is not None:
            self.values.merge_data(delta.values)

    def merge(self, other: MetricStats) -> None:
        """Adds a later period of the same metric."""
        self._note(other)
        if other.values is not None and self.values is not None:
            self.values.merge(other.values)

    def _note(self, other: MetricDelta | MetricStats) -> None:
        if other.count == 0:
            return
        self.minimum = min(self.minimum, other.minimum) if self.count else other.minimum
        self.maximum = max(self.maximum, other.maximum) if self.count else other.maximum
        self.last = other.last
        self.count += other.count
        self.sum += other.sum
        self.hits += other.hits


def is_status(key: str) -> bool:
    return key.isascii() and key.isdigit()


def reason_text(key: str) -> str:
    """`503` becomes `503 Service Unavailable`; any other reason stays as it is."""
    if not is_status(key):
        return key
    try:
        return f"{key} {HTTPStatus(int(key)).phrase}"
    except ValueError:
        return key


def _poured(total: Histogram | None, parts: Sequence[Packed]) -> Histogram | None:
    for part in parts:
        if total is None:
            total = Histogram()
        part.pour_into(total)
    return total
