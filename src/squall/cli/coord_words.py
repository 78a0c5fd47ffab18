"""The words of `squall coord`. Only parsing: nothing here may import more than argparse needs,
because every command reads it first.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

COMMANDS = {"coord": "squall.cli.coord"}

_EXIT_CODES = """\
exit codes:
    0  done; a cleanup that runs elsewhere already counts as done
    1  some members could not be cleaned up; the doctor found something bad; nobody leads;
       a signal was not acknowledged, or none came in time
    2  usage: the command line is wrong
    3  the store does not answer
  104  bad configuration: the address, the secret, a store that cannot be used
"""


def add_coord(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EXIT_CODES
    make = parser.add_subparsers(
        dest="coord_command", metavar="COMMAND", required=True, parser_class=type(parser)
    ).add_parser
    status = make("status", help="who leads, how many members and keys, the last cleanup")
    members = make("members", help="every member, its last heartbeat and its health")
    _add_looks(make)
    elect = make("elect", help="name the coordinator; with --force change it")
    _add_elect(elect)
    cleanup = make("cleanup", help="remove what members left that were not heard of for long")
    _add_cleanup(cleanup)
    _add_queue(make("queue", help="queues, their tickets and dead letters"), type(parser))
    for command in (status, members, elect, cleanup):
        _add_place(command)
    _add_member(elect)
    _add_schedule(make("schedule", help="jobs, their next due times and last runs"), type(parser))
    signal = make("signal", help="speak to a member")
    signals = signal.add_subparsers(
        dest="signal_command", metavar="COMMAND", required=True, parser_class=type(parser)
    ).add_parser
    _add_send(signals("send", help="put a signal into the inbox of a member"))
    _add_wait(make("wait", help="wait for a signal, as a member that never leads"))
    _add_cost(make("cost", help="requests of a group, and what S3 takes for them"))
    secret = make("secret", help="make a secret to sign with")
    secrets = secret.add_subparsers(
        dest="secret_command", metavar="COMMAND", required=True, parser_class=type(parser)
    ).add_parser
    secrets("generate", help="256 random bits as 64 hex characters")
    _add_rotate(secrets("rotate", help="change the secret while everything runs"), type(parser))
    doctor = make("doctor", help="look everything over: what is wrong and what to do")
    doctor.add_argument(
        "--production", action="store_true", help="ask for what only a real service needs"
    )
    doctor.add_argument(
        "--queue", action="append", default=[], metavar="QUEUE", help="look for stuck tickets"
    )
    doctor.add_argument(
        "--rules", metavar="FILE", help="with --production: the alert rules that are loaded"
    )
    doctor.add_argument(
        "--dashboard", metavar="FILE", help="with --production: the JSON of the dashboard"
    )
    doctor.add_argument("--profile", metavar="NAME", help="of the members; default: by store")
    _add_source(doctor)
    install = make("install", help="write the files that run the cleanup every five minutes")
    _add_install(install)
    for command in (doctor, install):
        _add_place(command)


def _add_looks(make: Callable[..., argparse.ArgumentParser]) -> None:
    """Commands that only read."""
    leader = make("leader", help="who leads, since when, and who comes next")
    epoch = make("epoch", help="the present epoch, and which ones members have seen")
    signals = make("signals", help="inboxes: unread and refused signals, open waits")
    signals.add_argument("member", nargs="?", metavar="MEMBER", help="each signal of this one")
    events = make("events", help="what the store remembers of elections, members and deaths")
    events.add_argument("--follow", action="store_true", help="and what happens from now on")
    events.add_argument("--last", default="50", metavar="N", help="so many of the past, default 50")
    events.add_argument("--every", metavar="SECONDS", help="between two looks; default 1, on S3 10")
    events.add_argument("--for", dest="lasts", metavar="SECONDS", help="then --follow ends")
    for command in (leader, epoch, signals, events):
        _add_place(command)


def _add_queue(parser: argparse.ArgumentParser, kind: type[argparse.ArgumentParser]) -> None:
    make = parser.add_subparsers(
        dest="queue_command", metavar="COMMAND", required=True, parser_class=kind
    ).add_parser
    listing = make("list", help="tickets by state, per queue")
    listing.add_argument("queues", nargs="+", metavar="QUEUE")
    _add_place(listing)
    peek = make("peek", help="open tickets, those that may be taken first")
    final = make("final", help="how a ticket ended; exit 1 if it did not, or a day ago")
    dead = make("dead", help="tickets that failed for good")
    requeue = make("requeue", help="give dead letters new tries")
    cancel = make("cancel", help="end open tickets; who works on one cannot complete it any more")
    for command in (peek, final, dead, requeue, cancel):
        command.add_argument("queue", metavar="QUEUE")
        _add_place(command)
    peek.add_argument("--limit", default="100", metavar="N", help="so many, default 100")
    final.add_argument("ticket", metavar="TICKET")
    for command, what in ((requeue, "dead letter"), (cancel, "open ticket")):
        command.add_argument(
            "--ticket", action="append", default=[], metavar="ID", help="this one (repeatable)"
        )
        command.add_argument("--all", action="store_true", help=f"every {what} of the queue")
        _add_member(command)


def _add_schedule(parser: argparse.ArgumentParser, kind: type[argparse.ArgumentParser]) -> None:
    jobs = parser.add_subparsers(
        dest="schedule_command", metavar="COMMAND", required=True, parser_class=kind
    ).add_parser
    _add_place(jobs("list", help="every job: when, next due time, last run"))
    history = jobs("history", help="the last 50 runs of a job")
    changes = (
        jobs("pause", help="no more runs of a job, until it is resumed"),
        jobs("resume", help="from its next due time on"),
        jobs("run", help="one run besides the schedule, as soon as somebody leads"),
        jobs("remove", help="forget a job; code that declares it adds it again"),
    )
    for command in (history, *changes):
        command.add_argument("job", metavar="JOB")
        _add_place(command)
    for command in changes:
        _add_member(command)


def _add_send(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("receiver", metavar="MEMBER")
    parser.add_argument("type", metavar="TYPE", help="wake, completion, cancel, or one of yours")
    parser.add_argument("--payload", metavar="JSON", help="what it carries")
    parser.add_argument("--correlation", metavar="ID", help="what it belongs to")
    parser.add_argument("--iteration", default="0", metavar="N", help="default 0")
    parser.add_argument(
        "--no-ack", action="store_true", help="return when it is in the inbox, before it is read"
    )
    parser.add_argument(
        "--allow-unknown", action="store_true", help="also to a member that never registered"
    )
    _add_place(parser)
    _add_member(parser, waits=False)


def _add_wait(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--as", dest="member", metavar="MEMBER", help="id to wait as; default: new")
    parser.add_argument("--correlation", metavar="ID", help="only of this correlation")
    parser.add_argument(
        "--type", action="append", default=[], metavar="TYPE", help="only of this (repeatable)"
    )
    parser.add_argument(
        "--from",
        dest="senders",
        action="append",
        default=[],
        metavar="MEMBER",
        help="only from this one (repeatable); ends early if all of them are dead",
    )
    _add_place(parser)
    _add_member(parser)


def _add_cost(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--members", default="10", metavar="N", help="default 10")
    parser.add_argument(
        "--waits", default="0", metavar="N", help="workers and callers that wait all the time"
    )
    parser.add_argument("--profile", metavar="NAME", help="default: by store")
    parser.add_argument("--store", metavar="URL", help="only its kind counts; default s3:")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")


def _add_elect(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--force", action="store_true", help="ask the present one to hand over")
    parser.add_argument("--to", metavar="MEMBER", help="to this one; needs --force")
    parser.add_argument(
        "--allow-early", action="store_true", help="also within the first 60 s of a term"
    )


def _add_cleanup(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--once", action="store_true", help="one run, which is all it does")
    parser.add_argument("--dry-run", action="store_true", help="say what would go, change nothing")
    parser.add_argument(
        "--stale", default="600", metavar="SECONDS", help="not heard of for so long, default 600"
    )


def _add_rotate(parser: argparse.ArgumentParser, kind: type[argparse.ArgumentParser]) -> None:
    steps = parser.add_subparsers(
        dest="rotate_command", metavar="STEP", required=True, parser_class=kind
    ).add_parser
    status = steps("status", help="which keys live members accept, and which one signs")
    start = steps("start", help="add a new secret to the file: both are accepted")
    promote = steps("promote", help="drop the old one, a day after all sign with the new one")
    promote.add_argument("--force", action="store_true", help="although it may be too early")
    abort = steps("abort", help="drop the new one, while nobody signs with it")
    for step in (status, start, promote, abort):
        _add_source(step)
        _add_place(step)


def _add_install(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", choices=["cleanup"], help="the job")
    way = parser.add_mutually_exclusive_group(required=True)
    way.add_argument("--systemd", action="store_true", help="a service and its timer")
    way.add_argument(
        "--cron", action="store_true", help="a file for /etc/cron.d; SQUALL_COORD_STORE is kept"
    )
    way.add_argument(
        "--kubernetes", action="store_true", help="a CronJob; its secret names the store"
    )
    parser.add_argument(
        "--folder",
        default=".",
        metavar="DIR",
        help="to write to, default here",
    )
    parser.add_argument(
        "--image",
        default="squall",
        metavar="IMAGE",
        help="for --kubernetes, with squall in it",
    )
    parser.add_argument("--overwrite", action="store_true", help="files that are there already")


def _add_source(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--secret-source", metavar="URL", help="where the secret is: file:/path, vault:, awssm:"
    )


def _add_place(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("store")
    group.add_argument(
        "--store",
        metavar="URL",
        help="redis://host:6379/0, s3://bucket/prefix, sqlite:///file; or SQUALL_COORD_STORE",
    )
    group.add_argument("--namespace", default="default", metavar="NAME", help="default: default")
    group.add_argument("--prefix", metavar="PREFIX", help="of all keys, default blocking")
    group.add_argument(
        "--environment", metavar="NAME", help="development, staging, production; COORD_ENVIRONMENT"
    )
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")


def _add_member(parser: argparse.ArgumentParser, *, waits: bool = True) -> None:
    """Of commands that speak to members, and so must sign."""
    group = parser.add_argument_group("member")
    group.add_argument(
        "--secret-source",
        metavar="URL",
        help="env:, file:/path, vault:, awssm:; default env: where its variable is set",
    )
    group.add_argument("--profile", metavar="NAME", help="that of the members; default: by store")
    if waits:
        group.add_argument("--within", default="60", metavar="SECONDS", help="to wait, default 60")
