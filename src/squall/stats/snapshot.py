"""A snapshot of a run as frozen data: everything that a live line or a screen shows.

A snapshot holds no reference to a live object, so it may be drawn late, kept for a plot
or sent elsewhere. Rates and percentiles marked `now` are those of the last complete
second; everything else is since the end of the warm-up. Times are seconds.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from squall.stats.manifest import Profile
from squall.stats.reports import HistogramData

VerdictState = Literal["VALID", "DEGRADED", "INVALID"]
ThresholdCondition = Literal["passing", "failing", "pending"]


class ThresholdState(msgspec.Struct, frozen=True, kw_only=True):
    """A threshold during the run. `pending`: nothing to judge yet, or only at the end."""

    expression: str
    condition: ThresholdCondition
    value: float | None = None
    """In `unit`, as in the results document."""
    unit: str = ""
    limit: float | None = None
    """What the value is compared with, in `unit`."""
    workflow: str = ""
    """The workflow that it is about; empty if it is about several."""
    row: str = ""
    """The row that it is about: a step, `iteration`, or empty."""
    builtin: bool = False


class ErrorLine(msgspec.Struct, frozen=True):
    """Failures of one row with one reason, so far."""

    count: int
    row: str
    reason: str


class NewError(msgspec.Struct, frozen=True, kw_only=True):
    """The first failure of its kind since the last snapshot."""

    workflow: str
    row: str
    reason: str
    location: str = ""
    at_s: float = 0.0


class RowSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    count: int
    failed: int
    rate_now_per_s: float
    p50_s: float
    p95_s: float
    p99_s: float
    max_s: float
    p999_s: float = 0.0
    first_byte_p99_s: float | None = None
    """None for rows without a first byte."""
    failed_now: int = 0
    samples_now: int = 0
    p50_now_s: float = 0.0
    p95_now_s: float = 0.0
    p99_now_s: float = 0.0
    latency: HistogramData | None = None
    """All latencies so far; only if a live output asked for histograms."""
    bands_now: tuple[int, ...] = ()
    """The latencies of the last second, for a heat map, as in `Histogram.bands`."""


class ProtocolSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """What the clients did in one protocol."""

    name: str
    answered_now_per_s: float
    messages_now_per_s: float
    """Sent and received, in the last second; of SSE, events."""
    failed: int
    """Requests without an answer so far."""
    connections: int


class WorkflowSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    elapsed_s: float
    iterations: int
    rate_now_per_s: float
    """Iterations that ended in the last second."""
    target_per_s: float | None
    """Planned starts per second at this time; None for closed models."""
    executions_now_per_s: float
    """Executions of all rows that ended in the last second."""
    users: int
    users_max: int
    busy_max: int
    failed_share: float
    """Of all executions so far."""
    failed_now_share: float
    p50_now_s: float
    p95_now_s: float
    p99_now_s: float
    samples_now: int
    """How many latencies of the last second the three percentiles come from."""
    planned: int
    made: int
    late: int
    late_max_s: float
    dropped: int
    checks_passed: int
    checks_failed: int
    bytes_sent: int
    bytes_received: int
    busy: int = 0
    """Users in an iteration in the last second; `users` also counts the idle ones."""
    connect_p99_s: float = 0.0
    connections: int = 0
    sent: int = 0
    """Requests so far, and those that were answered."""
    answered: int = 0
    ended: bool = False
    paused: bool = False
    """An operator paused its load."""
    rows: tuple[RowSnapshot, ...] = ()
    """As in the file; the iteration is the last one."""
    errors: tuple[ErrorLine, ...] = ()
    """The most frequent first."""
    protocols: tuple[ProtocolSnapshot, ...] = ()
    """Empty while there is nothing but HTTP/1."""


class DatacenterSnapshot(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The part of one datacenter in a run of several."""

    name: str
    part: float
    """Its share of the load, from 0 to 1."""
    tries: int = 1
    state: str = ""
    """The state of its job; `lost` if it is given up."""
    workers: int = 0
    users: int = 0
    executions: int = 0
    """Finished executions of all rows so far."""
    executions_now_per_s: float = 0.0
    iterations_now_per_s: float = 0.0
    target_per_s: float | None = None
    """Planned starts per second at this time; None if nothing plans them."""
    failed: int = 0
    failed_now_share: float = 0.0
    p50_now_s: float = 0.0
    p95_now_s: float = 0.0
    p99_now_s: float = 0.0
    samples_now: int = 0
    verdict: VerdictState = "VALID"
    silent_s: float = 0.0
    """How long nothing was heard of it, if that is too long."""
    note: str = ""
    """Why it is where it is, or why nothing is heard of it."""


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    elapsed_s: float
    workflows: tuple[WorkflowSnapshot, ...]
    """The workflows that have started."""
    cpu: float
    """Mean over processes, as a share of one core, in the last second."""
    processes: int
    lag_p99_s: float
    """The lag of the worst process in the last second."""
    gc_max_s: float
    verdict: VerdictState = "VALID"
    reasons: tuple[str, ...] = ()
    headline: str = ""
    """The first reason in two words: `loop lag`."""
    thresholds: tuple[ThresholdState, ...] = ()
    new_errors: tuple[NewError, ...] = ()
    where: str = ""
    """The part of a cluster that runs it, `2 dc  12 workers  leader m2`; empty on one machine."""
    losses: tuple[str, ...] = ()
    """One line for each worker that was lost or refilled."""
    datacenters: tuple[DatacenterSnapshot, ...] = ()
    """The parts of a run in several datacenters, in their order."""
    final: bool = False
    """The totals are those of the result; no other snapshot follows."""


def target_rate_per_s(profile: Profile, at_s: float) -> float | None:
    """Planned starts per second at a time; None if the profile plans users."""
    if profile.model == "open":
        return profile.rate_per_s
    if profile.model != "open-ramp":
        return None
    before = profile.rate_per_s
    start_s = 0.0
    for stage in profile.stages:
        if at_s < start_s + stage.duration_s:
            share = (at_s - start_s) / stage.duration_s
            return before + (stage.target - before) * share
        start_s += stage.duration_s
        before = stage.target
    return before
