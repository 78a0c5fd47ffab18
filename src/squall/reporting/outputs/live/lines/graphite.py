"""Graphite's plain text: `graphite=HOST:2003`. Counters are sent as they stand, cumulative.

The path is `squall.NAME.RUN.WORKFLOW.STEP...`; with `tags=true` it is
`squall.NAME;run=...;workflow=...`, which Graphite 1.1 and later takes.
"""

from __future__ import annotations

import re
import time
from typing import Any

import msgspec

from squall.api.reporting import LiveReporter, LiveRun
from squall.reporting.outputs.live.lines.sockets import LineSocket
from squall.reporting.outputs.live.lines.statsd import path_part
from squall.reporting.outputs.live.metrics import MetricSource, Points, Value
from squall.stats.snapshot import Snapshot


class GraphiteConfig(msgspec.Struct, frozen=True):
    address: str
    prefix: str = "squall"
    tags: bool = False


class Graphite(LiveReporter):
    """Sends one line for each value each second."""

    wants_histograms = False

    def __init__(self, config: GraphiteConfig) -> None:
        self._config = config
        self._socket = LineSocket(config.address, scheme="tcp", port=2003)
        self._source: MetricSource | None = None

    async def start(self, run: LiveRun) -> None:
        self._source = MetricSource(run)

    async def tick(self, snapshot: Snapshot) -> None:
        assert self._source is not None, "start comes first"
        self._send(self._source.of_snapshot(snapshot))

    async def end(self, document: dict[str, Any] | None) -> None:
        if document is not None and self._source is not None:
            self._send(self._source.of_document(document))
        self._socket.close()

    def _send(self, points: Points) -> None:
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
