"""What can go wrong between a member and its store.

Every error says by `outcome_known` whether the write that failed can still have happened:
False means that only a read, or a repeat with the same token, can tell.
"""

from __future__ import annotations

from squall.api.errors import ConfigError, ExitCode, SquallError


class CoordinationError(SquallError):
    """Root of everything that the coordination library raises on purpose."""

    outcome_known = True


class StoreError(CoordinationError):
    """The store cannot be used as it was named: it refuses, or is none. To repeat helps nothing."""

    exit_code = ExitCode.CONFIG


class StoreUnavailableError(StoreError):
    """No answer, or one that says "not now": worth another try."""

    outcome_known = False
    exit_code = ExitCode.UNREACHABLE

    def __init__(self, message: str, *, attempts: int = 1) -> None:
        super().__init__(message)
        self.attempts = attempts


class CircuitOpenError(StoreUnavailableError):
    """Not even tried: the last operations all failed."""

    outcome_known = True


class UnsafeStoreError(StoreError):
    """The store cannot give the conditions that safety rests on; it is not used."""


class VersionConflict(CoordinationError):
    """A condition of a write did not hold. Nothing was written, unless the store has no
    transactions: then the first `applied` writes of the batch took effect."""

    def __init__(self, key: str, message: str = "", *, applied: int = 0) -> None:
        super().__init__(message or f"{key} is not what this write expected")
        self.key = key
        self.applied = applied


class StaleClaimError(VersionConflict):
    """The item was given to somebody else, or is done."""


class StreamFullError(CoordinationError):
    """The stream holds as many unremoved items as it may."""

    def __init__(self, stream: str, limit: int) -> None:
        super().__init__(f"{stream} holds {limit} unread items, no more are taken")
        self.stream = stream
        self.limit = limit


class StaleEpochError(CoordinationError):
    """A fenced write of an epoch that is not the present one. `current` is None when the
    record that holds the epoch is gone: the store lost data, elect again."""

    def __init__(self, scope: str, epoch: int, current: int | None) -> None:
        found = "no epoch at all" if current is None else f"epoch {current}"
        super().__init__(f"epoch {epoch} of {scope} may not write: the store has {found}")
        self.scope = scope
        self.epoch = epoch
        self.current = current


class InvalidIdentifierError(ConfigError):
    """A name that could touch the keys of somebody else."""
