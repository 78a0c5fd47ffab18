"""Who tells a person how a run goes: lines, the screen, or nobody.

A presenter hears what a source of snapshots tells (`run_local`, or a job of a cluster) and
may be handed `Controls`. It never changes the run's result: whatever goes wrong while it
presents is told in one line, and the run goes on.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, Protocol, TextIO

from squall.api.errors import UsageError
from squall.cli.streams import print_or_drop, wants_color
from squall.reporting.secrets import Redactor

if TYPE_CHECKING:
    from squall.reporting.lines import LiveLines
    from squall.stats.manifest import FileManifest
    from squall.stats.reports import ExchangeReport
    from squall.stats.snapshot import Snapshot

Mode = Literal["full", "ci", "none"]
MODES: tuple[Mode, ...] = ("full", "ci", "none")

Interrupt = Callable[[bool], None]
"""Stops the run: gracefully, or with True at once."""


class Presenter(Protocol):
    """In this order: manifest, controls, snapshots and all the rest, the end."""

    redact: Redactor

    def on_manifest(self, manifest: FileManifest, processes: int) -> None: ...

    def on_controls(self, interrupt: Interrupt) -> None: ...

    def on_snapshot(self, snapshot: Snapshot) -> None: ...

    def on_interrupt(self, times: int) -> None: ...

    def on_log(self, prefix: str, line: str) -> None: ...

    def on_exchange(self, exchange: ExchangeReport) -> None: ...

    async def close(self) -> None:
        """The run has ended: give the terminal back."""
        ...


def mode_of(wanted: str | None, *, quiet: bool, once: bool) -> Mode:
    """`full` needs a terminal on both sides; without a wish it also needs a person there."""
    if wanted is not None and wanted not in MODES:
        raise UsageError(f"--ui {wanted}: write full, ci or none")
    if wanted == "none":
        return "none"
    if wanted == "ci" or quiet or once or not _is_interactive():
        return "ci"
    return "full" if wanted == "full" or not os.environ.get("CI") else "ci"


def presenter_of(mode: Mode, lines: Lines) -> Presenter:
    if mode == "none":
        return Nothing(lines.redact)
    if mode == "ci":
        return lines
    from squall.cli.screen import Screen

    return Screen(lines)


class Lines:
    """Receives what a source tells while it runs and prints it as lines."""

    def __init__(
        self,
        redact: Redactor,
        *,
        quiet: bool = False,
        every_s: float | None = None,
        no_color: bool = False,
        shown_path: str = "",
    ) -> None:
        """`shown_path` stands in all output for the path of the file."""
        self.redact = redact
        self.color = wants_color(sys.stderr, no_color=no_color)
        self._quiet = quiet
        self._every_s = every_s
        self._shown_path = shown_path
        self._lines: LiveLines | None = None

    def on_manifest(self, manifest: FileManifest, processes: int) -> None:
        manifest.path = self._shown_path or manifest.path
        if self._quiet:
            return
        # Imported here: by now the core processes run, and nobody waits for us.
        from squall.reporting.lines import LiveLines

        self._lines = LiveLines(
            manifest,
            sys.stderr,
            self._every_s,
            self.color,
            processes=processes,
            redact=self.redact,
        )
        self._lines.start()

    def on_controls(self, interrupt: Interrupt) -> None:
        """A person stops lines with Ctrl-C, which the source hears itself."""

    def on_snapshot(self, snapshot: Snapshot) -> None:
        if self._lines is not None:
            self._lines.feed(snapshot)

    def on_interrupt(self, times: int) -> None:
        if self._lines is not None:
            self._lines.interrupted(times)

    def on_log(self, prefix: str, line: str) -> None:
        """`prefix` names the user, `[Shop 17]`, where one can be told."""
        text = f"{prefix} {line}" if prefix else line
        print(self.redact(text), file=sys.stderr, flush=True)

    def on_exchange(self, exchange: ExchangeReport) -> None:
        from squall.reporting.exchange import render_exchange

        print_or_drop(self.redact(render_exchange(exchange)))

    async def close(self) -> None:
        """Lines leave nothing behind."""


class Nothing:
    """Says nothing at all: files and the exit code are the result."""

    def __init__(self, redact: Redactor) -> None:
        self.redact = redact

    def on_manifest(self, manifest: FileManifest, processes: int) -> None: ...

    def on_controls(self, interrupt: Interrupt) -> None: ...

    def on_snapshot(self, snapshot: Snapshot) -> None: ...

    def on_interrupt(self, times: int) -> None: ...

    def on_log(self, prefix: str, line: str) -> None: ...

    def on_exchange(self, exchange: ExchangeReport) -> None: ...

    async def close(self) -> None: ...


def is_utf8(stream: TextIO) -> bool:
    """Python writes UTF-8 also where the locale says C; the terminal may then know better."""
    encoding = (getattr(stream, "encoding", "") or "").lower().replace("-", "").replace("_", "")
    named = next(filter(None, map(os.environ.get, ("LC_ALL", "LC_CTYPE", "LANG"))), "")
    says_utf8 = not named or "utf" in named.lower()
    # The console of Linux has no braille in its font.
    return encoding == "utf8" and says_utf8 and os.environ.get("TERM") != "linux"


def _is_interactive() -> bool:
    if os.environ.get("TERM", "dumb") in ("dumb", ""):
        return False
    return sys.stderr.isatty() and sys.stdin is not None and sys.stdin.isatty()
