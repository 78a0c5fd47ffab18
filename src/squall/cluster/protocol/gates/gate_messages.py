"""The messages between gates and managers about the parts of jobs (R15). Numbers 210 to 223.

Each side drives its messages from committed state until the other side has answered, so every one
of them may be lost, repeated or late. A command of the gates names the job, the handover number and
the fence of the gate; a manager answers after its group has committed the command. A report names
(job, datacenter, handover) and no fence: any gate takes it, and answers after the gates have
committed it. Blobs travel by `OfferBlob` before the message that names them: the bundle to the
datacenter, the result to the gates.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from squall.cluster.protocol.gates.handover_keys import GateFence, HandoverNumber
from squall.cluster.protocol.job_keys import JobId
from squall.cluster.protocol.job_records import StopKind
from squall.cluster.protocol.messages import JobState
from squall.cluster.protocol.submission import Submission
from squall.cluster.wire.catalogue import SizeClass, message
from squall.cluster.wire.header import MessageClass

PartState = Literal["accepted", "ready", "started", "refused", "cancelled", "ended", "unknown"]
"""The state of a part in its datacenter. `ready`: it holds its cores and its code is loaded, and
it waits for the start of all parts. `refused`: it did not start and never will. `cancelled`: the
gates cancelled it before its start. `ended`: it was started and is over. `unknown`: the
datacenter has never heard of this handover, or has forgotten it."""
OVER: tuple[PartState, ...] = ("refused", "cancelled", "ended")
"""Nothing of the part runs in this datacenter, and nothing will."""


@message(210, MessageClass.DISPATCH, size=SizeClass.BULK)
class AcceptPart(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Reserves a part and loads its code; nothing runs before `StartPart`. The datacenter creates
    it if it does not know this handover, and repeats its answer if it does."""

    job: JobId
    datacenter: str
    handover: HandoverNumber
    fence: GateFence
    principal: str
    key: str
    """Principal and key of the gates' job: its secrets are sealed for both."""
    submission: Submission
    """Of this part alone, without secrets and thresholds."""
    sealed: bytes = b""
    created_at: float = 0.0
    timeout_s: float = 0.0
    """After this time the datacenter ends the part by itself, should no gate come back; 0: the
    datacenter sets the limit when it places the part."""
    relay: bool = False
    """The sender cannot reach the primary: the receiver relays this to it."""


@message(211, MessageClass.CONTROL)
class StartPart(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Starts a part that the datacenter has accepted; it never creates one."""

    job: JobId
    datacenter: str
    handover: HandoverNumber
    fence: GateFence
    timeout_s: float = 0.0
    """As in `AcceptPart`, from now on."""
    relay: bool = False


@message(212, MessageClass.CONTROL)
class CancelPart(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Stops a part, or makes sure that a later `AcceptPart` of this handover creates nothing."""

    job: JobId
    datacenter: str
    handover: HandoverNumber
    fence: GateFence
    kind: StopKind = "cancelled"
    reason: str = ""
    now: bool = False
    exit_code: int = 0
    relay: bool = False


class WorkflowAdjustment(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One datacenter's part of the load of a workflow, after a change."""

    workflow: str
    paused: bool = False
    rate_per_s: float | None = None
    """None: that of the plan."""
    vus: int | None = None


@message(213, MessageClass.CONTROL)
class AdjustPart(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Sets the load and the extensions of a part; the highest `adjust_seq` wins."""

    job: JobId
    datacenter: str
    handover: HandoverNumber
    fence: GateFence
    adjust_seq: int
    workflows: list[WorkflowAdjustment] = []
    by: str = ""
    extension_s: float = 0.0
    """The sum of all extensions of the job's time."""
    relay: bool = False


@message(214, MessageClass.CONTROL)
class ForgetPart(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The gates' job is over and its results are theirs: the datacenter keeps only the highest
    handover number, for a day, so that no late message creates the part again."""

    job: JobId
    datacenter: str
    handover: HandoverNumber
    """The highest of the job in this datacenter."""
    fence: GateFence
    relay: bool = False


@message(215, MessageClass.CONTROL)
class PartAnswer(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The committed state of the part after the command."""

    state: PartState
    reason: str = ""
    adjust_seq: int = 0
    """The adjustment that is in force."""
    closed: bool = False
    """The datacenter has forgotten the job."""


@message(216, MessageClass.CONTROL, size=SizeClass.BULK)
class PartReport(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A committed change of a part, repeated until a gate answers it. It takes the bulk link, over
    which the gate pulls the result."""

    job: JobId
    datacenter: str
    handover: HandoverNumber
    state: PartState
    revision: int
    """Rises with every change of the part: a late report does not undo a newer one."""
    reason: str = ""
    exit_code: int = 0
    is_final: bool = False
    """Refused: another datacenter would refuse it too."""
    outcome: JobState | None = None
    """Ended: how."""
    result: str = ""
    """Ended: the digest of its result, which the gates hold already."""
    result_size: int = 0
    relay: bool = False


@message(217, MessageClass.CONTROL)
class PartStored(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The gates have committed the report."""

    known: bool = True
    """False: the gates do not know this handover and never will. The datacenter ends it."""


@message(218, MessageClass.CONTROL)
class AnnounceGates(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Makes the gates known to a datacenter: where its reports go, and where clients are sent.
    Gates that were recovered may have no order for a datacenter that has to report to them."""

    datacenter: str
    fence: GateFence
    gates: list[str]
    """host:port of all gates."""
    relay: bool = False


@message(219, MessageClass.CONTROL)
class GatesKnown(msgspec.Struct, frozen=True):
    """The datacenter has committed the list of gates."""
