"""Reduces telemetry while this manager is overloaded: it asks workers for reports less often,
and sheds them when that is not enough.

Sessions, leases, cancels and records belong to other message classes and are never shed.
Nothing is lost: a worker sends the reports that were not acknowledged with its next message.
"""

from __future__ import annotations

from squall.cluster.control.admission import Admission
from squall.cluster.control.overload import Overload, OverloadDetector
from squall.runtime.interfaces import Clock
from squall.runtime.log import Log
from squall.runtime.metrics import Registry

SAMPLE_S = 1.0


class OverloadResponse:
    """Measures how late the event loop is and sets the pace of telemetry by it."""

    def __init__(self, admission: Admission, clock: Clock, log: Log) -> None:
        self._admission = admission
        self._clock = clock
        self._log = log
        self._detector = OverloadDetector()
        self._state = Overload.HEALTHY

    @property
    def pace(self) -> float:
        """How many times longer than usual workers wait between two reports: 1, 2, 4 or 8."""
        return float(1 << self._state)

    @property
    def level(self) -> int:
        """0 healthy, 1 busy, 2 stressed, 3 overloaded."""
        return int(self._state)

    async def watch(self) -> None:
        """Samples the lag of the loop: a sleeper wakes as late as any other task."""
        while True:
            began = self._clock.now()
            await self._clock.sleep(SAMPLE_S)
            now = self._clock.now()
            self.sample(now - began - SAMPLE_S, now)

    def sample(self, lag_s: float, now: float) -> None:
        state = self._detector.feed(lag_s, now)
        self._admission.sheds_telemetry = state is Overload.OVERLOADED
        if state is not self._state:
            log = self._log.warning if state > self._state else self._log.info
            log("load_changed", state=state.name.lower(), lag_s=round(self._detector.current_s, 3))
            self._state = state

    def show(self, registry: Registry) -> None:
        registry.gauge(
            "squall_overload", "0 healthy, 1 busy, 2 stressed, 3 overloaded: telemetry is shed"
        ).follow(lambda: float(self._state))
        registry.gauge("squall_loop_lag_seconds", "Median of the last ten seconds").follow(
            lambda: self._detector.current_s
        )
        shed = registry.gauges("squall_shed_requests", "Shed since the start, by class", ["class"])
        for each in self._admission.load().shed_total:
            shed.with_labels(each.name.lower()).follow(
                lambda each=each: float(self._admission.load().shed_total[each])
            )
