"""Sizes and limits of a member's log, checkpoints and blobs.

A number carries its origin. None of them needs to be equal among the members of a group.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated

import msgspec
from msgspec import Meta

MIB = 1 << 20
Bytes = Annotated[int, Meta(ge=1)]
Count = Annotated[int, Meta(ge=1)]
Seconds = Annotated[float, Meta(gt=0)]


class Durability(IntEnum):
    """When an append returns, and what it has survived by then."""

    NONE = 0
    """At once; for tests. May be lost in any failure."""
    WRITE = 1
    """Handed to the operating system; survives the death of the process."""
    FSYNC = 2
    """After a sync that it shares with nothing that came later."""
    FSYNC_BATCH = 3
    """After a sync that may cover many records; survives a loss of power."""


class WalSettings(msgspec.Struct, frozen=True, kw_only=True):
    durability: Durability = Durability.FSYNC_BATCH
    segment_bytes: Annotated[int, Meta(ge=4096)] = 16 * MIB
    """Small, because whole segments are deleted and every start begins a new one."""
    max_record_bytes: Bytes = 1 * MIB
    """A command has at most 256 kB; entries of a group carry some more."""
    max_batch_bytes: Bytes = 2 * MIB
    max_batch_records: Count = 4096
    max_waiting_records: Count = 10_000
    max_waiting_bytes: Bytes = 16 * MIB
    """Bound of all that is accepted and not yet on disk; the batch in flight counts."""
    ahead_bytes: Annotated[int, Meta(ge=0)] = 256 * 1024
    """So far behind the end of a segment stand zeros: a sync that makes no file longer
    has no length to write and takes about half the time."""
    read_bytes: Annotated[int, Meta(ge=4096)] = 256 * 1024
    """One hop to the disk brings so much."""
    slow_sync_s: Seconds = 0.1
    """A sync over this is counted as slow."""


class LedgerSettings(msgspec.Struct, frozen=True, kw_only=True):
    directory: str = "ledger"
    """Below the data directory of the node."""
    wal: WalSettings = WalSettings()
    max_command_bytes: Bytes = 256 * 1024
    max_in_flight: Count = 8192
    sync_limit_s: Seconds = 2.0
    """A sync outstanding for longer: the member steps down."""
    checkpoint_entries: Count = 100_000
    checkpoint_bytes: Bytes = 16 * MIB
    """Of log since the last checkpoint; half the size of the state when that is more, so
    that three checkpoints hold back no more log than twice the state."""
    checkpoint_interval_s: Seconds = 300.0
    checkpoints_kept: Count = 3
    scrub_interval_s: Seconds = 3600.0
    """So often a member of a larger group reads all its files again, to find bit rot while
    others still have what is lost."""
    blob_max_bytes: Bytes = 256 * MIB
    blob_fetches: Count = 8
    """At a time, from peers."""
    blob_keep_s: Seconds = 3600.0
    """Of group time, after the last reference is gone."""
    apply_slice: Count = 128
    """Entries applied before the loop gets its turn."""
    lock: bool = True
    """False: the node holds the lock of its data directory itself."""
