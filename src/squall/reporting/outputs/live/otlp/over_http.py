"""OTLP over HTTP: `otlp=http://HOST:4318`. Without a path it is `/v1/metrics`."""

from __future__ import annotations

from typing import Any

from squall.api.reporting import LiveReporter, LiveRun
from squall.reporting.outputs.live.http import HTTPPoster
from squall.reporting.outputs.live.metrics import Points
from squall.reporting.outputs.live.otlp.message import OTLPConfig, OTLPExport
from squall.stats.snapshot import Snapshot

_HEADERS = {"Content-Type": "application/x-protobuf"}


class OTLPOverHTTP(LiveReporter):
    """Posts one request each second."""

    wants_histograms = True

    def __init__(self, config: OTLPConfig) -> None:
        self._service = config.service
        self._poster = HTTPPoster(config.endpoint, config.header_pairs)
        self._path = "" if self._poster.path else "/v1/metrics"
        self._export: OTLPExport | None = None

    async def start(self, run: LiveRun) -> None:
        self._export = OTLPExport(run, self._service)

    async def tick(self, snapshot: Snapshot) -> None:
        assert self._export is not None, "start comes first"
        self._post(self._export, self._export.source.of_snapshot(snapshot))

    async def end(self, document: dict[str, Any] | None) -> None:
        if document is not None and self._export is not None:
            self._post(self._export, self._export.source.of_document(document))
        self._poster.close()

    def _post(self, export: OTLPExport, points: Points) -> None:
        self._poster.post(self._path, export.request(points), _HEADERS)
