"""What an error says about the operation and about the peer."""

from __future__ import annotations

import errno

import pytest

from squall.control.errors import CircuitOpen, DeadlinePassed, Overloaded
from squall.control.failures import answered, judge, unanswered
from squall.control.retry import Effect
from squall.wire.errors import NotSent, OutcomeUnknown, RemoteError
from squall.wire.messages import ErrorCode


@pytest.mark.parametrize(
    ("error", "effect", "hint_s"),
    [
        (NotSent("queue full", retry_after_s=0.5), Effect.NONE, 0.5),
        (CircuitOpen("m1", "timed out", retry_after_s=4), Effect.NONE, 4),
        (Overloaded(2.5), Effect.NONE, 2.5),
        (RemoteError(ErrorCode.RETRY_LATER, retry_after_s=1), Effect.NONE, 1),
        (RemoteError(ErrorCode.NOT_PRIMARY, primary="m2"), Effect.NONE, 0),
        (ConnectionRefusedError(), Effect.NONE, 0),
        (OutcomeUnknown("connection lost"), Effect.UNKNOWN, 0),
        (TimeoutError(), Effect.UNKNOWN, 0),
        (ConnectionResetError(), Effect.UNKNOWN, 0),
        (OSError(errno.EHOSTUNREACH, "no route"), Effect.UNKNOWN, 0),
        (OSError(errno.ENOSPC, "disk full"), Effect.FINAL, 0),
        (PermissionError(errno.EACCES, "not allowed"), Effect.FINAL, 0),
        (RemoteError(ErrorCode.FORBIDDEN), Effect.FINAL, 0),
        (RemoteError("a code of a newer peer"), Effect.FINAL, 0),
        (DeadlinePassed("no time"), Effect.FINAL, 0),
        (KeyError("our own mistake"), Effect.FINAL, 0),
    ],
)
def test_an_error_is_repeatable_only_if_it_is_known_to_be(
    error: Exception, effect: Effect, hint_s: float
) -> None:
    failure = judge(error)
    assert (failure.effect, failure.retry_after_s) == (effect, hint_s)


def test_a_peer_that_rejects_or_sheds_is_alive() -> None:
    for error in (Overloaded(1), RemoteError(ErrorCode.FORBIDDEN)):
        assert answered(error) and not unanswered(error)


def test_a_peer_that_does_not_answer_is_not() -> None:
    for error in (NotSent("refused"), OutcomeUnknown("lost"), TimeoutError()):
        assert unanswered(error) and not answered(error)


def test_our_own_mistakes_say_nothing_about_the_peer() -> None:
    for error in (KeyError("x"), DeadlinePassed("no time"), OSError(errno.ENOSPC, "full")):
        assert not unanswered(error) and not answered(error)
