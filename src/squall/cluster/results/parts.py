"""The input of `assemble`: plain data about a job and its attempts.

There is one part for every attempt in the log, with its fate. Times of a part are on the clock
of its workflow.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from squall.cluster.protocol.messages import JobState
from squall.engine.load_change import AppliedChange
from squall.engine.outcome import WorkflowOutcome
from squall.stats.attempt_record import AttemptRecord
from squall.stats.thresholds.judge import ThresholdResult

AttemptFate = Literal["ended", "lost", "dropped"]
"""`ended`: its closed record counts. `lost`: its record counts up to the cut, or whole if the
closed record arrived in time. `dropped`: it never made load."""


class AttemptPart(msgspec.Struct, kw_only=True):
    """One attempt at a share."""

    workflow: str
    share: int
    attempt: int
    shares: int
    """The number of shares of the workflow, over all workers."""
    worker: str
    """The name of the node; only shown."""
    fate: AttemptFate
    record: AttemptRecord | None = None
    """None: no report of it ever arrived. A manager passes only the `gist`."""
    process: int = 0
    """The number of its core process in the whole job."""
    users: int = 0
    """The most users of its share."""
    iterations: int = 0
    """The iterations of its share over all attempts, in the `iterations` model."""
    joined_s: float = 0.0
    refill: bool = False
    """It began where it joined: its reports do not count what was planned before."""
    lost_at_s: float = 0.0
    """If lost: when the loss was committed."""
    died_at_s: float | None = None
    """If lost: when it died or stopped, on the workflow's clock. None: nothing tells that."""
    silence_end_s: float | None = None
    """If lost: the latest moment at which it may have made load, the end of its last lease. None:
    `lost_at_s`."""
    unknown: int | None = None
    """If lost: the most requests that are in no report. None: computed from the record."""
    unknown_iterations: int = 0
    """If `unknown` is given: the iterations of these requests."""
    is_estimate: bool = False
    """`unknown` is an estimate."""
    reason: str = ""
    """If lost: why, in a few words: "no sign of life for 5.7 s"."""


class JobParts(msgspec.Struct, kw_only=True):
    """Everything about a job at its end."""

    job: str
    state: JobState
    """The terminal state."""
    reason: str = ""
    """Why it ended, if not by itself: "cancelled by ann"."""
    started_at: float
    """The wall clock at the first start, or at the creation if nothing started."""
    elapsed_s: float
    """From the first start to the end."""
    workflows: list[WorkflowOutcome]
    """In the order of the file; an `elapsed_s` of 0 is taken from the records."""
    attempts: list[AttemptPart] = []
    adjustments: list[AppliedChange] = []
    aborted_by: str = ""
    """The threshold that ended it."""
    judged: list[ThresholdResult] = []
    """What the job's leader judged while the job ran; used where the records no longer hold single
    seconds."""
    notes: list[tuple[str, str]] = []
    """(verdict state, line) in addition to what records and losses say."""
    os: str = ""
    memory_mb: int = 0
    version: str = ""
    python: str = ""
    refusal: str = ""
    """Why the job could not start, in one line; `refusal_code` is its exit code."""
    refusal_code: int = 0
