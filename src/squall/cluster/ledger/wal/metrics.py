"""Exports the state of a write-ahead log as Prometheus gauges."""

from __future__ import annotations

from collections.abc import Callable

from squall.cluster.ledger.wal.log import Wal
from squall.runtime.metrics import Registry


def observe_wal(registry: Registry, wal: Wal) -> None:
    counters = wal.counters
    shown: tuple[tuple[str, str, Callable[[], float]], ...] = (
        ("next_lsn", "LSN of the next record", lambda: wal.next_lsn),
        ("durable_lsn", "LSN of the last record that is durable", lambda: wal.durable_lsn),
        ("first_lsn", "LSN of the oldest record that is kept", lambda: wal.first_lsn),
        ("waiting_records", "records accepted but not yet on disk", lambda: wal.waiting_records),
        ("waiting_bytes", "bytes accepted but not yet on disk", lambda: wal.waiting_bytes),
        ("disk_bytes", "size of all segments", lambda: wal.bytes_on_disk),
        ("records", "records written since the start", lambda: counters.records),
        ("blocks", "blocks written since the start", lambda: counters.blocks),
        ("syncs", "syncs since the start", lambda: counters.syncs),
        ("sync_seconds", "time spent in syncs since the start", lambda: counters.sync_s),
        ("longest_sync_seconds", "longest sync since the start", lambda: counters.longest_sync_s),
        ("slow_syncs", "syncs slower than the configured threshold", lambda: counters.slow_syncs),
        ("sync_age_seconds", "age of the running sync, 0 if none", wal.sync_age_s),
        ("room_waits", "calls that had to wait for room", lambda: wal.room_waits),
        ("full", "writes refused because the disk was full", lambda: counters.full),
        ("torn_bytes", "torn bytes ignored at the last start", lambda: wal.recovered.torn_bytes),
        ("failed", "1 after the log has stopped", lambda: float(wal.failure is not None)),
    )
    for name, text, function in shown:
        registry.gauge(f"squall_wal_{name}", text).follow(function)
