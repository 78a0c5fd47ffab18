"""What a state machine answers to a command of its log; the same in every control group."""

from __future__ import annotations

import msgspec

from squall.cluster.protocol.job_keys import JobId


class Accepted(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="ok"):
    job: JobId = JobId("")
    changed: bool = True
    """False: the command was a repeat and changed nothing."""
    value: int = 0
    """The adjust sequence, the sum of the extensions, or the lease length."""


class Rejected(msgspec.Struct, frozen=True, kw_only=True, tag="no"):
    text: str
    """One line that says why."""


CommandOutcome = Accepted | Rejected

_encode = msgspec.msgpack.Encoder().encode
_outcomes = msgspec.msgpack.Decoder(CommandOutcome)


def encode_outcome(outcome: CommandOutcome) -> bytes:
    return _encode(outcome)


def decode_outcome(result: bytes) -> CommandOutcome:
    """Decodes `Committed.result`."""
    return _outcomes.decode(result)
