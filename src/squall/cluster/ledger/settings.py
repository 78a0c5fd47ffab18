"""Sizes and limits of a member's log, checkpoints and blobs.

Members of a group may use different values for all of them.
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
    """When an append returns, and which failures its record survives from then on."""

    NONE = 0
    """Returns at once; any failure may lose the record. For tests."""
    WRITE = 1
    """Returns after the write; the record survives the death of the process."""
    FSYNC = 2
    """Returns after a sync that no later record shares; survives a loss of power."""
    FSYNC_BATCH = 3
    """Returns after a sync that may cover many records; survives a loss of power."""


class WalSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes and limits of a write-ahead log."""

    durability: Durability = Durability.FSYNC_BATCH
    segment_bytes: Annotated[int, Meta(ge=4096)] = 16 * MIB
    """Small, because compaction deletes whole segments and every start begins a new one."""
    max_record_bytes: Bytes = 1 * MIB
    """A command has at most 256 kB, and its entry adds a header. A ledger raises this limit."""
    max_batch_bytes: Bytes = 2 * MIB
    max_batch_records: Count = 4096
    max_waiting_records: Count = 10_000
    max_waiting_bytes: Bytes = 16 * MIB
    """Limit for records that are accepted but not yet on disk, including the block that is
    being written."""
    ahead_bytes: Annotated[int, Meta(ge=0)] = 256 * 1024
    """The log writes this many zeros ahead of a segment's end. A sync that does not change
    the file's length takes about half the time."""
    read_bytes: Annotated[int, Meta(ge=4096)] = 256 * 1024
    """Bytes that a reader requests per disk call."""
    slow_sync_s: Seconds = 0.1
    """A longer sync is counted as slow."""


class LedgerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes, limits and intervals of one member's ledger."""

    directory: str = "ledger"
    """Path relative to the node's data directory."""
    role: str = "manager"
    """Of the node: a data directory serves one role only."""
    wal: WalSettings = WalSettings()
    max_command_bytes: Bytes = 256 * 1024
    max_in_flight: Count = 8192
    checkpoint_entries: Count = 100_000
    checkpoint_bytes: Bytes = 16 * MIB
    """Bytes of log after which the member writes a checkpoint, or half the size of the state
    if that is more. Three kept checkpoints then retain less log than twice the state."""
    checkpoint_interval_s: Seconds = 300.0
    checkpoints_kept: Count = 3
    scrub_interval_s: Seconds = 3600.0
    """Interval at which a member of a larger group rereads all its files, to find bit rot
    while other members can still replace what is lost."""
    blob_max_bytes: Bytes = 256 * MIB
    blob_keep_s: Seconds = 3600.0
    """How long an unreferenced blob is kept, in group time (R9)."""
    apply_slice: Count = 128
    """Entries applied between two turns of the event loop."""
    lock: bool = True
    """False if the node itself holds the lock of its data directory."""
