"""What an error says: about the operation (try again?) and about the peer (alive?).

The defaults of the retry driver and of the circuit breaker. What is not known here is
final: a mistake of our own must not be repeated, and must not be blamed on a peer.
"""

from __future__ import annotations

import errno

from squall.control.errors import CircuitOpen, DeadlinePassed
from squall.control.retry import Effect, Failure
from squall.wire.errors import NotSent, OutcomeUnknown, RemoteError
from squall.wire.messages import ErrorCode

NOT_EXECUTED = frozenset({ErrorCode.OVERLOADED, ErrorCode.RETRY_LATER, ErrorCode.NOT_PRIMARY})
"""Answers of a peer that has not begun; it, or another one, may be asked again."""

UNREACHABLE = frozenset(
    {errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN, errno.ETIMEDOUT}
)
"""The few among the many `OSError`s that pass by themselves; a full disk does not."""


def judge(error: Exception) -> Failure:
    """What a failed try may have done, and the peer's hint."""
    match error:
        case DeadlinePassed():
            return Failure(Effect.FINAL)
        case NotSent() | CircuitOpen():
            return Failure(Effect.NONE, error.retry_after_s)
        case RemoteError() if error.code in NOT_EXECUTED:
            return Failure(Effect.NONE, error.retry_after_s)
        case ConnectionRefusedError():
            return Failure(Effect.NONE)
        case OutcomeUnknown() | TimeoutError() | ConnectionError():
            return Failure(Effect.UNKNOWN)
        case OSError() if error.errno in UNREACHABLE:
            return Failure(Effect.UNKNOWN)
        case _:
            return Failure(Effect.FINAL)


def answered(error: Exception) -> bool:
    """The peer is there: it said no, shed the request, or rejected it."""
    return isinstance(error, RemoteError)


def unanswered(error: Exception) -> bool:
    """The peer was not reached or did not answer; our own mistakes are neither."""
    return not answered(error) and judge(error).effect is not Effect.FINAL
