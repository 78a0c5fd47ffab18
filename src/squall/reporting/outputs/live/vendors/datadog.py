"""Datadog's metrics interface, version 2: `datadog=https://api.datadoghq.com,key=env:DD_API_KEY`."""

from __future__ import annotations

import gzip
import time
from typing import Annotated, Any

import msgspec

from squall.reporting.outputs.live.http import HTTPPoster
from squall.reporting.outputs.live.metric_output import MetricOutput, MetricSender
from squall.reporting.outputs.live.metrics import Deltas, Points, Value, gauges
from squall.reporting.outputs.targets import Secret

_COUNT, _GAUGE = 1, 3
_HEADERS = {"Content-Type": "application/json", "Content-Encoding": "gzip"}


class DatadogConfig(msgspec.Struct, frozen=True):
    url: str
    key: Annotated[str, Secret("DD_API_KEY")]


def datadog(config: DatadogConfig) -> MetricOutput:
    return MetricOutput(Datadog(config))


class Datadog(MetricSender):
    """Sends counters as counts of a second, and gauges."""

    wants_histograms = False

    def __init__(self, config: DatadogConfig) -> None:
        self._poster = HTTPPoster(config.url, {"DD-API-KEY": config.key})
        self._deltas = Deltas()

    async def close(self) -> None:
        self._poster.close()

    async def send(self, points: Points) -> None:
        at_s = int(time.time())
        series = [_series(each, _COUNT, at_s) for each in self._deltas.of(points)]
        series += [_series(each, _GAUGE, at_s) for each in gauges(points)]
        body = gzip.compress(msgspec.json.encode({"series": series}), 1)
        self._poster.post("/api/v2/series", body, _HEADERS)
        self._deltas.delivered()


def _series(each: Value, kind: int, at_s: int) -> dict[str, Any]:
    found: dict[str, Any] = {
        "metric": f"squall.{each.metric.name}",
        "type": kind,
        "points": [{"timestamp": at_s, "value": each.value}],
        "tags": [f"{name}:{value}" for name, value in each.labels],
    }
    if kind == _COUNT:
        found["interval"] = 1
    if each.metric.unit:
        found["unit"] = each.metric.unit.removesuffix("s")
    return found
