"""The errors of the coordination library.

CoordinationError (coordination/store_errors.py; those of stores are there)
├── ConfigurationError        an option is refused, before anything was started
├── DuplicateMemberError      a live process has this id
├── MemberFencedError         this boot was declared dead
├── EpochRegressionError      the store shows an epoch below one that was seen
├── LeadershipLost            the term ended while its work ran
├── SignalError
│   ├── SignalDeliveryError   no acknowledgment after the last attempt
│   ├── InboxFullError        the receiver does not read
│   └── UnknownMemberError    no member of this id ever registered
└── WaitError
    ├── BlockingTimeoutError  no signal came in time
    ├── DeadCoordinatorError  the expected sender is dead
    └── StateLostError        the store lost the state of the wait
"""

from __future__ import annotations

from collections.abc import Mapping

from squall.api.errors import ConfigError, ExitCode
from squall.coordination.store_errors import (
    CircuitOpenError,
    CoordinationError,
    InvalidIdentifierError,
    StaleClaimError,
    StaleEpochError,
    StoreError,
    StoreTimeoutError,
    StoreUnavailableError,
    StreamFullError,
    UnsafeStoreError,
    VersionConflict,
)

__all__ = [
    "BlockingTimeoutError",
    "CircuitOpenError",
    "ConfigurationError",
    "CoordinationError",
    "DeadCoordinatorError",
    "DuplicateMemberError",
    "EpochRegressionError",
    "InboxFullError",
    "InvalidIdentifierError",
    "LeadershipLost",
    "MemberFencedError",
    "NotRunningError",
    "SignalDeliveryError",
    "SignalError",
    "StaleClaimError",
    "StaleEpochError",
    "StateLostError",
    "StoreError",
    "StoreTimeoutError",
    "StoreUnavailableError",
    "StreamFullError",
    "UnknownMemberError",
    "UnsafeStoreError",
    "VersionConflict",
    "WaitError",
]


class ConfigurationError(CoordinationError, ConfigError):
    """An option is refused. The message has the option, its value, the rule and a valid value."""

    exit_code = ExitCode.CONFIG


class NotRunningError(CoordinationError):
    """The coordinator was not started, or has stopped."""


class DuplicateMemberError(CoordinationError):
    """Another live process has this member id."""

    exit_code = ExitCode.CONFIG

    def __init__(self, member_id: str, hostname: str, pid: int) -> None:
        super().__init__(
            f"member {member_id} is already alive, as process {pid} on {hostname}:"
            " stop it, or use another member_id here"
        )
        self.member_id = member_id
        self.hostname = hostname
        self.pid = pid


class MemberFencedError(CoordinationError):
    """This boot of the member was declared dead, or replaced by a later one; it may not write."""

    def __init__(self, member_id: str, boot: int) -> None:
        super().__init__(
            f"boot {boot} of member {member_id} was declared dead; only a new boot may go on"
        )
        self.member_id = member_id
        self.boot = boot


class EpochRegressionError(CoordinationError):
    """The store shows a lower epoch than this member saw: it lost data."""

    def __init__(self, seen: int, found: int) -> None:
        super().__init__(
            f"the store shows epoch {found}, but this member saw epoch {seen}: the store lost data;"
            " the next election begins above both"
        )
        self.seen = seen
        self.found = found


class LeadershipLost(CoordinationError):
    """The end of the term cancelled the body of `async with coordinator.lead()`. `reason` is that
    of the demotion."""

    def __init__(self, epoch: int, reason: str) -> None:
        super().__init__(f"epoch {epoch} ended: {reason}")
        self.epoch = epoch
        self.reason = reason


class SignalError(CoordinationError):
    """A signal was refused, or not acknowledged."""


class SignalDeliveryError(SignalError):
    """No acknowledgment came. Without a receipt the signal stays in the inbox until it expires, and
    the receiver may still read it. `received` says that a handler has it: it may still succeed."""

    outcome_known = False

    def __init__(
        self,
        receiver_id: str,
        signal_id: str,
        attempts: int,
        last_error: str,
        *,
        received: bool = False,
    ) -> None:
        tries = f"{attempts} attempt" + ("s" if attempts != 1 else "")
        super().__init__(
            f"signal {signal_id} was not acknowledged by {receiver_id} after {tries}: {last_error}"
        )
        self.received = received
        self.receiver_id = receiver_id
        self.signal_id = signal_id
        self.attempts = attempts
        self.last_error = last_error


class InboxFullError(SignalError):
    def __init__(self, receiver_id: str, limit: int) -> None:
        super().__init__(f"the inbox of {receiver_id} holds {limit} unread signals")
        self.receiver_id = receiver_id
        self.limit = limit


class UnknownMemberError(SignalError):
    """The receiver of a signal never registered."""

    def __init__(self, member_id: str) -> None:
        super().__init__(
            f"no member {member_id} ever registered; use allow_unknown=True to send anyway"
        )
        self.member_id = member_id


class WaitError(CoordinationError):
    """A blocking wait ended without its signal."""


class BlockingTimeoutError(WaitError, TimeoutError):
    """A wait ran out of time. `expected_senders_health` has the health of the senders, `partial`
    what came in time."""

    def __init__(
        self,
        member_id: str,
        correlation_id: str,
        waited: float,
        expected_senders_health: Mapping[str, str],
        partial: Mapping[str, object] | None = None,
    ) -> None:
        health = ", ".join(f"{name} {state}" for name, state in expected_senders_health.items())
        super().__init__(
            f"{member_id} waited {waited:.1f} s for {correlation_id or 'a signal'} in vain"
            + (f" (senders: {health})" if health else "")
        )
        self.member_id = member_id
        self.correlation_id = correlation_id
        self.waited = waited
        self.expected_senders_health = dict(expected_senders_health)
        self.partial = dict(partial or {})


class DeadCoordinatorError(WaitError):
    """All members that a wait could be answered by are dead or have left; as an event, one member
    was declared dead."""

    def __init__(self, member_id: str, reason: str = "") -> None:
        super().__init__(f"{member_id} is dead" + (f": {reason}" if reason else ""))
        self.member_id = member_id
        self.reason = reason


class StateLostError(WaitError):
    """The store was emptied or restored from an older state: the signal will not come."""
