"""`squall run`: one run, from the options to the exit code.

Stages: the options, a presenter (`presenters`), a source of snapshots (`perform` or a cluster),
the outputs, the exit code. Results go to stdout, progress to stderr. Mistakes about the output (a
file that cannot be written, an unknown column) are reported before the first request.
"""

from __future__ import annotations

import asyncio
import sys
from argparse import Namespace
from contextlib import nullcontext
from shutil import get_terminal_size
from typing import TYPE_CHECKING

from squall.api.errors import ExitCode, UsageError
from squall.cli.shared.live_feed import FeedingPresenter
from squall.cli.shared.presenters import Presenter, mode_of, presenter_of
from squall.cli.shared.run_options import run_options, seconds
from squall.engine.run.local_run import run_local
from squall.engine.run_options import RunOptions
from squall.reporting.outputs.delivery import (
    Output,
    deliver,
    parse_output,
    prepare,
    secrets_of,
)
from squall.reporting.outputs.live.feed import LiveFeed
from squall.reporting.outputs.registry import KINDS
from squall.reporting.redaction import Redactor
from squall.reporting.text.columns import columns_that_fit, parse_columns
from squall.reporting.text.progress_lines import ProgressLines
from squall.reporting.text.standard_streams import print_or_drop, wants_color

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from squall.cli.shared.web_page import WebPage
    from squall.engine.outcome import RunOutcome
    from squall.reporting.outputs.delivery import PreparedOutput

CLUSTER_FLAGS = (
    *("to", "store", "prefix", "key", "patience", "split", "dc", "dc_fallback"),
    *("on_agent_loss", "on_control_loss", "on_dc_loss"),
)
EXIT_ZERO_CODES = (ExitCode.INVALID, ExitCode.THRESHOLDS)
"""Exit codes that `--exit-zero` turns into 0: the run completed, but its judgement was bad."""


def execute(arguments: Namespace) -> int:
    if arguments.detach:
        from squall.cli.run.submit import submit

        return submit(arguments, as_json=False)
    options = run_options(arguments)
    columns = None if arguments.columns is None else parse_columns(arguments.columns)
    every_s = None if arguments.every is None else seconds(arguments.every, "--every")
    prepared = prepare(outputs_of(arguments))
    mode = mode_of(arguments.ui, quiet=arguments.quiet, once=options.once)
    redact = Redactor([*options.secrets.values(), *secrets_of(prepared)])
    lines = ProgressLines(
        redact, quiet=arguments.quiet, every_s=every_s, no_color=arguments.no_color
    )
    feed = LiveFeed(prepared, options, redact)
    presenter = presenter_of(mode, lines)
    page = _page_of(arguments, options)
    if page is not None:
        page.start()
        presenter = page.beside(presenter)
    presenter = FeedingPresenter(presenter, feed)
    with nullcontext() if page is None else page.closed_at_the_end():
        try:
            outcome = _source(arguments)(options, presenter)
        except BaseException:
            print_live_losses(feed)
            raise
        # Files are written first: a reader of stdout that has gone must not cost the results. A
        # full disk does not cost the summary, because `deliver` reports failures.
        complete = write_outputs(outcome, prepared, options, redact, feed)
        if mode != "none":
            print_summary(outcome, columns, redact, no_color=arguments.no_color)
        if page is not None:
            page.finish(outcome, redact)
    return exit_code(
        outcome,
        exit_zero=arguments.exit_zero,
        complete=complete or not arguments.require_outputs,
    )


def _page_of(arguments: Namespace, options: RunOptions) -> WebPage | None:
    if arguments.web is None:
        return None
    if options.once:
        raise UsageError("--once prints every exchange and has no page; leave out --web")
    from squall.cli.shared.web_page import web_page_of

    return web_page_of(arguments, options.file or options.url)


