"""What can go wrong with the log, told apart by what the caller may do about it.

WalError
├── WalClosed      it was closed; nothing of this call is written
├── WalBusy        too much waits for the disk; nothing of this call is written
├── TooLarge       the record is over the limit; nothing of this call is written
├── DiskFull       nothing of this call is in the log; the log goes on
├── WalFailed      a write or sync failed: the outcome is unknown, the log is dead
├── WalDamaged     what was durable cannot be read back
├── Compacted      the asked-for records are gone, a checkpoint has them
└── WalCut         a reader stands behind the end after a cut
"""

from __future__ import annotations

from enum import Enum

from squall.api.errors import SquallError


class WalError(SquallError):
    """Root of the log's errors."""


class WalClosed(WalError):
    """Closed, or being closed."""


class WalBusy(WalError):
    """Not accepted and never will be by this call: wait, or refuse the caller."""


class TooLarge(WalError):
    """Over `max_record_bytes`; no number was used up."""


class DiskFull(WalError):
    """The append was taken back whole."""


class WalFailed(WalError):
    """Only a restart with recovery helps; nothing is retried on the open files."""


class Compacted(WalError):
    def __init__(self, wanted: int, first: int) -> None:
        super().__init__(f"record {wanted} was compacted away; the log begins at {first}")
        self.wanted = wanted
        self.first = first


class WalCut(WalError):
    """The records that a reader was about to read were cut off."""


class Damage(Enum):
    CORRUPTION = "corruption"
    """Bytes that were durable once do not validate."""
    GAP = "gap"
    """A record that was durable once is missing."""
    FOREIGN = "foreign"
    """A file of another log, or of another format."""


class WalDamaged(WalError):
    """The member must not act from this log: repair from its peers or ask an operator."""

    def __init__(self, damage: Damage, path: str, offset: int, text: str) -> None:
        super().__init__(
            f"{path} at byte {offset}: {damage.value}: {text}; `squall wal verify` shows more, "
            "a backup or another member has what is missing"
        )
        self.damage = damage
        self.path = path
        self.offset = offset
