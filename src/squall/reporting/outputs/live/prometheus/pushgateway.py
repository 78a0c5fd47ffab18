"""Pushes to a Prometheus Pushgateway: `pushgateway=http://HOST:9091`.

Each run is a group of its own, which stays on the gateway until a user deletes it.
"""

from __future__ import annotations

from urllib.parse import quote

import msgspec

from squall.api.reporting import LiveRun
from squall.reporting.outputs.live.http import HTTPPoster
from squall.reporting.outputs.live.metric_output import MetricOutput, MetricSender
from squall.reporting.outputs.live.metrics import Points
from squall.reporting.outputs.live.prometheus.exposition import CONTENT_TYPE, render


class PushgatewayConfig(msgspec.Struct, frozen=True):
    url: str
    job: str = "squall"
    keep: bool = True
    """Leave the final totals on the gateway; without, the group is deleted at the end."""


def pushgateway(config: PushgatewayConfig) -> MetricOutput:
    return MetricOutput(Pushgateway(config))


class Pushgateway(MetricSender):
    """Replaces the group of this run each second."""

    wants_histograms = True

    def __init__(self, config: PushgatewayConfig) -> None:
        self._config = config
        self._poster = HTTPPoster(config.url)
        self._group = ""

    async def open(self, run: LiveRun) -> None:
        names = f"{quote(self._config.job, safe='')}/run/{quote(run.id, safe='')}"
        self._group = f"/metrics/job/{names}"

    async def close(self) -> None:
        if not self._config.keep:
            self._poster.post(self._group, b"", {}, method="DELETE")
        self._poster.close()

    async def send(self, points: Points) -> None:
        headers = {"Content-Type": CONTENT_TYPE}
        self._poster.post(self._group, render(points), headers, method="PUT")
