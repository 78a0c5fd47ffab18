"""What the result of a job is put together from, as plain data.

A manager hands in one part for every attempt that its log knows, with what became of it.
Times of a part are on the clock of its workflow.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from squall.engine.outcome import WorkflowOutcome
from squall.nodes.messages import JobState
from squall.stats.record import AttemptRecord
from squall.stats.thresholds import ThresholdResult

Fate = Literal["ended", "lost", "dropped"]
"""`ended`: its closed record counts. `lost`: what its record holds counts, up to the cut
(all of it, if the closed record arrived in time). `dropped`: it never made load."""


class AttemptPart(msgspec.Struct, kw_only=True):
    """One attempt at a share."""

    workflow: str
    share: int
    attempt: int
    shares: int
    """Of the workflow, over all workers."""
    worker: str
    """The node's name, for people."""
    fate: Fate
    record: AttemptRecord | None = None
    """None: nothing of it ever arrived. A manager gives its `gist`."""
    process: int = 0
    """Number of its core process in the whole job."""
    users: int = 0
    """Of its share, at most."""
    iterations: int = 0
    """Of its share, for the `iterations` model, over all attempts."""
    joined_s: float = 0.0
    lost_at_s: float = 0.0
    """Lost: when that was committed."""
    silence_end_s: float | None = None
    """Lost: the latest moment at which it may have made load, which is the end of its
    last lease. None: `lost_at_s`."""
    unknown: int | None = None
    """Lost: requests that nobody counted, at most, as the log has it. None: worked out
    from the record."""
    unknown_iterations: int = 0
    """Where `unknown` is given: the iterations of these."""
    is_estimate: bool = False
    """Of `unknown`."""
    reason: str = ""
    """Lost: why, in a few words: "no sign of life for 5.7 s"."""


class Adjustment(msgspec.Struct, frozen=True, kw_only=True):
    """A change of the load by a person, in the order of the log."""

    workflow: str
    at_s: float
    """On the run's clock."""
    paused: bool | None = None
    rate_per_s: float | None = None
    vus: int | None = None
    by: str = ""


class JobParts(msgspec.Struct, kw_only=True):
    """All of a job at its end."""

    job: str
    state: JobState
    """Terminal."""
    reason: str = ""
    """Why it ended, where it did not end by itself: "cancelled by ann"."""
    started_at: float
    """Wall clock of the first start, or of the creation when nothing started."""
    elapsed_s: float
    """From the first start to the end."""
    workflows: list[WorkflowOutcome]
    """In the order of the file; `elapsed_s` 0 is filled in from the records."""
    attempts: list[AttemptPart] = []
    adjustments: list[Adjustment] = []
    aborted_by: str = ""
    """The threshold that ended it."""
    judged: list[ThresholdResult] = []
    """What the judge of the running job says at the end: used where the records no
    longer hold single seconds."""
    notes: list[tuple[str, str]] = []
    """(verdict state, line) beyond what records and losses say."""
    cores: int = 0
    os: str = ""
    memory_mb: int = 0
    version: str = ""
    python: str = ""
    refusal: str = ""
    """The job could not start: the one line that says why, with its exit code."""
    refusal_code: int = 0
