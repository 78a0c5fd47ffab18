"""The live numbers of a job that is one datacenter's part, on their way to where the parts are
merged: a gate, or the client that split the job.

The receiver asks with a cursor (`Follow.reports`) and gets what is new.
"""

from __future__ import annotations

import msgspec

from squall.stats.reports import ErrorSample


class ReportCursor(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What a receiver has of the reports of a job: nothing at first."""

    stream: str = ""
    """The leader that sent them. Another leader has other numbers."""
    windows: dict[str, int] = {}
    """The last sequence number of each workflow."""
    errors: int = 0


class WorkflowReports(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One workflow, summed over all its shares."""

    name: str
    started_at_s: float
    """On the clock of the job."""
    elapsed_s: float = 0.0
    """Once it is over: its length."""
    adjusted_per_s: float | None = None
    """The rate that an operator set; None: the plan's."""
    paused: bool = False
    upto: int = 0
    reports: list[msgspec.Raw] = []
    """An encoded `WindowReport` each, in order; several may be of the same second."""


class JobReports(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The numbers of a job that is one datacenter's part, after a cursor."""

    stream: str
    elapsed_s: float
    """The clock of the job when this was sent."""
    workers: int = 0
    workflows: list[WorkflowReports] = []
    """Those that have started."""
    errors: list[ErrorSample] = []
    errors_upto: int = 0
    more: bool = False
    """There is more than fits one answer."""
