"""Presenters show a run while it goes on: as lines, on the live screen, or not at all.

A presenter receives the callbacks of a source of snapshots (`run_local`, or a job of a cluster)
and may be given controls. It never changes the run's result: if presenting fails, it reports that
in one line and the run goes on.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Literal, Protocol, TextIO

from squall.api.errors import UsageError
from squall.reporting.redaction import Redactor
from squall.reporting.text.progress_lines import ProgressLines, print_warnings

if TYPE_CHECKING:
    from squall.engine.run_controls import RunControls
    from squall.stats.manifest import FileManifest
    from squall.stats.reports import ExchangeReport
    from squall.stats.snapshot import Snapshot

Mode = Literal["full", "ci", "none"]
MODES: tuple[Mode, ...] = ("full", "ci", "none")


class Presenter(Protocol):
    """Shows one run. Called in this order: run, manifest, controls, everything else,
    `close`."""

    redact: Redactor

    @property
    def wants_histograms(self) -> bool:
        """Whether snapshots must have the histograms of all rows; asked when the load begins."""
        ...

    def on_run(self, run: str) -> None:
        """The id of the run, or of the job on a cluster."""
        ...

    def on_manifest(self, manifest: FileManifest, processes: int) -> None: ...

    def on_controls(self, controls: RunControls) -> None: ...

    def on_snapshot(self, snapshot: Snapshot) -> None: ...

    def on_interrupt(self, times: int) -> None: ...

    def on_log(self, prefix: str, line: str) -> None: ...

    def on_exchange(self, exchange: ExchangeReport) -> None: ...

    async def close(self) -> None:
        """The run has ended: restore the terminal."""
        ...


def mode_of(wanted: str | None, *, quiet: bool, once: bool) -> Mode:
    """`full` needs a terminal for input and output; as a default it also needs that CI is not
    set."""
    if wanted is not None and wanted not in MODES:
        raise UsageError(f"--ui {wanted}: write full, ci or none")
    if wanted == "none":
        return "none"
    if wanted == "ci" or quiet or once or not _is_interactive():
        return "ci"
    return "full" if wanted == "full" or not os.environ.get("CI") else "ci"


def presenter_of(mode: Mode, lines: ProgressLines) -> Presenter:
    if mode == "none":
        return SilentPresenter(lines.redact)
    if mode == "ci":
        return lines
    from squall.cli.shared.live_screen import LiveScreen

    return LiveScreen(lines)


class SilentPresenter:
    """Shows nothing but warnings: files and the exit code are the result."""

    wants_histograms = False

    def __init__(self, redact: Redactor) -> None:
        self.redact = redact

    def on_run(self, run: str) -> None: ...

    def on_manifest(self, manifest: FileManifest, processes: int) -> None:
        print_warnings(manifest, self.redact)

    def on_controls(self, controls: RunControls) -> None: ...

    def on_snapshot(self, snapshot: Snapshot) -> None: ...

    def on_interrupt(self, times: int) -> None: ...

    def on_log(self, prefix: str, line: str) -> None: ...

    def on_exchange(self, exchange: ExchangeReport) -> None: ...

    async def close(self) -> None: ...


def is_utf8(stream: TextIO) -> bool:
    """Whether the terminal shows UTF-8. Python writes it under the C locale too, so the locale's
    variables decide."""
    encoding = (getattr(stream, "encoding", "") or "").lower().replace("-", "").replace("_", "")
    named = next(filter(None, map(os.environ.get, ("LC_ALL", "LC_CTYPE", "LANG"))), "")
    says_utf8 = not named or "utf" in named.lower()
    # The font of the Linux console has no braille.
    return encoding == "utf8" and says_utf8 and os.environ.get("TERM") != "linux"


def _is_interactive() -> bool:
    if os.environ.get("TERM", "dumb") in ("dumb", ""):
        return False
    return sys.stderr.isatty() and sys.stdin is not None and sys.stdin.isatty()
