"""Presents a run as lines: progress and what steps print on stderr, exchanges on stdout."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from squall.reporting.redaction import Redactor
from squall.reporting.text.standard_streams import print_or_drop, wants_color

if TYPE_CHECKING:
    from squall.engine.run_controls import RunControls
    from squall.reporting.text.live_lines import LiveLines
    from squall.stats.manifest import FileManifest
    from squall.stats.reports import ExchangeReport
    from squall.stats.snapshot import Snapshot


def print_warnings(manifest: FileManifest, redact: Redactor) -> None:
    """Prints what is odd about the file on stderr. Every presenter does: a misspelt attribute
    must not pass because nobody looks at the progress."""
    for text in manifest.all_warnings:
        sys.stderr.write(redact(f"warning: {text}") + "\n")
    sys.stderr.flush()


class ProgressLines:
    """A presenter that prints lines instead of a screen."""

    wants_histograms = False

    def __init__(
        self,
        redact: Redactor,
        *,
        quiet: bool = False,
        every_s: float | None = None,
        no_color: bool = False,
        shown_path: str = "",
    ) -> None:
        """`shown_path` replaces the path of the file in all output."""
        self.redact = redact
        self.color = wants_color(sys.stderr, no_color=no_color)
        self._quiet = quiet
        self._every_s = every_s
        self._shown_path = shown_path
        self._lines: LiveLines | None = None

    def on_run(self, run: str) -> None:
        """Ignored: the summary names the run."""

    def on_manifest(self, manifest: FileManifest, processes: int) -> None:
        manifest.path = self._shown_path or manifest.path
        if self._quiet:
            print_warnings(manifest, self.redact)
            return
        # Imported here: the core processes already run, so nothing waits for it.
        from squall.reporting.text.live_lines import LiveLines

        self._lines = LiveLines(
            manifest,
            sys.stderr,
            self._every_s,
            self.color,
            processes=processes,
            redact=self.redact,
        )
        self._lines.start()

    def on_controls(self, controls: RunControls) -> None:
        """Ignored: without a screen the user stops a run with Ctrl-C, which the source handles."""

    def on_snapshot(self, snapshot: Snapshot) -> None:
        if self._lines is not None:
            self._lines.feed(snapshot)

    def on_interrupt(self, times: int) -> None:
        if self._lines is not None:
            self._lines.interrupted(times)

    def on_log(self, prefix: str, line: str) -> None:
        """`prefix` names the virtual user, `[Shop 17]`, if it is known."""
        text = f"{prefix} {line}" if prefix else line
        sys.stderr.write(f"{self.redact(text)}\n")
        sys.stderr.flush()

    def on_exchange(self, exchange: ExchangeReport) -> None:
        from squall.reporting.text.exchange import render_exchange

        print_or_drop(self.redact(render_exchange(exchange)))

    async def close(self) -> None:
        """Lines need no cleanup."""
