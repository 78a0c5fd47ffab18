"""Pushes to a Prometheus Pushgateway: `pushgateway=http://HOST:9091`.

Each run is a group of its own, which stays on the gateway until somebody deletes it.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import msgspec

from squall.api.reporting import LiveReporter, LiveRun
from squall.reporting.outputs.live.http import HTTPPoster
from squall.reporting.outputs.live.metrics import MetricSource, Points
from squall.reporting.outputs.live.prometheus.exposition import CONTENT_TYPE, render
from squall.stats.snapshot import Snapshot


class PushgatewayConfig(msgspec.Struct, frozen=True):
    url: str
    job: str = "squall"
    keep: bool = True
    """Leave the final totals on the gateway; without, the group is deleted at the end."""


class Pushgateway(LiveReporter):
    """Replaces the group of this run each second."""

    wants_histograms = True

    def __init__(self, config: PushgatewayConfig) -> None:
        self._config = config
        self._poster = HTTPPoster(config.url)
        self._group = ""
        self._source: MetricSource | None = None

    async def start(self, run: LiveRun) -> None:
        self._source = MetricSource(run)
        names = f"{quote(self._config.job, safe='')}/run/{quote(run.id, safe='')}"
        self._group = f"/metrics/job/{names}"

    async def tick(self, snapshot: Snapshot) -> None:
        assert self._source is not None, "start comes first"
        self._push(self._source.of_snapshot(snapshot))

    async def end(self, document: dict[str, Any] | None) -> None:
        if document is not None and self._source is not None:
            self._push(self._source.of_document(document))
        if not self._config.keep:
            self._poster.post(self._group, b"", {}, method="DELETE")
        self._poster.close()

    def _push(self, points: Points) -> None:
        headers = {"Content-Type": CONTENT_TYPE}
        self._poster.post(self._group, render(points), headers, method="PUT")
