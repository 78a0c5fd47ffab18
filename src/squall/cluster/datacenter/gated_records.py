"""The records of jobs that gates handed over to this datacenter (R15).

A gated job is one part of a gates' job. Its try has a local job of its own, which is held until the
gates start it: its cores are reserved and its code is loaded, but it gets no lease, so no user
opens and no request is sent. Times in `..._ms` are on this group's clock.
"""

from __future__ import annotations

import msgspec

from squall.cluster.protocol.gates.gate_messages import OVER, PartState
from squall.cluster.protocol.gates.handover_keys import GateFence, HandoverNumber
from squall.cluster.protocol.job_keys import JobId
from squall.cluster.protocol.messages import JobState


class GatedTry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One handover of a part to this datacenter."""

    handover: HandoverNumber
    job: JobId = JobId("")
    """The local job; "" if none was created: a refusal, or the tombstone of a cancellation."""
    state: PartState
    revision: int = 1
    """Rises with every change that the gates are to learn of."""
    delivered: int = 0
    """The revision that the gates have committed; only marked for the last one."""
    cancelled: bool = False
    """The gates cancelled it."""
    disowned: bool = False
    """The gates do not know it: it is ended, and nothing is reported."""
    reason: str = ""
    exit_code: int = 0
    is_final: bool = False
    outcome: JobState | None = None
    result: str = ""
    result_size: int = 0
    adjust_seq: int = 0
    """The gates' adjustment that is in force."""

    @property
    def over(self) -> bool:
        return self.state in OVER

    @property
    def is_delivered(self) -> bool:
        return self.disowned or self.delivered >= self.revision


class GatedRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What this datacenter knows of one job of the gates."""

    job: JobId
    """Of the gates."""
    fence: GateFence
    """The highest that was heard for the job: lower ones are refused."""
    highest: HandoverNumber
    tries: tuple[GatedTry, ...] = ()
    closed: bool = False
    """Forgotten: nothing is created for it any more, whatever the number."""
    expires_ms: int = 0
    """Closed: when the record may go; no message is that late."""

    def find(self, handover: int) -> GatedTry | None:
        for each in self.tries:
            if each.handover == handover:
                return each
        return None


class KnownGates(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A group of gates that hands jobs over to this datacenter."""

    group: str
    former: tuple[str, ...] = ()
    """The groups of which it is a recovery: their commands are refused."""
    addresses: tuple[str, ...] = ()
    """host:port of each gate: for reports, and for clients that submit here."""
    known_ms: int = 0
