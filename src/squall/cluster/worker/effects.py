"""The effects that the session core asks for. The driver performs them in the given order."""

from __future__ import annotations

import msgspec

from squall.cluster.protocol.job_keys import AttemptKey
from squall.cluster.protocol.messages import JobBrief, Preparation
from squall.engine.core_protocol import Adjust


class Register(msgspec.Struct, frozen=True):
    """The primary does not know this boot: register it before the next session."""


class AskNow(msgspec.Struct, frozen=True):
    """Send the next session request at once instead of after the interval."""


class Fetch(msgspec.Struct, frozen=True):
    """Fetch the bundle and the values, then hand the attempt to the host."""

    preparation: Preparation
    brief: JobBrief


class SetLease(msgspec.Struct, frozen=True):
    """Extend the deadline of the attempt, in both clocks."""

    key: AttemptKey
    until: float
    boot_until: float


class Begin(msgspec.Struct, frozen=True):
    """Begin the load: the clocks of the workflow and of the run show these readings now."""

    key: AttemptKey
    elapsed_s: float
    run_elapsed_s: float


class Halt(msgspec.Struct, frozen=True):
    """Stop the attempt; `cut` is the reason for its record."""

    key: AttemptKey
    now: bool
    cut: str


class Kill(msgspec.Struct, frozen=True):
    """Kill the process of the attempt."""

    key: AttemptKey
    cut: str


class Change(msgspec.Struct, frozen=True):
    """Adjust the load of the attempt."""

    key: AttemptKey
    load: Adjust


class Forget(msgspec.Struct, frozen=True):
    """Drop the attempt and its record: the session has freed it."""

    key: AttemptKey


SessionEffect = Register | AskNow | Fetch | SetLease | Begin | Halt | Kill | Change | Forget
