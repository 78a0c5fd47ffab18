"""Flags that several commands share. Nothing here may import more than argparse needs."""

from __future__ import annotations

import argparse

from squall.cli.shared.parser import Group, Parser


def add_json(parser: Parser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout")


def add_no_color(parser: Parser | Group) -> None:
    parser.add_argument("--no-color", action="store_true", help="or set NO_COLOR")


def add_web(parser: Parser | Group) -> None:
    parser.add_argument(
        "--web",
        nargs="?",
        const="",
        metavar="[HOST:]PORT",
        help="also show it on a web page with controls; default 127.0.0.1 and a free port",
    )


def add_node_web(parser: Parser) -> None:
    parser.add_argument(
        "--web",
        nargs="?",
        const="",
        metavar="[HOST:]PORT",
        help="also serve the page of squall web; default 127.0.0.1 and port 8650, or a free one. "
        "Its address with the token is in the file web/address of the data directory",
    )


def add_require_outputs(parser: Parser | Group) -> None:
    parser.add_argument(
        "--require-outputs",
        action="store_true",
        help="exit 1 if the run passed but an output failed, or a live one lost something",
    )


def add_timers(parser: Parser) -> None:
    """For tests: shorter timers than a real network wants."""
    parser.add_argument("--timers", choices=("lan", "wan", "fast"), help=argparse.SUPPRESS)


def add_launcher(parser: Parser) -> None:
    parser.add_argument(
        "--no-launcher",
        action="store_true",
        help="run in one process; after kill -9 it is not started again",
    )


def add_drain_timeout(parser: Parser) -> None:
    parser.add_argument(
        "--drain-timeout",
        metavar="TIME",
        help="how long running shares may go on if no other worker takes them over, default 30s",
    )


# What a run does.


def add_plan(parser: Parser) -> None:
    """What to run, and how much of it."""
    parser.add_argument("what", metavar="FILE|URL", help="a workflow file, or http(s)://...")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="NAME",
        help="run these workflows and those they depend on (repeatable)",
    )
    parser.add_argument(
        "--skip", action="append", default=[], metavar="NAME", help="leave these out (repeatable)"
    )
    load = parser.add_argument_group(
        "load",
        "Replaces the load model of the file. With several workflows: -u Shop=100 -u Browse=20.",
    )

    def repeatable(*flags: str, metavar: str, text: str, dest: str) -> None:
        load.add_argument(
            *flags, action="append", default=[], metavar=metavar, help=text, dest=dest
        )

    repeatable("-u", "--vus", "--users", metavar="N", text="virtual users", dest="vus")
    repeatable("-d", "--duration", metavar="TIME", text="90, 30s, 1h30m", dest="duration")
    repeatable(
        "-i",
        "--iterations",
        metavar="N",
        text="iterations in total, shared by all users: 500, 10k; 10/vu: by each user",
        dest="iterations",
    )
    repeatable(
        "-r", "--rate", metavar="RATE", text="open model: iterations started, 500/s", dest="rate"
    )
    repeatable(
        "-s", "--stage", metavar="TIME:N", text="ramp: 30s:100 or 1m:50/s, in order", dest="stage"
    )
    load.add_argument("--workers", metavar="N", help="processes, default one per core")
    load.add_argument("--seed", metavar="N", help="seed of random choices, default 0")


def add_target(parser: Parser) -> None:
    target = parser.add_argument_group("target")
    add_environment(target)
    add_connection(target)
    target.add_argument(
        "--traceparent", action="store_true", help="give each request a trace (W3C Trace Context)"
    )
    add_request(parser)


