"""The message `ExportMetricsServiceRequest` of OTLP, and the configuration of both transports.

Counters are cumulative sums, latencies exponential histograms. Names follow the metric model with
dots: `squall.executions`.
"""

from __future__ import annotations

import time
from typing import Annotated

import msgspec

from squall.api.reporting import LiveRun
from squall.reporting.outputs.live import protobuf
from squall.reporting.outputs.live.exponential import SCALE, exponential
from squall.reporting.outputs.live.metrics import Labels, Metric, Points
from squall.reporting.outputs.targets import Secret
from squall.stats.reports import HistogramData

_CUMULATIVE = 2
_UNITS = {"seconds": "s", "bytes": "By", "": "1"}


class OTLPConfig(msgspec.Struct, frozen=True):
    endpoint: str
    headers: Annotated[list[str], Secret("OTEL_EXPORTER_OTLP_HEADERS")] = []
    """`NAME=VALUE` each, as OTEL_EXPORTER_OTLP_HEADERS has them."""
    service: str = "squall"

    @property
    def header_pairs(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for each in self.headers:
            name, equals, value = each.partition("=")
            if not equals or not name.strip():
                raise ValueError("headers=...: write NAME=VALUE")
            found[name.strip().lower()] = value.strip()
        return found


class OTLPExport:
    """Encodes the points of one run. All have the start of the run as their start time."""

    def __init__(self, run: LiveRun, service: str) -> None:
        self._start_ns = int(run.started_at * 1e9)
        attributes: Labels = (("service.name", service), ("service.instance.id", run.id))
        self._resource = protobuf.message(1, _attributes(1, attributes))

    def request(self, points: Points) -> bytes:
        at_ns = time.time_ns()
        found: dict[str, tuple[Metric, list[bytes]]] = {}
        for each in points.values:
            content = self._times(at_ns) + protobuf.double(4, each.value)
            content += _attributes(7, each.labels)
            found.setdefault(each.metric.name, (each.metric, []))[1].append(content)
        for each in points.distributions:
            content = _attributes(1, each.labels) + self._times(at_ns) + _histogram(each.data)
            found.setdefault(each.metric.name, (each.metric, []))[1].append(content)
        metrics = b"".join(protobuf.message(2, _metric(*each)) for each in found.values())
        scope = protobuf.message(1, protobuf.text(1, "squall"))
        return protobuf.message(1, self._resource + protobuf.message(2, scope + metrics))

    def _times(self, at_ns: int) -> bytes:
        return protobuf.fixed64(2, self._start_ns) + protobuf.fixed64(3, at_ns)


def _metric(metric: Metric, points: list[bytes]) -> bytes:
    content = protobuf.text(1, f"squall.{metric.name}") + protobuf.text(2, metric.text)
    content += protobuf.text(3, _UNITS[metric.unit])
    data = b"".join(protobuf.message(1, point) for point in points)
    if metric.type == "gauge":
        return content + protobuf.message(5, data)
    data += protobuf.unsigned(2, _CUMULATIVE)
    if metric.type == "histogram":
        return content + protobuf.message(10, data)
    return content + protobuf.message(7, data + protobuf.unsigned(3, 1))


def _histogram(data: HistogramData) -> bytes:
    buckets = exponential(data)
    positive = protobuf.signed(1, buckets.offset) + protobuf.packed(2, buckets.counts)
    content = protobuf.fixed64(4, data.count) + protobuf.double(5, data.sum_s)
    content += protobuf.signed(6, SCALE) + protobuf.fixed64(7, 0) + protobuf.message(8, positive)
    return content + protobuf.double(12, data.min_s) + protobuf.double(13, data.max_s)


def _attributes(field: int, labels: Labels) -> bytes:
    return b"".join(
        protobuf.message(
            field, protobuf.text(1, name) + protobuf.message(2, protobuf.text(1, value))
        )
        for name, value in labels
    )
