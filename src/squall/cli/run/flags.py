"""Flags of the commands that make or read a result."""

from __future__ import annotations

import argparse

from squall.cli.shared.flags import (
    add_access,
    add_agent_loss,
    add_connection,
    add_control_loss,
    add_environment,
    add_judgement,
    add_no_color,
    add_plan,
    add_request,
    add_require_outputs,
    add_tags,
    add_target,
    add_web,
)
from squall.cli.shared.parser import EXIT_CODES, Flags, Group, Parser


def _add_run(parser: Parser) -> None:
    parser.epilog = EXIT_CODES
    add_plan(parser)
    add_target(parser)
    judge = add_judgement(parser)
    judge.add_argument(
        "--exit-zero",
        action="store_true",
        help="exit 0 even if a threshold failed (99) or the result is invalid (98)",
    )
    output = parser.add_argument_group("output")
    output.add_argument(
        "--once", action="store_true", help="one user, one iteration; shows every exchange"
    )
    _add_outputs(output)
    output.add_argument(
        "--out-file", metavar="FILE", help="JSON lines: one for each second, while the run goes on"
    )
    add_require_outputs(output)
    _add_columns(output)
    output.add_argument("--every", metavar="TIME", help="between progress lines, default 10s")
    add_tags(output)
    output.add_argument("-q", "--quiet", action="store_true", help="no progress lines")
    output.add_argument(
        "--ui",
        metavar="MODE",
        help="full: live screen; ci: lines; none: no output; "
        "default: full in a terminal, ci elsewhere and where CI is set",
    )
    add_web(output)
    add_no_color(output)
    output.add_argument("--headless", action="store_true", help=argparse.SUPPRESS)
    _add_destination(parser)


def _add_submit(parser: Parser) -> None:
    """Flags of `run`, except those for live output."""
    add_plan(parser)
    add_target(parser)
    add_judgement(parser)
    add_tags(parser)
    # `as_json`: the flag of `run` with this name takes a file.
    parser.add_argument(
        "--json", action="store_true", dest="as_json", help="print one JSON document on stdout"
    )
    _add_destination(parser)


def _add_explain(parser: Parser) -> None:
    add_plan(parser)
    add_environment(parser.add_argument_group("target"))
    add_request(parser)
    parser.add_argument(
        "--threshold", action="append", default=[], metavar="EXPR", help="check it (repeatable)"
    )
    group = parser.add_argument_group("store mode")
    group.add_argument("--store", metavar="URL", help="estimate the requests to this store")
    group.add_argument("--agents", metavar="N", help="agents to assume with --store, default 3")


def _add_ping(parser: Parser) -> None:
    parser.add_argument("url", metavar="URL")
    parser.add_argument(
        "--timeout", default="10s", metavar="TIME", help="wait at most so long, default 10s"
    )
    add_connection(parser)


def _add_report(parser: Parser) -> None:
    parser.add_argument(
        "files",
        nargs="+",
        metavar="RESULTS",
        help="results documents of squall run --json; several are merged",
    )
    _add_outputs(parser.add_argument_group("output", "Without any, the summary is printed."))
    _add_columns(parser)
    add_no_color(parser)


def _add_compare(parser: Parser) -> None:
    parser.usage = "squall compare [-h] [options] BEFORE [BEFORE ...] -- AFTER [AFTER ...]"
    parser.add_argument(
        "files", nargs="*", metavar="RESULTS", help="results documents of squall run --json"
    )
    parser.add_argument(
        "--min-change",
        default="5%",
        metavar="PERCENT",
        help="ignore smaller changes, default 5%%",
    )
    parser.add_argument("--fail-on-worse", action="store_true", help="exit 99 if anything is worse")
    parser.add_argument(
        "--force", action="store_true", help="also compare different profiles and INVALID runs"
    )
    parser.add_argument("--markdown", metavar="FILE", help="also write the comparison as a table")
    add_no_color(parser)


def _add_outputs(group: Group) -> None:
    group.add_argument("--json", metavar="FILE", help="the results document, with histograms")
    group.add_argument("--html", metavar="FILE", help="a report in one page that opens offline")
    group.add_argument(
        "--markdown", metavar="FILE", help="a report; in CI also added to the step summary"
    )
    group.add_argument("--junit", metavar="FILE", help="thresholds as test cases")
    group.add_argument("--csv", metavar="PREFIX", help="PREFIX_steps.csv, _windows, _errors")
    group.add_argument("--xml", metavar="FILE", help="counts and times without histograms")
    group.add_argument(
        "-o",
        "--output",
        action="append",
        default=[],
        metavar="KIND=TARGET",
        help="any of these, live numbers (prometheus, otlp, influx, statsd ...), or a reporter of "
        "your own: file.py:Class=target (repeatable); docs/outputs.md lists all",
    )


def _add_columns(parser: Parser | Group) -> None:
    parser.add_argument("--columns", metavar="LIST", help="columns of the step table: p50,p99,max")


def _add_destination(parser: Parser) -> None:
    """Where a run goes."""
    group = add_access(parser)
    group.add_argument(
        "--split",
        metavar="DC=PART,...",
        help="with --to eu=HOST:PORT,us=HOST:PORT: the datacenters' parts of the load, "
        "eu=60%%,us=40%%; default: equal parts",
    )
    group.add_argument(
        "--dc",
        metavar="DC=PART,...",
        help="with --to GATE: the datacenters and their parts, eu=60%%,us=40%%; eu,us for equal "
        "parts; any:2 for two that the gate chooses",
    )
    group.add_argument(
        "--dc-fallback",
        nargs="?",
        const="any",
        metavar="DC,...",
        help="move a part that its datacenter cannot run to one of these, or to any other",
    )
    group.add_argument(
        "--on-dc-loss",
        choices=("wait", "drop"),
        help="if the gates lose a datacenter in the run: wait for it (default), or drop its part",
    )
    group.add_argument(
        "--direct",
        action="store_true",
        help="bypass the gates: submit to one datacenter itself, if no gate is alive",
    )
    group.add_argument("--key", metavar="KEY", help="submit once: the same key gives the same job")
    group.add_argument(
        "--patience", metavar="TIME", help="how long to wait for lost managers, default 60s"
    )
    add_agent_loss(group)
    add_control_loss(group)
    group.add_argument("--detach", action="store_true", help="print the job's id and exit")


FLAGS: dict[str, Flags] = {
    "run": _add_run,
    "submit": _add_submit,
    "explain": _add_explain,
    "ping": _add_ping,
    "report": _add_report,
    "compare": _add_compare,
}
