"""What the session core asks its driver to do. Plain data, done in the order given."""

from __future__ import annotations

import msgspec

from squall.engine.protocol import Adjust
from squall.nodes.identity import AttemptKey
from squall.nodes.messages import JobBrief, Preparation


class Register(msgspec.Struct, frozen=True):
    """This boot is not known: tell everything first."""


class AskNow(msgspec.Struct, frozen=True):
    """Something is to be told, or told again: do not wait for the next interval."""


class Fetch(msgspec.Struct, frozen=True):
    """Get the bundle and the values, then hand the attempt to the host."""

    preparation: Preparation
    brief: JobBrief


class SetLease(msgspec.Struct, frozen=True):
    key: AttemptKey
    until: float
    boot_until: float


class Begin(msgspec.Struct, frozen=True):
    key: AttemptKey
    elapsed_s: float
    run_elapsed_s: float


class Halt(msgspec.Struct, frozen=True):
    key: AttemptKey
    now: bool
    cut: str


class Kill(msgspec.Struct, frozen=True):
    key: AttemptKey
    cut: str


class Change(msgspec.Struct, frozen=True):
    key: AttemptKey
    load: Adjust


class Forget(msgspec.Struct, frozen=True):
    """Nobody needs its record any more."""

    key: AttemptKey


Effect = Register | AskNow | Fetch | SetLease | Begin | Halt | Kill | Change | Forget
