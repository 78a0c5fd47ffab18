"""`squall run`: one run from the options to the exit code.

Results go to stdout, progress to stderr. Whatever can be wrong with the output (a
file that cannot be written, an unknown column) is said before the first request.
"""

from __future__ import annotations

import asyncio
import sys
from argparse import Namespace
from shutil import get_terminal_size
from typing import TYPE_CHECKING

from squall.api.errors import ExitCode
from squall.cli.options import outputs_of, run_options, seconds
from squall.cli.streams import print_or_drop, wants_color
from squall.engine.local import run_local
from squall.engine.options import RunOptions
from squall.reporting.columns import columns_that_fit, parse_columns
from squall.reporting.reporter import deliver, prepare
from squall.reporting.secrets import Redactor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from squall.engine.outcome import RunOutcome
    from squall.reporting.lines import LiveLines
    from squall.reporting.reporter import Prepared
    from squall.stats.manifest import FileManifest
    from squall.stats.reports import ExchangeReport
    from squall.stats.snapshot import Snapshot

EXCUSED = (ExitCode.INVALID, ExitCode.THRESHOLDS)
"""What `--exit-zero` turns into 0: the run went to its end, its judgement was bad."""


def execute(arguments: Namespace) -> int:
    options = run_options(arguments)
    columns = None if arguments.columns is None else parse_columns(arguments.columns)
    every_s = None if arguments.every is None else seconds(arguments.every, "--every")
    prepared = prepare(outputs_of(arguments))
    progress = Progress(
        options, quiet=arguments.quiet, every_s=every_s, no_color=arguments.no_color
    )
    outcome = perform(options, progress)
    # The files first: a reader of stdout that has gone away must not cost the results. A
    # full disk does not cost the summary: delivering tells of failures, it never raises.
    complete = write_outputs(outcome, prepared, options, progress.redact)
    print_summary(outcome, columns, progress.redact, no_color=arguments.no_color)
    code = int(outcome.exit_code)
    if arguments.exit_zero and outcome.exit_code in EXCUSED:
        code = 0
    return code if complete else code or int(ExitCode.INTERNAL)


def write_outputs(
    outcome: RunOutcome, prepared: Sequence[Prepared], options: RunOptions, redact: Redactor
) -> bool:
    """Also to reporters in the author's file. False if any of them failed."""
    failures: list[str] = []
    reporters = list(prepared)
    if any(workflow.reporting for workflow in outcome.manifest.workflows):
        from squall.reporting.own import reporters_of_file

        own, failures = reporters_of_file(outcome.manifest, options)
        reporters += own
    if not reporters and not failures:
        return True
    from squall.reporting.document import build_document

    delivery = deliver(redact.document(build_document(outcome)), reporters, failures)
    for line in (*delivery.failures, *delivery.told):
        print(redact(f"squall run: {line}"), file=sys.stderr)
    return not delivery.failures


def perform(options: RunOptions, progress: Progress) -> RunOutcome:
    return asyncio.run(
        run_local(
            options,
            on_manifest=progress.on_manifest,
            on_snapshot=progress.on_snapshot,
            on_log=progress.on_log,
            on_exchange=progress.on_exchange,
            on_interrupt=progress.on_interrupt,
        )
    )


def print_summary(
    outcome: RunOutcome, columns: tuple[str, ...] | None, redact: Redactor, *, no_color: bool
) -> None:
    from squall.reporting.summary import render_summary

    color = wants_color(sys.stdout, no_color=no_color)
    if columns is None and sys.stdout.isatty():
        columns = columns_that_fit(get_terminal_size().columns)
    print_or_drop(redact(render_summary(outcome, columns=columns, color=color)))


class Progress:
    """Receives what the engine tells while it runs and prints it as lines."""

    def __init__(
        self,
        options: RunOptions,
        *,
        quiet: bool,
        every_s: float | None,
        no_color: bool,
        shown_path: str = "",
    ) -> None:
        """`shown_path` stands in all output for the path of the file."""
        self.redact = Redactor(options.secrets.values())
        self._quiet = quiet
        self._every_s = every_s
        self._color = wants_color(sys.stderr, no_color=no_color)
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
            self._color,
            processes=processes,
            redact=self.redact,
        )
        self._lines.start()

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
