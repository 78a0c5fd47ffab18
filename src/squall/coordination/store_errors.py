"""Errors between a member and its store.

Each error says in `outcome_known` whether the failed write certainly did not happen. False means
that it may have: only a read, or a repeat with the same token, can tell.
"""

from __future__ import annotations

from squall.api.errors import ConfigError, ExitCode, SquallError


class CoordinationError(SquallError):
    """The base of all errors that the coordination library raises on purpose."""

    outcome_known = True


class StoreError(CoordinationError):
    """The store cannot be used as it is configured: it refuses, or is no store. A repeat does not
    help."""

    exit_code = ExitCode.CONFIG


class StoreUnavailableError(StoreError):
    """The store did not answer, or answered "not now": worth another try."""

    outcome_known = False
    exit_code = ExitCode.UNREACHABLE

    def __init__(self, message: str, *, attempts: int = 1) -> None:
        super().__init__(message)
        self.attempts = attempts


class StoreTimeoutError(StoreUnavailableError):
    """The store used up the time limit of a try without an answer."""


class CircuitOpenError(StoreUnavailableError):
    """The operation was not tried, because the last ones all failed."""

    outcome_known = True


class UnsafeStoreError(StoreError):
    """The store does not keep the conditions that safety depends on, and is not used."""


class VersionConflict(CoordinationError):
    """A condition of a write did not hold. Nothing was written, except on a store without
    transactions: there the first `applied` writes of the batch took effect."""

    def __init__(self, key: str, message: str = "", *, applied: int = 0) -> None:
        super().__init__(message or f"{key} does not have the state that this write expected")
        self.key = key
        self.applied = applied


class StaleClaimError(VersionConflict):
    """The item was given to another owner, or is done."""

    @classmethod
    def of(cls, stream: str, claim: str) -> StaleClaimError:
        return cls(stream, f"claim {claim} of {stream} no longer holds its item")


class StreamFullError(CoordinationError):
    """The stream holds as many unremoved items as it may; nothing was appended."""

    def __init__(self, stream: str, limit: int) -> None:
        super().__init__(f"{stream} is full: it holds {limit} unread items, which is its limit")
        self.stream = stream
        self.limit = limit


class StaleEpochError(CoordinationError):
    """A fenced write came from an epoch that is not the current one. `current` is None if the
    record that holds the epoch is gone: the store lost data, and a new election is needed."""

    def __init__(self, scope: str, epoch: int, current: int | None) -> None:
        found = "no epoch" if current is None else f"epoch {current}"
        super().__init__(f"epoch {epoch} of {scope} may no longer write: the store has {found}")
        self.scope = scope
        self.epoch = epoch
        self.current = current


class InvalidIdentifierError(ConfigError):
    """A name with characters that could reach the keys of another namespace."""
