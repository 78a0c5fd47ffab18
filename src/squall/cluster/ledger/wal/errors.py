"""The log's errors, one class per reaction that the caller can choose.

WalError
├── WalClosed      the log is closed; this call wrote nothing
├── WalBusy        too much waits for the disk; this call wrote nothing
├── TooLarge       the record exceeds the limit; this call wrote nothing
├── DiskFull       this call wrote nothing; the log continues
├── WalFailed      a write or sync failed: its outcome is unknown and the log has stopped
├── WalDamaged     records that were durable cannot be read back
├── Compacted      the requested records were deleted; a checkpoint covers them
└── WalCut         a cut removed the records that a reader was about to read
"""

from __future__ import annotations

from enum import Enum

from squall.api.errors import SquallError


class WalError(SquallError):
    """Base class of the log's errors."""


class WalClosed(WalError):
    """The log is closed or closing."""


class WalBusy(WalError):
    """The backlog is full and this call was not accepted: retry later or refuse the caller."""


class TooLarge(WalError):
    """The record exceeds `max_record_bytes`; the log assigned no LSN to it."""


class DiskFull(WalError):
    """The disk is full; the log removed the whole append again."""


class WalFailed(WalError):
    """A write or sync failed, and only a restart with recovery helps.

    The log never retries on the open files: after a failed sync the kernel may have dropped
    the dirty pages, and a second sync would report success for data that is lost.
    """


class Compacted(WalError):
    """The requested record was deleted after a checkpoint covered it."""

    def __init__(self, wanted: int, first: int) -> None:
        super().__init__(f"record {wanted} was compacted away; the log begins at {first}")
        self.wanted = wanted
        self.first = first


class WalCut(WalError):
    """A cut removed the records that a reader was about to read."""


class Damage(Enum):
    """The kind of damage that the log found in its files."""

    CORRUPTION = "corruption"
    """Bytes that were durable fail their checksum."""
    GAP = "gap"
    """A record that was durable is missing."""
    FOREIGN = "foreign"
    """The file belongs to another log, or has a format that this code does not know."""


class WalDamaged(WalError):
    """Durable records cannot be read: the member must not act on this log until it is repaired
    from peers or by an operator (R2)."""

    def __init__(self, damage: Damage, path: str, offset: int, text: str) -> None:
        super().__init__(
            f"{path} at byte {offset}: {damage.value}: {text}; `squall wal verify` shows more, "
            "a backup or another member has what is missing"
        )
        self.damage = damage
        self.path = path
        self.offset = offset