def add_request(parser: Parser) -> None:
    """The request of a run of one URL, with the names that curl has."""
    group = parser.add_argument_group("request", "Of a URL; a workflow file has its own.")
    group.add_argument("-X", "--method", metavar="METHOD", help="default GET; POST with a body")
    group.add_argument(
        "-H",
        "--header",
        action="append",
        default=[],
        metavar="'NAME: VALUE'",
        help="send this header (repeatable)",
    )
    body = group.add_mutually_exclusive_group()
    body.add_argument("--data", metavar="TEXT|@FILE", help="send this body, as a form")
    body.add_argument("--json-body", metavar="JSON|@FILE", help="send this body, as JSON")


def add_environment(group: Group) -> None:
    group.add_argument("--host", default="", metavar="URL", help="for URLs that begin with /")
    group.add_argument(
        "-e",
        "--env",
        action="append",
        default=[],
        metavar="K=V",
        help="environment variable of the workflow file (repeatable)",
    )
    group.add_argument(
        "--secret",
        action="append",
        default=[],
        metavar="K[=V]",
        help="like -e, but never shown; without =V the value comes from the environment",
    )


def add_connection(group: Parser | Group) -> None:
    group.add_argument(
        "--resolve",
        action="append",
        default=[],
        metavar="HOST:PORT:ADDR",
        help="connect to ADDR for HOST:PORT (repeatable)",
    )
    group.add_argument("--insecure", action="store_true", help="do not verify certificates")
    group.add_argument(
        "--http2", action="store_true", help="speak HTTP/2 with servers that choose it"
    )
    group.add_argument("--cacert", default="", metavar="FILE", help="trust this certificate")
    group.add_argument(
        "--cert", default="", metavar="FILE", help="show this certificate (PEM, with its key)"
    )
    group.add_argument(
        "--cert-key", default="", metavar="FILE", help="its private key, if in a file of its own"
    )
    group.add_argument(
        "--proxy", default="", metavar="URL", help="send all requests through http://host:port"
    )


def add_judgement(parser: Parser) -> Group:
    judge = parser.add_argument_group("judgement")
    judge.add_argument(
        "--threshold",
        action="append",
        default=[],
        metavar="EXPR",
        help='fail the run unless it holds: "pay.p(99) < 800ms", "errors < 1%%" (repeatable)',
    )
    judge.add_argument("--warmup", metavar="TIME", help="leave the first TIME out of the summary")
    judge.add_argument("--timeout", metavar="TIME", help="end a run that is not over after TIME")
    return judge


def add_tags(parser: Parser | Group) -> None:
    parser.add_argument(
        "--tag",
        action="append",
        default=[],
        metavar="K=V",
        help="a label in the results document (repeatable)",
    )


# Where the cluster is.


def add_access(parser: Parser, *, to: bool = True, store: bool = True) -> Group:
    group = parser.add_argument_group("cluster")
    if to:
        group.add_argument(
            "--to",
            metavar="HOST:PORT[,...]",
            help="the managers, also dns:NAME:PORT or srv:NAME; or dev: the squall dev of this "
            "machine; SQUALL_TO does the same, except for run",
        )
    if to and store:
        add_store(group, "where the agents meet; SQUALL_STORE does the same, except for run")
    group.add_argument(
        "--secret-file",
        metavar="FILE",
        help="the cluster's secret or a credential; or SQUALL_SECRET_FILE",
    )
    group.add_argument("--cluster", metavar="NAME", help="the cluster's id; or SQUALL_CLUSTER_ID")
    return group


def add_store(group: Group, text: str) -> None:
    group.add_argument("--store", metavar="URL", help=f"redis://, s3://, sqlite:///file: {text}")
    group.add_argument("--prefix", metavar="NAME", help="prefix of all keys, default squall")


def add_control_loss(group: Group) -> None:
    group.add_argument(
        "--on-control-loss",
        choices=("stop", "continue"),
        help="when no manager answers: stop (default) ends the load with its lease, continue runs "
        "on and may overlap with a replacement",
    )


def add_agent_loss(group: Group) -> None:
    group.add_argument(
        "--on-agent-loss",
        choices=("replan", "continue"),
        help="when a machine is lost: replan (default) moves its load, continue drops it",
    )
