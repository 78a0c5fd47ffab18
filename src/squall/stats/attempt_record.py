"""The record of one attempt at a share: its measurements as data to store, send and add.

A record is cumulative: it grows while the attempt runs and is closed when it ends. It
holds the same reports that the core process made, one per second, until there are more
than `POINTS_MAX`; then neighbouring seconds are added together, so that a six-hour run
stays small. Sums are exact whatever the width; nothing is averaged.

`sequence` counts the reports that went into it. A receiver that has added everything up to a
sequence needs only the later reports; one that has nothing takes the whole record.
"""

from __future__ import annotations

import msgspec

from squall.stats.reports import ErrorSample, HealthReport, WindowReport

POINTS_MAX = 600
ERRORS_MAX = 100


class RecordEnd(msgspec.Struct, kw_only=True):
    """How an attempt ended, as its core process reported."""

    elapsed_s: float
    error: str = ""
    cut: str = ""
    """Why it ended before its time ("lease ended", "stopped", "core process 3 ended");
    empty if it ended normally."""
    values: dict[str, bytes] = {}
    provided: dict[str, bytes] = {}
    notes: list[tuple[str, str]] = []
    warnings: list[str] = []
    # The encoded name is that of stored records.
    reported_by_process: bool = msgspec.field(default=False, name="told_all")
    """True if the process itself reported the end, after its last report: then nothing is
    missing before the end, even if the last seconds have no report."""


class SurvivingCounters(msgspec.Struct, array_like=True, tag="counters", kw_only=True):
    """The counters of an attempt whose process died, as they stood at its last fold."""

    planned: int
    made: int
    dropped: int
    finished: int
    """Iterations that ended, counted or interrupted."""
    sent: int
    answered: int
    failed: int
    users: int
    busy: int
    at_s: float
    """The workflow's elapsed time at that fold."""
    boot_s: float = 0.0
    """CLOCK_BOOTTIME at that fold. It means nothing after a reboot, or on another machine."""
    dead_by_s: float | None = None
    """The workflow's elapsed time at which the process was certainly dead; None: unknown."""


class AttemptRecord(msgspec.Struct, kw_only=True):
    workflow: str
    share: int
    attempt: int
    worker: str
    """Node id."""
    joined_s: float = 0.0
    """The workflow's elapsed time at which this attempt began."""
    silent_from_s: float = 0.0
    """The workflow's elapsed time up to which the reports cover it."""
    sequence: int = 0
    width_s: int = 1
    reports: list[WindowReport] = []
    health: list[HealthReport] = []
    errors: list[ErrorSample] = []
    end: RecordEnd | None = None
    """None while the attempt runs."""
    counters: SurvivingCounters | None = None
    """Set if its process died: what it did since its last report is in `reports`, too, but only as
    far as these counters know it."""
    peak: float = 0.0
    """The most requests per user in one second. Only a `gist` has it, whose reports are one."""
