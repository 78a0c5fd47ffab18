"""A live reporter that sends metrics: the part that all metric backends share."""

from __future__ import annotations

from typing import Any, Protocol

from squall.api.reporting import LiveReporter, LiveRun
from squall.reporting.outputs.live.metrics import MetricSource, Points
from squall.stats.snapshot import Snapshot


class MetricSender(Protocol):
    """One backend. Its calls come in this order: `open`, `send` each second, `close`."""

    wants_histograms: bool

    async def open(self, run: LiveRun) -> None:
        """Connects. It is called again after it raised."""

    async def send(self, points: Points) -> None:
        """Sends all metrics of one moment. A point that failed is not repeated."""
        ...

    async def close(self) -> None: ...


class MetricOutput(LiveReporter):
    """Turns snapshots and the document into metrics and gives them to a sender."""

    def __init__(self, sender: MetricSender) -> None:
        self.wants_histograms = sender.wants_histograms
        self._sender = sender
        self._source: MetricSource | None = None

    async def start(self, run: LiveRun) -> None:
        self._source = MetricSource(run)
        await self._sender.open(run)

    async def tick(self, snapshot: Snapshot) -> None:
        assert self._source is not None, "start comes first"
        await self._sender.send(self._source.of_snapshot(snapshot))

    async def end(self, document: dict[str, Any] | None) -> None:
        if document is not None and self._source is not None:
            await self._sender.send(self._source.of_document(document))
        await self._sender.close()
