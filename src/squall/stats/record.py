"""All that one attempt at a share measured, as data that can be stored, sent and added.

A record is cumulative: it grows while the attempt runs and is closed when it ends. It
holds the same reports that the core process made, one per second, until there are more
than `POINTS_MAX`; then neighbouring seconds are added together, so that a six-hour run
stays small. Sums are exact whatever the width; nothing is averaged.

`sequence` counts the reports that went into it. A receiver that has added everything up
to a sequence needs only what came after it, and one that has nothing takes it whole.
"""

from __future__ import annotations

import msgspec

from squall.stats.reports import ErrorSample, HealthReport, WindowReport

POINTS_MAX = 600
ERRORS_MAX = 100


class RecordEnd(msgspec.Struct, kw_only=True):
    """How an attempt ended, as its core process told."""

    elapsed_s: float
    error: str = ""
    cut: str = ""
    """Why it ended before its time ("lease ended", "stopped", "core process 3 ended");
    empty for an end by itself."""
    values: dict[str, bytes] = {}
    provided: dict[str, bytes] = {}
    notes: list[tuple[str, str]] = []
    warnings: list[str] = []
    told_all: bool = False
    """Its process said so itself, after its last report: nothing before the end is missing,
    also where the last moments had nothing to report."""


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
    """None while it runs: what is here is a cut."""
