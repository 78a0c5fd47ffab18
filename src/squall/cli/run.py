"""`squall run`: one run from the options to the exit code.

Stages: the options, a presenter (`presenting.py`), a source of snapshots (`perform`), the
outputs, the exit code. Results go to stdout, progress to stderr. Whatever can be wrong with
the output (a file that cannot be written, an unknown column) is said before the first
request.
"""

from __future__ import annotations

import asyncio
import sys
from argparse import Namespace
from shutil import get_terminal_size
from typing import TYPE_CHECKING

from squall.api.errors import ExitCode
from squall.cli.options import outputs_of, run_options, seconds
from squall.cli.presenting import Lines, Presenter, mode_of, presenter_of
from squall.cli.streams import print_or_drop, wants_color
from squall.engine.local import run_local
from squall.engine.options import RunOptions
from squall.reporting.columns import columns_that_fit, parse_columns
from squall.reporting.reporter import deliver, prepare
from squall.reporting.secrets import Redactor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from squall.engine.outcome import RunOutcome
    from squall.reporting.reporter import Prepared

CLUSTER_FLAGS = ("to", "store", "prefix", "key", "patience", "on_agent_loss")
EXCUSED = (ExitCode.INVALID, ExitCode.THRESHOLDS)
"""What `--exit-zero` turns into 0: the run went to its end, its judgement was bad."""


def execute(arguments: Namespace) -> int:
    if arguments.detach:
        from squall.cli.submit import submit

        return submit(arguments, as_json=False)
    options = run_options(arguments)
    columns = None if arguments.columns is None else parse_columns(arguments.columns)
    every_s = None if arguments.every is None else seconds(arguments.every, "--every")
    prepared = prepare(outputs_of(arguments))
    mode = mode_of(arguments.ui, quiet=arguments.quiet, once=options.once)
    redact = Redactor(options.secrets.values())
    lines = Lines(redact, quiet=arguments.quiet, every_s=every_s, no_color=arguments.no_color)
    outcome = _source(arguments)(options, presenter_of(mode, lines))
    # The files first: a reader of stdout that has gone away must not cost the results. A
    # full disk does not cost the summary: delivering tells of failures, it never raises.
    complete = write_outputs(outcome, prepared, options, redact)
    if mode != "none":
        print_summary(outcome, columns, redact, no_color=arguments.no_color)
    return exit_code(outcome, excuse=arguments.exit_zero, complete=complete)


def _source(arguments: Namespace) -> Callable[[RunOptions, Presenter], RunOutcome]:
    """Who runs it: this machine, or with `--to` or `--store` a cluster."""
    if not any(vars(arguments)[flag] for flag in CLUSTER_FLAGS):
        return perform
    from squall.cli.remote import destination_of, perform_remote

    destination = destination_of(arguments)
    assert destination is not None, "without a cluster its flags are refused"
    return lambda options, presenter: perform_remote(options, presenter, destination)


def exit_code(outcome: RunOutcome, *, excuse: bool, complete: bool) -> int:
    """Of the run; a run that passed and whose files could not all be written did not."""
    code = 0 if excuse and outcome.exit_code in EXCUSED else int(outcome.exit_code)
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


def perform(options: RunOptions, presenter: Presenter) -> RunOutcome:
    """On this machine. A source of snapshots calls the presenter and returns the outcome."""
    return asyncio.run(_performed(options, presenter))


async def _performed(options: RunOptions, presenter: Presenter) -> RunOutcome:
    try:
        return await run_local(
            options,
            on_manifest=presenter.on_manifest,
            on_controls=presenter.on_controls,
            on_snapshot=presenter.on_snapshot,
            on_log=presenter.on_log,
            on_exchange=presenter.on_exchange,
            on_interrupt=presenter.on_interrupt,
        )
    finally:
        await presenter.close()


def print_summary(
    outcome: RunOutcome, columns: tuple[str, ...] | None, redact: Redactor, *, no_color: bool
) -> None:
    from squall.reporting.summary import render_summary

    color = wants_color(sys.stdout, no_color=no_color)
    if columns is None and sys.stdout.isatty():
        columns = columns_that_fit(get_terminal_size().columns)
    print_or_drop(redact(render_summary(outcome, columns=columns, color=color)))
