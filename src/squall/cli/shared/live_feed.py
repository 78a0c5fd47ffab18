"""Hangs live outputs where a presenter gets its snapshots, the same place in every mode."""

from __future__ import annotations

from typing import TYPE_CHECKING

from squall.cli.shared.presenters import Presenter
from squall.reporting.outputs.live.feed import LiveFeed

if TYPE_CHECKING:
    from squall.engine.run_controls import RunControls
    from squall.stats.manifest import FileManifest
    from squall.stats.reports import ExchangeReport
    from squall.stats.snapshot import Snapshot


class FeedingPresenter:
    """Presents with another presenter and feeds live outputs with the same snapshots."""

    def __init__(self, presenter: Presenter, feed: LiveFeed) -> None:
        self.redact = presenter.redact
        self._presenter = presenter
        self._feed = feed

    @property
    def wants_histograms(self) -> bool:
        return self._presenter.wants_histograms or self._feed.wants_histograms

    def on_run(self, run: str) -> None:
        self._presenter.on_run(run)
        self._feed.on_run(run)

    def on_manifest(self, manifest: FileManifest, processes: int) -> None:
        self._presenter.on_manifest(manifest, processes)
        self._feed.on_manifest(manifest)

    def on_controls(self, controls: RunControls) -> None:
        self._presenter.on_controls(controls)

    def on_snapshot(self, snapshot: Snapshot) -> None:
        self._feed.on_snapshot(snapshot)
        self._presenter.on_snapshot(snapshot)

    def on_interrupt(self, times: int) -> None:
        self._presenter.on_interrupt(times)

    def on_log(self, prefix: str, line: str) -> None:
        self._presenter.on_log(prefix, line)

    def on_exchange(self, exchange: ExchangeReport) -> None:
        self._presenter.on_exchange(exchange)

    async def close(self) -> None:
        await self._presenter.close()
