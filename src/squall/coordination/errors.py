"""What can end a call of the coordination library.

CoordinationError (stores/errors.py; those of stores are there)
├── ConfigurationError        an option is refused, before anything was done
├── DuplicateMemberError      a live process has this id
├── MemberFencedError         this incarnation was declared dead
├── EpochRegressionError      the store shows an epoch below one that was seen
├── LeadershipLost            the term ended while its work ran
├── SignalError
│   ├── SignalDeliveryError   no acknowledgment after the last attempt
│   ├── InboxFullError        the receiver does not read
│   └── UnknownMemberError    nobody of that id ever registered
└── WaitError
    ├── BlockingTimeoutError  nothing came in time
    ├── DeadCoordinatorError  who should have sent it is dead
    └── StateLostError        the store lost what was waited for
"""

from __future__ import annotations

from collections.abc import Mapping

from squall.api.errors import ConfigError, ExitCode
from squall.coordination.stores.errors import (
    CircuitOpenError,
    CoordinationError,
    InvalidIdentifierError,
    StaleClaimError,
    StaleEpochError,
    StoreError,
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
    "StoreUnavailableError",
    "StreamFullError",
    "UnknownMemberError",
    "UnsafeStoreError",
    "VersionConflict",
    "WaitError",
]


class ConfigurationError(CoordinationError, ConfigError):
    """Names the option, its value, the rule, and what would be right."""

    exit_code = ExitCode.CONFIG


class NotRunningError(CoordinationError):
    """The coordinator was not started, or has stopped."""


class DuplicateMemberError(CoordinationError):
    exit_code = ExitCode.CONFIG

    def __init__(self, member_id: str, hostname: str, pid: int) -> None:
        super().__init__(
            f"member {member_id} lives already, as process {pid} on {hostname}:"
            " stop it, or give this one another id"
        )
        self.member_id = member_id
        self.hostname = hostname
        self.pid = pid


class MemberFencedError(CoordinationError):
    def __init__(self, member_id: str, incarnation: int) -> None:
        super().__init__(
            f"incarnation {incarnation} of member {member_id} was declared dead;"
            " only a new incarnation may go on"
        )
        self.member_id = member_id
        self.incarnation = incarnation


class EpochRegressionError(CoordinationError):
    def __init__(self, seen: int, found: int) -> None:
        super().__init__(
            f"the store shows epoch {found} and epoch {seen} was seen before:"
            " it lost data; the next election begins above both"
        )
        self.seen = seen
        self.found = found


class LeadershipLost(CoordinationError):
    """Raised by `async with coordinator.lead()` when its body was cancelled by the end of
    the term. `reason` is that of the demotion."""

    def __init__(self, epoch: int, reason: str) -> None:
        super().__init__(f"epoch {epoch} ended: {reason}")
        self.epoch = epoch
        self.reason = reason


class SignalError(CoordinationError):
    """A signal was not taken, or not acknowledged."""


class SignalDeliveryError(SignalError):
    """The signal may still be read: it stays in the inbox until it expires."""

    outcome_known = False

    def __init__(self, receiver_id: str, signal_id: str, attempts: int, last_error: str) -> None:
        super().__init__(
            f"signal {signal_id} was not acknowledged by {receiver_id}"
            f" after {attempts} attempts: {last_error}"
        )
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
    def __init__(self, member_id: str) -> None:
        super().__init__(
            f"no member {member_id} ever registered; allow_unknown=True sends all the same"
        )
        self.member_id = member_id


class WaitError(CoordinationError):
    """A blocking wait ended without its signal."""


class BlockingTimeoutError(WaitError, TimeoutError):
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
    def __init__(self, member_id: str, reason: str = "") -> None:
        super().__init__(f"{member_id} is dead" + (f": {reason}" if reason else ""))
        self.member_id = member_id
        self.reason = reason


class StateLostError(WaitError):
    """The store was emptied or set back: what was waited for will not come by itself."""
