"""New Relic's metric interface: `newrelic=https://metric-api.newrelic.com,key=env:NEW_RELIC_KEY`."""

from __future__ import annotations

import gzip
import time
from typing import Annotated, Any

import msgspec

from squall.api.reporting import LiveRun
from squall.reporting.outputs.live.http import HTTPPoster
from squall.reporting.outputs.live.metric_output import MetricOutput, MetricSender
from squall.reporting.outputs.live.metrics import Deltas, Points, Value, gauges
from squall.reporting.outputs.targets import Secret

_HEADERS = {"Content-Type": "application/json", "Content-Encoding": "gzip"}


class NewRelicConfig(msgspec.Struct, frozen=True):
    url: str
    key: Annotated[str, Secret("NEW_RELIC_LICENSE_KEY")]


def newrelic(config: NewRelicConfig) -> MetricOutput:
    return MetricOutput(NewRelic(config))


class NewRelic(MetricSender):
    """Sends counters as counts with their interval, and gauges."""

    wants_histograms = False

    def __init__(self, config: NewRelicConfig) -> None:
        self._poster = HTTPPoster(config.url, {"Api-Key": config.key})
        self._deltas = Deltas()
        self._counted_ms = 0

    async def open(self, run: LiveRun) -> None:
        self._counted_ms = int(run.started_at * 1000)

    async def close(self) -> None:
        self._poster.close()

    async def send(self, points: Points) -> None:
        now_ms = int(time.time() * 1000)
        interval_ms = max(now_ms - self._counted_ms, 1)
        counts = [
            {**_metric(each, "count"), "interval.ms": interval_ms}
            for each in self._deltas.of(points)
        ]
        content = [
            {
                "common": {"timestamp": now_ms, "attributes": {"service.name": "squall"}},
                "metrics": [*counts, *(_metric(each, "gauge") for each in gauges(points))],
            }
        ]
        body = gzip.compress(msgspec.json.encode(content), 1)
        self._poster.post("/metric/v1", body, _HEADERS)
        self._deltas.delivered()
        self._counted_ms = now_ms


def _metric(each: Value, kind: str) -> dict[str, Any]:
    return {
        "name": f"squall.{each.metric.name}",
        "type": kind,
        "value": each.value,
        "attributes": dict(each.labels),
    }
