"""Records that cannot be believed: counted each time, logged once for each key.

A record that does not decode or verify is read again and again, as a heartbeat is at every look
of the monitor. It must never fill the log, nor grow without an end.
"""

from __future__ import annotations

from collections.abc import Callable

from squall.coordination.metrics import CoordinationMetrics
from squall.runtime.log import Log

KEYS_MAX = 1000


class Refusals:
    """Of one member; called with the kind of a record, its key, and why it is refused."""

    def __init__(self, metrics: CoordinationMetrics, log: Callable[[], Log]) -> None:
        self._metrics = metrics
        self._log = log
        self._logged: dict[str, None] = {}

    def __call__(self, kind: str, key: str, why: str) -> None:
        metrics = self._metrics
        metrics.counter(metrics.families.records_refused, kind).add()
        if key in self._logged:
            return
        if len(self._logged) >= KEYS_MAX:
            del self._logged[next(iter(self._logged))]
        self._logged[key] = None
        self._log().warning("record_refused", kind=kind, key=key, reason=why)