def outputs_of(arguments: Namespace) -> list[Output]:
    """The outputs of `--json F` and similar flags, then those of `-o kind=target` in order."""
    given = vars(arguments)
    flags = [(kind, given.get(kind.flag_name)) for kind in KINDS.values() if kind.flag]
    outputs = [Output(kind.name, target, kind.flag) for kind, target in flags if target is not None]
    for output in outputs:
        if not output.target:
            raise UsageError(f"{output.flag}: name a file")
    outputs += [parse_output(text) for text in given.get("output", ())]
    for output in outputs:
        kind = KINDS.get(output.kind)
        if kind is not None and kind.flag and output.target == "-":
            raise UsageError(f"{output.flag} -: name a file; /dev/stdout is one")
    return outputs


def _source(arguments: Namespace) -> Callable[[RunOptions, Presenter], RunOutcome]:
    """The function that runs it: on this machine, or with `--to` or `--store` on a cluster."""
    if not any(vars(arguments)[flag] for flag in CLUSTER_FLAGS):
        return perform
    from squall.cli.shared.cluster_run import destination_of, perform_remote
    from squall.cli.shared.split_run import perform_split, split_destination_of

    split = split_destination_of(arguments)
    if split is not None:
        return lambda options, presenter: perform_split(options, presenter, split)
    destination = destination_of(arguments)
    assert destination is not None, "without a cluster its flags are refused"
    return lambda options, presenter: perform_remote(options, presenter, destination)


def exit_code(outcome: RunOutcome, *, exit_zero: bool, complete: bool) -> int:
    """The exit code of the run; 1 if it passed but an output that was required failed."""
    code = 0 if exit_zero and outcome.exit_code in EXIT_ZERO_CODES else int(outcome.exit_code)
    return code if complete else code or int(ExitCode.INTERNAL)


def write_outputs(
    outcome: RunOutcome,
    prepared: Sequence[PreparedOutput],
    options: RunOptions,
    redact: Redactor,
    feed: LiveFeed,
    command: str = "run",
) -> bool:
    """Writes all outputs, including reporters of the author's file, and ends the live ones. False
    if any failed or a live one lost something."""
    failures: list[str] = []
    reporters = list(prepared)
    if feed.of_file is not None:
        reporters += feed.of_file[0]
        failures = feed.of_file[1]
    elif any(workflow.reporting for workflow in outcome.manifest.workflows):
        from squall.reporting.outputs.user_reporters import reporters_of_file

        own, failures = reporters_of_file(outcome.manifest, options)
        reporters += own
    if not reporters and not failures:
        return True
    from squall.reporting.document.build import build_document

    document = redact.document(build_document(outcome))
    feed.end(document)
    lines = deliver(document, reporters, failures)
    for line in lines:
        print(redact(f"squall {command}: {line}"), file=sys.stderr)
    return print_live_losses(feed, command) and not lines


def print_live_losses(feed: LiveFeed, command: str = "run") -> bool:
    """One line for each live output that lost something; True if none did."""
    lines = feed.wait()
    for line in lines:
        print(f"squall {command}: {line}", file=sys.stderr)
    return not lines


def perform(options: RunOptions, presenter: Presenter) -> RunOutcome:
    """Runs on this machine: calls the presenter as it goes and returns the outcome."""
    return asyncio.run(_performed(options, presenter))


async def _performed(options: RunOptions, presenter: Presenter) -> RunOutcome:
    try:
        return await run_local(
            options,
            on_run=presenter.on_run,
            on_manifest=presenter.on_manifest,
            on_controls=presenter.on_controls,
            on_snapshot=presenter.on_snapshot,
            on_log=presenter.on_log,
            on_exchange=presenter.on_exchange,
            on_interrupt=presenter.on_interrupt,
            histograms=lambda: presenter.wants_histograms,
        )
    finally:
        await presenter.close()


def print_summary(
    outcome: RunOutcome, columns: tuple[str, ...] | None, redact: Redactor, *, no_color: bool
) -> None:
    from squall.reporting.text.summary import render_summary

    color = wants_color(sys.stdout, no_color=no_color)
    if columns is None and sys.stdout.isatty():
        columns = columns_that_fit(get_terminal_size().columns)
    print_or_drop(redact(render_summary(outcome, columns=columns, color=color)))
