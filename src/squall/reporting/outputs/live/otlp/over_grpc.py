"""OTLP over gRPC: `otlp-grpc=http://HOST:4317`; with `https://` over TLS."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from squall.api.errors import SquallError
from squall.api.reporting import LiveRun
from squall.reporting.outputs.live.http import TIMEOUT_S
from squall.reporting.outputs.live.metric_output import MetricOutput, MetricSender
from squall.reporting.outputs.live.metrics import Points
from squall.reporting.outputs.live.otlp.message import OTLPConfig, OTLPExport

METHOD = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export"


def otlp_grpc(config: OTLPConfig) -> MetricOutput:
    return MetricOutput(OTLPOverGRPC(config))


class OTLPOverGRPC(MetricSender):
    """Calls `Export` each second with a message that is already encoded."""

    wants_histograms = True

    def __init__(self, config: OTLPConfig) -> None:
        endpoint = config.endpoint
        parts = urlsplit(endpoint if "://" in endpoint else f"http://{endpoint}")
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.port is None:
            raise ValueError("write http://HOST:PORT or https://HOST:PORT")
        self._address = f"{parts.hostname}:{parts.port}"
        self._secure = parts.scheme == "https"
        self._headers = tuple(config.header_pairs.items())
        self._service = config.service
        self._channel: Any = None
        self._export: OTLPExport

    async def open(self, run: LiveRun) -> None:
        import grpc.aio

        if self._secure:
            credentials = grpc.ssl_channel_credentials()
            self._channel = grpc.aio.secure_channel(self._address, credentials)
        else:
            self._channel = grpc.aio.insecure_channel(self._address)
        self._export = OTLPExport(run, self._service)

    async def close(self) -> None:
        await self._channel.close()

    async def send(self, points: Points) -> None:
        import grpc.aio

        try:
            # Without serializers the method takes and returns bytes.
            await self._channel.unary_unary(METHOD)(
                self._export.request(points), timeout=TIMEOUT_S, metadata=self._headers
            )
        except grpc.aio.AioRpcError as error:
            details = " ".join((error.details() or "").split())
            raise SquallError(f"{error.code().name}: {details}") from None
