"""The store answers the coordinator late: the coordinator reports this, at a limited rate, and
keeps leading. Used by tests and, at full size, by the acceptance.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from squall.coordination import Coordinator, Timing, events
from squall.coordination.member_stats import CONTENTION_PAUSE_S
from squall.coordination.stores.open import make_store
from squall.runtime.real.runtime import RealRuntime
from tests.services.coordination.lab.cutting_proxy import CuttingProxy
from tests.services.coordination.lab.places import Place

SECRET = "0123456789abcdef" * 4
INTERVAL_S = 0.8
LATE_S = 2.0 * INTERVAL_S
"""A beat that got no answer for half an interval is sent once more: that makes two and a half."""
TIMING = Timing(
    heartbeat_interval=INTERVAL_S,
    heartbeat_ttl=20.0 * INTERVAL_S,
    dead_after=23.0 * INTERVAL_S,
    monitor_interval=INTERVAL_S,
    lease_ttl=16.0 * INTERVAL_S,
    min_epoch_duration=0.0,
    max_epoch_duration=3600.0,
    cold_start_observation_window=0.0,
    cold_start_preparation_delay=0.0,
    retention=900.0,
)


@dataclass
class Slow:
    """What was seen."""

    told: list[tuple[float, float]]
    """When, and the ratio."""
    heard: list[str]
    p99: float
    scraped: str
    stayed: bool

    def check(self) -> None:
        assert self.told and all(ratio > 2.0 for _, ratio in self.told), self.told
        moments = [at for at, _ in self.told]
        pauses = [b - a for a, b in pairwise(moments)]
        assert all(pause_s > 0.9 * CONTENTION_PAUSE_S for pause_s in pauses), self.told
        assert self.p99 > 2.0 * INTERVAL_S, self.p99
        assert self.stayed and "coord:coordinator-demoted" not in self.heard
        assert 'coordination_heartbeat_latency_p99_seconds{namespace="default"}' in self.scraped
        assert 'coordination_contention_events_total{namespace="default"}' in self.scraped


async def slow_down(place: Place, seconds: float) -> Slow:
    """One member is late for so long; another one sees the store as it is."""
    proxy = CuttingProxy.before(place.url)
    runtime = RealRuntime("slow")
    store = make_store(proxy.url(place.url), runtime.clock, runtime.random, prefix=place.prefix)
    options: dict[str, Any] = {"profile": TIMING, "unsafe_timings": True, "secret": SECRET}
    told: list[tuple[float, float]] = []
    heard: list[str] = []
    try:
        async with Coordinator(store, member_id="slow", **options) as slow:
            await slow.ensure_coordinator()
            epoch = slow.current_epoch
            async with Coordinator(await place.open(), member_id="other", **options):
                slow.on(
                    events.ContentionDetected,
                    lambda event: told.append((time.monotonic(), event.ratio)),
                )
                slow.on("*", lambda event: heard.append(event.name))
                proxy.delay(LATE_S)
                await asyncio.sleep(seconds)
                stayed = slow.is_coordinator and slow.current_epoch == epoch
                found = Slow(
                    list(told), list(heard), slow.heartbeat_p99, slow.metrics_text(), stayed
                )
                proxy.delay(0.0)
            return found
    finally:
        await store.close()
        await runtime.close()
        proxy.close()
