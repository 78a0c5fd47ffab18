"""What a write-ahead log shows of itself to Prometheus. It only reads."""

from __future__ import annotations

from collections.abc import Callable

from squall.ledger.wal.log import Wal
from squall.runtime.metrics import Registry


def observe_wal(registry: Registry, wal: Wal) -> None:
    counters = wal.counters
    shown: tuple[tuple[str, str, Callable[[], float]], ...] = (
        ("next_lsn", "number of the next record", lambda: wal.next_lsn),
        ("durable_lsn", "last record that survives a loss of power", lambda: wal.durable_lsn),
        ("first_lsn", "oldest record that is kept", lambda: wal.first_lsn),
        ("waiting_records", "accepted and not yet on disk", lambda: wal.waiting_records),
        ("waiting_bytes", "accepted and not yet on disk", lambda: wal.waiting_bytes),
        ("disk_bytes", "size of all segments", lambda: wal.bytes_on_disk),
        ("records", "written since the start", lambda: counters.records),
        ("blocks", "written since the start", lambda: counters.blocks),
        ("syncs", "since the start", lambda: counters.syncs),
        ("sync_seconds", "spent in syncs since the start", lambda: counters.sync_s),
        ("longest_sync_seconds", "since the start", lambda: counters.longest_sync_s),
        ("slow_syncs", "over the threshold of the settings", lambda: counters.slow_syncs),
        ("sync_age_seconds", "of the sync that is under way", wal.sync_age_s),
        ("room_waits", "callers that had to wait for room", lambda: wal.room_waits),
        ("full", "times that the disk was full", lambda: counters.full),
        ("torn_bytes", "left out at the last start", lambda: wal.recovered.torn_bytes),
        ("failed", "1 when it takes nothing any more", lambda: float(wal.failure is not None)),
    )
    for name, text, function in shown:
        registry.gauge(f"squall_wal_{name}", text).follow(function)
