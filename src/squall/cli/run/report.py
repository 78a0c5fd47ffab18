"""`squall report`: writes outputs from results documents, without a run.

One document is passed on as it is; several are merged first. Without any output flag, the summary
goes to stdout: the text that the run printed.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from os.path import isfile

from squall.api.errors import ExitCode
from squall.cli.run.command import outputs_of, print_live_losses, print_summary
from squall.engine.run_options import RunOptions
from squall.reporting.document.build import build_document
from squall.reporting.document.merge import differences, merge_outcomes
from squall.reporting.document.read import read_results
from squall.reporting.document.rebuild import rebuild_outcome
from squall.reporting.outputs.delivery import deliver, prepare, secrets_of
from squall.reporting.outputs.live.feed import LiveFeed
from squall.reporting.redaction import Redactor
from squall.reporting.text.columns import parse_columns


def execute(arguments: Namespace) -> int:
    columns = None if arguments.columns is None else parse_columns(arguments.columns)
    prepared = prepare(outputs_of(arguments))
    read = [read_results(path) for path in arguments.files]
    parts = [rebuild_outcome(each.results) for each in read]
    outcome = merge_outcomes(parts)
    if not prepared:
        print_summary(outcome, columns, Redactor(), no_color=arguments.no_color)
        return int(ExitCode.PASSED)
    for line in differences(parts):
        print(f"squall report: {line}", file=sys.stderr)
    redact = Redactor(secrets_of(prepared))
    document = read[0].document if len(read) == 1 else build_document(outcome)
    feed = LiveFeed(prepared, RunOptions(tags=outcome.info.tags), redact, uses_file=False)
    # A live output gets the totals alone.
    feed.on_run(outcome.info.id)
    feed.on_manifest(outcome.manifest)
    feed.end(document)
    # A merged document exists nowhere yet; neither does one that came through a pipe.
    [first, *more] = arguments.files
    lines = deliver(document, prepared, saved="" if more or not isfile(first) else first)
    for line in lines:
        print(redact(f"squall report: {line}"), file=sys.stderr)
    # Unlike in a run, the totals are all that a live output was asked for.
    is_complete = print_live_losses(feed, "report") and not lines
    return int(ExitCode.PASSED if is_complete else ExitCode.INTERNAL)
