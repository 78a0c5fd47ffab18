"""`squall report`: outputs from results documents, without a run.

One document is handed on as it is; several become one first. Where no output is asked
for, the summary goes to stdout, the same text that the run printed.
"""

from __future__ import annotations

import sys
from argparse import Namespace

from squall.api.errors import ExitCode
from squall.cli.options import outputs_of
from squall.cli.run import print_summary
from squall.reporting.columns import parse_columns
from squall.reporting.document import build_document
from squall.reporting.merging import differences, merge_outcomes
from squall.reporting.reading import read_results
from squall.reporting.rebuilding import rebuild_outcome
from squall.reporting.reporter import deliver, prepare
from squall.reporting.secrets import Redactor


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
    document = read[0].document if len(read) == 1 else build_document(outcome)
    delivery = deliver(document, prepared)
    for line in (*delivery.failures, *delivery.told):
        print(f"squall report: {line}", file=sys.stderr)
    return int(ExitCode.INTERNAL if delivery.failures else ExitCode.PASSED)
