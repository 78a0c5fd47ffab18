"""The file with the counters of one attempt, which survives the processes that make its load.

A core process writes it at each fold, ten times a second, and before the first request after half
a second without a fold; never per request. It is not synced:
the kernel keeps what was written when a process is killed, and only the end of the machine loses
it. Each write is one system call, so a reader never sees half of one.
"""

from __future__ import annotations

import contextlib
import math
import os
import struct
from pathlib import Path

from squall.engine.process.lease import GAP_S, boot_time
from squall.stats.attempt_record import SurvivingCounters

SILENT_MAX_S = GAP_S
"""No request leaves a core process later than this after it wrote its counters. A loop that runs
writes them every 0.1 s; in one that lags, the first request after this time writes them."""
# The fields of `SurvivingCounters` up to `boot_s`, in their order.
_LAYOUT = struct.Struct("<11d")


class CounterFile:
    """Writes the counters. A file that cannot be written costs nothing but what a death would then
    leave unknown, so its errors are ignored."""

    def __init__(self, path: str) -> None:
        self._path = path
        try:
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        except OSError:
            self._descriptor = -1

    def write(self, counters: SurvivingCounters) -> None:
        if self._descriptor < 0:
            return
        counters.boot_s = boot_time()
        try:
            os.pwrite(self._descriptor, encode_counters(counters), 0)
        except OSError:
            # Counters that grow old would make the silence before a death look short.
            os.close(self._descriptor)
            self._descriptor = -1
            with contextlib.suppress(OSError):
                os.unlink(self._path)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def encode_counters(counters: SurvivingCounters) -> bytes:
    return _LAYOUT.pack(
        counters.planned,
        counters.made,
        counters.dropped,
        counters.finished,
        counters.sent,
        counters.answered,
        counters.failed,
        counters.users,
        counters.busy,
        counters.at_s,
        counters.boot_s,
    )


def decode_counters(data: bytes) -> SurvivingCounters | None:
    """None if no fold came to an end, or a crash of the machine tore the file."""
    if len(data) != _LAYOUT.size:
        return None
    values = _LAYOUT.unpack(data)
    *counts, at_s, boot_s = values
    if not all(map(math.isfinite, values)) or at_s <= 0.0:
        return None
    planned, made, dropped, finished, sent, answered, failed, users, busy = map(int, counts)
    return SurvivingCounters(
        planned=planned,
        made=made,
        dropped=dropped,
        finished=finished,
        sent=sent,
        answered=answered,
        failed=failed,
        users=users,
        busy=busy,
        at_s=at_s,
        boot_s=boot_s,
    )


def read_counters(path: str) -> SurvivingCounters | None:
    try:
        return decode_counters(Path(path).read_bytes())
    except OSError:
        return None
