"""The records of the gates' state: datacenters, jobs, parts, and the tries to place a part.

Records are immutable: a change makes a new one, so that a captured state stays as it was. Times in
`..._ms` are on the gates' group clock.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from squall.cluster.protocol.gates.handover_keys import HandoverNumber
from squall.cluster.protocol.job_keys import JobId
from squall.cluster.protocol.job_records import TERMINAL, AdjustEvent, Adjustment, StopKind
from squall.cluster.protocol.messages import JobState
from squall.cluster.protocol.submission import Submission

TryState = Literal[
    "assigned", "accepted", "ready", "started", "refused", "cancelled", "ended", "lost"
]
"""`assigned`: the datacenter has not answered yet. `accepted`: it is in the queue of the datacenter
or being prepared. `ready`: it holds its cores and waits for the start of all parts. The last four
are final; `refused` and `cancelled` mean that it never started."""
WAITING: tuple[TryState, ...] = ("assigned", "accepted", "ready")
"""The try was not started: Started(e) is not in the log, so no datacenter runs it."""


class DatacenterRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A datacenter that the gates hand jobs over to."""

    name: str
    managers: tuple[str, ...] = ()
    """host:port of the managers that are known; none: it leaves, and gets no part any more."""


class PartTry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One handover of a part to a datacenter: number `e` of R15."""

    datacenter: str
    handover: HandoverNumber
    state: TryState = "assigned"
    assigned_ms: int
    why: str = ""
    """Why this datacenter was chosen, for people."""
    revision: int = 0
    """Of the last report: a lower one is late and changes nothing."""
    ready_ms: int = 0
    cancel: StopKind = ""
    """Cancel(e) is recorded: the gates send it until the datacenter reports the end."""
    cancel_reason: str = ""
    cancel_now: bool = False
    settled: bool = False
    """The datacenter has reported, from its own log, that nothing of it runs and nothing will."""
    forgotten: bool = False
    """The datacenter has acknowledged that it forgot the job."""
    reason: str = ""
    is_final: bool = False
    """Refused: another datacenter would refuse it too."""
    exit_code: int = 0
    outcome: JobState | None = None
    """Ended: how, by the datacenter."""
    result: str = ""
    """The result that counts: that of the datacenter, or the gates' own record of a lost part."""
    result_size: int = 0
    late_result: str = ""
    """A result that came after Lost(e): kept as information, and never counted."""
    late_size: int = 0
    ended_ms: int = 0

    @property
    def waits(self) -> bool:
        """Whether the part may still start."""
        return self.state in WAITING and not self.cancel


class PartRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One part of a job: what one datacenter runs."""

    index: int
    weight: float
    """Its part of the whole, from 0 to 1."""
    tries: tuple[PartTry, ...] = ()
    adjustments: tuple[tuple[str, Adjustment], ...] = ()
    """(workflow, the load that this part is to make), where it was changed."""

    @property
    def current(self) -> PartTry | None:
        return self.tries[-1] if self.tries else None


class GateJobRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One job of the gates, from its submission until its datacenters have forgotten it."""

    job: JobId
    op: int
    principal: str
    key: str
    fingerprint: str
    submission: Submission
    sealed: bytes = b""
    """The author's secrets, encrypted; `submission.options` holds none."""
    leader: str = ""
    created_ms: int
    created_at: float = 0.0
    """The wall clock of the gate that accepted it; only shown."""
    state: JobState = "queued"
    parts: tuple[PartRecord, ...]
    started_ms: int = 0
    """When Started(e) of all its parts was committed."""
    deadline_ms: int = 0
    """0: it has none yet."""
    limited: bool = False
    """The client asked for a timeout, which counts from the creation."""
    extension_ms: int = 0
    stop: StopKind = ""
    stop_ms: int = 0
    stop_now: bool = False
    reason: str = ""
    exit_code: int = 0
    ended_ms: int = 0
    purge_ms: int = 0
    result: str = ""
    result_size: int = 0
    history: str = ""
    history_size: int = 0
    adjust_seq: int = 0
    adjustments: tuple[AdjustEvent, ...] = ()
    queued_ms: int = 0
    """When it was last put into the queue of the gates."""
    holds: int = 0
    """How often it gave its reservations back because a part was not ready in time."""
    touched: int = 0
    """The op of the last change of its parts."""

    @property
    def over(self) -> bool:
        return self.state in TERMINAL

    @property
    def reserves(self) -> bool:
        """Whether the job holds cores in datacenters while it waits for the start of all parts."""
        return not (self.started_ms or self.stop or self.over) and any(
            part.current is not None and part.current.waits for part in self.parts
        )

    def adjusted_by(self, request_id: str) -> int:
        """The number of the adjustment that a request made; 0 if no such request is known."""
        for event in self.adjustments:
            if request_id and event.request_id == request_id:
                return event.adjust_seq
        return 0

    def find(self, datacenter: str, handover: int) -> tuple[PartRecord, PartTry] | None:
        for part in self.parts:
            for each in part.tries:
                if each.datacenter == datacenter and each.handover == handover:
                    return part, each
        return None
