"""Honeycomb's events: `honeycomb=https://api.honeycomb.io,dataset=load,key=env:HONEYCOMB_API_KEY`.

It sends one event a second for each set of labels, with all its metrics as columns. Counters are
cumulative; the events of the end have `final` true.
"""

from __future__ import annotations

import gzip
from datetime import UTC, datetime
from typing import Annotated, Any
from urllib.parse import quote

import msgspec

from squall.reporting.outputs.live.http import HTTPPoster
from squall.reporting.outputs.live.metric_output import MetricOutput, MetricSender
from squall.reporting.outputs.live.metrics import Labels, Points
from squall.reporting.outputs.targets import Secret

_HEADERS = {"Content-Type": "application/json", "Content-Encoding": "gzip"}


class HoneycombConfig(msgspec.Struct, frozen=True):
    url: str
    key: Annotated[str, Secret("HONEYCOMB_API_KEY")]
    dataset: str = "squall"


def honeycomb(config: HoneycombConfig) -> MetricOutput:
    return MetricOutput(Honeycomb(config))


class Honeycomb(MetricSender):
    """Sends the events of each second in one batch."""

    wants_histograms = False

    def __init__(self, config: HoneycombConfig) -> None:
        self._poster = HTTPPoster(config.url, {"X-Honeycomb-Team": config.key})
        self._path = f"/1/batch/{quote(config.dataset, safe='')}"

    async def close(self) -> None:
        self._poster.close()

    async def send(self, points: Points) -> None:
        moment = datetime.now(UTC).isoformat(timespec="milliseconds")
        events = [{"time": moment, "data": data} for data in honeycomb_events(points)]
        self._poster.post(self._path, gzip.compress(msgspec.json.encode(events), 1), _HEADERS)


def honeycomb_events(points: Points) -> list[dict[str, Any]]:
    found: dict[Labels, dict[str, Any]] = {}
    for each in points.values:
        event = found.setdefault(each.labels, {**dict(each.labels), "final": points.is_final})
        event[f"squall.{each.metric.name}"] = each.value
    return list(found.values())
