"""InfluxDB's line protocol: to InfluxDB 1 and 2 over HTTP, to Telegraf's socket listener.

`influx=http://HOST:8086,database=load`, `influx2=http://HOST:8086,org=o,bucket=b,token=env:T`,
`telegraf=udp://HOST:8094`. A metric is a measurement `squall_NAME` with the field `value`; a
latency has `count`, `sum`, `min`, `max` and quantiles. The final totals are sent with the time of
their delivery, so the last value of a series is that of the results document.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Annotated
from urllib.parse import urlencode

import msgspec

from squall.reporting.outputs.live.http import HTTPPoster
from squall.reporting.outputs.live.lines.sockets import LineSocket
from squall.reporting.outputs.live.metric_output import MetricOutput, MetricSender
from squall.reporting.outputs.live.metrics import Labels, Points
from squall.reporting.outputs.targets import Secret
from squall.stats.histogram import data_quantile

_QUANTILES = (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))
_HEADERS = {"Content-Type": "text/plain; charset=utf-8"}


class InfluxConfig(msgspec.Struct, frozen=True):
    url: str
    database: str = "squall"
    user: str = ""
    password: Annotated[str, Secret("INFLUX_PASSWORD")] = ""


class Influx2Config(msgspec.Struct, frozen=True):
    url: str
    org: str
    bucket: str = "squall"
    token: Annotated[str, Secret("INFLUX_TOKEN")] = ""


class LineWriter(MetricSender):
    """Writes the lines of each second with `send`."""

    wants_histograms = True

    def __init__(self, send: Callable[[list[str]], None], close: Callable[[], None]) -> None:
        self._send = send
        self._close = close

    async def send(self, points: Points) -> None:
        self._send(influx_lines(points, time.time_ns()))

    async def close(self) -> None:
        self._close()


def influx(config: InfluxConfig) -> MetricOutput:
    """InfluxDB 1."""
    query = {"db": config.database, "precision": "ns"}
    if config.user:
        query |= {"u": config.user, "p": config.password}
    return _over_http(HTTPPoster(config.url), f"/write?{urlencode(query)}")


def influx2(config: Influx2Config) -> MetricOutput:
    """InfluxDB 2 and 3."""
    headers = {"Authorization": f"Token {config.token}"} if config.token else {}
    query = urlencode({"org": config.org, "bucket": config.bucket, "precision": "ns"})
    return _over_http(HTTPPoster(config.url, headers), f"/api/v2/write?{query}")


def telegraf(address: str) -> MetricOutput:
    """The socket listener of Telegraf."""
    lines = LineSocket(address, scheme="udp", port=8094)
    return MetricOutput(LineWriter(lines.send, lines.close))


def _over_http(poster: HTTPPoster, path: str) -> MetricOutput:
    def send(lines: list[str]) -> None:
        poster.post(path, "\n".join(lines).encode(errors="replace"), _HEADERS)

    return MetricOutput(LineWriter(send, poster.close))


def influx_lines(points: Points, at_ns: int) -> list[str]:
    lines = [
        f"squall_{each.metric.name}{_tags(each.labels)} value={float(each.value)!r} {at_ns}"
        for each in points.values
    ]
    for each in points.distributions:
        data = each.data
        if data.count:
            fields = [f"count={data.count}i", f"sum={data.sum_s!r}"]
            fields += [f"min={data.min_s!r}", f"max={data.max_s!r}"]
            fields += [f"{name}={data_quantile(data, q)!r}" for name, q in _QUANTILES]
            name = f"squall_{each.metric.name}{_tags(each.labels)}"
            lines.append(f"{name} {','.join(fields)} {at_ns}")
    return lines


def _tags(labels: Labels) -> str:
    # A tag without a value is an error of the whole request.
    return "".join(f",{_escaped(name)}={_escaped(value)}" for name, value in labels if value)


def _escaped(text: str) -> str:
    text = " ".join(text.split()).rstrip("\\")
    return text.replace(",", "\\,").replace("=", "\\=").replace(" ", "\\ ")
