"""Graphite's plain text: `graphite=HOST:2003`. Counters are cumulative.

The path is `squall.NAME.RUN.WORKFLOW.STEP...`; with `tags=true` it is
`squall.NAME;run=...;workflow=...`, which Graphite 1.1 and later takes.
"""

from __future__ import annotations

import re
import time

import msgspec

from squall.reporting.outputs.live.lines.sockets import LineSocket
from squall.reporting.outputs.live.lines.statsd import path_part
from squall.reporting.outputs.live.metric_output import MetricOutput, MetricSender
from squall.reporting.outputs.live.metrics import Points, Value


class GraphiteConfig(msgspec.Struct, frozen=True):
    address: str
    prefix: str = "squall"
    tags: bool = False


def graphite(config: GraphiteConfig) -> MetricOutput:
    return MetricOutput(Graphite(config))


class Graphite(MetricSender):
    """Sends one line for each value each second."""

    wants_histograms = False

    def __init__(self, config: GraphiteConfig) -> None:
        self._config = config
        self._socket = LineSocket(config.address, scheme="tcp", port=2003)

    async def close(self) -> None:
        self._socket.close()

    async def send(self, points: Points) -> None:
        at_s = int(time.time())
        self._socket.send([graphite_line(each, self._config, at_s) for each in points.values])


def graphite_line(each: Value, config: GraphiteConfig, at_s: int) -> str:
    name = f"{config.prefix}.{each.metric.name}"
    if config.tags:
        labels = "".join(f";{key}={_tag(text)}" for key, text in each.labels)
    else:
        labels = "".join(f".{path_part(text)}" for _, text in each.labels)
    return f"{name}{labels} {each.value:.15g} {at_s}"


def _tag(text: str) -> str:
    return re.sub(r"[;~\s]+", "_", text) or "_"
