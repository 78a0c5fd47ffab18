"""Writes to Prometheus, Mimir, Thanos, VictoriaMetrics: `remote-write=http://HOST:9090/api/v1/write`.

Version 1 of the protocol, with latencies as native histograms. A receiver that refuses those
(Prometheus without `--enable-feature=native-histograms`) needs `histograms=false`.
"""

from __future__ import annotations

import time
from importlib import import_module
from typing import Annotated, Any

import msgspec

from squall.reporting.outputs.live import protobuf
from squall.reporting.outputs.live.exponential import SCALE, exponential
from squall.reporting.outputs.live.http import HTTPPoster
from squall.reporting.outputs.live.metric_output import MetricOutput, MetricSender
from squall.reporting.outputs.live.metrics import Labels, Points
from squall.reporting.outputs.live.prometheus.exposition import full_name
from squall.reporting.outputs.targets import Secret
from squall.stats.reports import HistogramData

_HEADERS = {
    "Content-Type": "application/x-protobuf",
    "Content-Encoding": "snappy",
    "X-Prometheus-Remote-Write-Version": "0.1.0",
    "User-Agent": "squall",
}


class RemoteWriteConfig(msgspec.Struct, frozen=True):
    url: str
    token: Annotated[str, Secret()] = ""
    """Sent as `Authorization: Bearer`."""
    tenant: str = ""
    """Sent as `X-Scope-OrgID` (Mimir)."""
    histograms: bool = True


def remote_write(config: RemoteWriteConfig) -> MetricOutput:
    return MetricOutput(RemoteWrite(config))


class RemoteWrite(MetricSender):
    """Writes the metrics of each second with its time."""

    def __init__(self, config: RemoteWriteConfig) -> None:
        headers = dict(_HEADERS)
        if config.token:
            headers["Authorization"] = f"Bearer {config.token}"
        if config.tenant:
            headers["X-Scope-OrgID"] = config.tenant
        self._poster = HTTPPoster(config.url, headers)
        self.wants_histograms = config.histograms
        self._last_ms = 0

    async def close(self) -> None:
        self._poster.close()

    async def send(self, points: Points) -> None:
        # Of two samples of a series with one time the receiver refuses the second.
        self._last_ms = max(int(time.time() * 1000), self._last_ms + 1)
        content = write_request(points, self._last_ms, histograms=self.wants_histograms)
        snappy: Any = import_module("cramjam").snappy
        self._poster.post("", bytes(snappy.compress_raw(content)), {})


def write_request(points: Points, at_ms: int, *, histograms: bool = True) -> bytes:
    """The message `prometheus.WriteRequest`."""
    series: list[bytes] = []
    for each in points.values:
        sample = protobuf.double(1, each.value) + protobuf.unsigned(2, at_ms)
        content = _labels(full_name(each.metric), each.labels) + protobuf.message(2, sample)
        series.append(protobuf.message(1, content))
    for each in points.distributions if histograms else ():
        content = _labels(full_name(each.metric), each.labels)
        content += protobuf.message(4, _native_histogram(each.data, at_ms))
        series.append(protobuf.message(1, content))
    return b"".join(series)


def _labels(name: str, labels: Labels) -> bytes:
    # The receiver demands that names are sorted.
    pairs = sorted((("__name__", name), *labels))
    return b"".join(
        protobuf.message(1, protobuf.text(1, key) + protobuf.text(2, value)) for key, value in pairs
    )


def _native_histogram(data: HistogramData, at_ms: int) -> bytes:
    buckets = exponential(data)
    content = protobuf.unsigned(1, data.count) + protobuf.double(3, data.sum_s)
    content += protobuf.signed(4, SCALE) + protobuf.double(5, 2.0**-128) + protobuf.unsigned(6, 0)
    if buckets.counts:
        # Bucket i of Prometheus ends at b**i, that of `exponential` at b**(i+1).
        span = protobuf.signed(1, buckets.offset + 1) + protobuf.unsigned(2, len(buckets.counts))
        content += protobuf.message(11, span)
        before = [0, *buckets.counts[:-1]]
        deltas = [now - last for now, last in zip(buckets.counts, before, strict=True)]
        content += protobuf.packed(12, map(protobuf.zigzag, deltas))
    return content + protobuf.unsigned(15, at_ms)
