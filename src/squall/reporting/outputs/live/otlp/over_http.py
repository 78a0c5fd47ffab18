"""OTLP over HTTP: `otlp=http://HOST:4318`. Without a path it is `/v1/metrics`."""

from __future__ import annotations

from squall.api.reporting import LiveRun
from squall.reporting.outputs.live.http import HTTPPoster
from squall.reporting.outputs.live.metric_output import MetricOutput, MetricSender
from squall.reporting.outputs.live.metrics import Points
from squall.reporting.outputs.live.otlp.message import OTLPConfig, OTLPExport

_HEADERS = {"Content-Type": "application/x-protobuf"}


def otlp(config: OTLPConfig) -> MetricOutput:
    return MetricOutput(OTLPOverHTTP(config))


class OTLPOverHTTP(MetricSender):
    """Posts one request each second."""

    wants_histograms = True

    def __init__(self, config: OTLPConfig) -> None:
        self._service = config.service
        self._poster = HTTPPoster(config.endpoint, config.header_pairs)
        self._path = "" if self._poster.path else "/v1/metrics"
        self._export: OTLPExport

    async def open(self, run: LiveRun) -> None:
        self._export = OTLPExport(run, self._service)

    async def close(self) -> None:
        self._poster.close()

    async def send(self, points: Points) -> None:
        self._poster.post(self._path, self._export.request(points), _HEADERS)
