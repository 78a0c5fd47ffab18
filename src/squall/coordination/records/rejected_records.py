"""Reports records that do not decode or verify: counts each one, logs each key once.

Such a record is read again and again, a heartbeat at every cycle of the monitor. It must not fill
the log, and the set of logged keys is bounded.
"""

from __future__ import annotations

from collections.abc import Callable

from squall.coordination.metrics import CoordinationMetrics
from squall.runtime.log import Log

KEYS_MAX = 1000


class RejectedRecords:
    """Called with the kind of a refused record, its key and the reason."""

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
