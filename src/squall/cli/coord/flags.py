"""Flags of `squall coord`. Nothing here may import more than argparse needs."""

from __future__ import annotations

from collections.abc import Callable

from squall.cli.shared.flags import add_json
from squall.cli.shared.parser import Flags, Parser

_EXIT_CODES = """\
exit codes:
    0  done; a cleanup that already runs elsewhere counts as done
    1  some members could not be cleaned up; the doctor found a problem; no member leads;
       a signal was not acknowledged, or none came in time
    2  usage: the command line is wrong
    3  the store does not answer
  104  bad configuration: the address, the secret, or a store that cannot be used
"""

Make = Callable[..., Parser]


def _add_coord(parser: Parser) -> None:
    parser.epilog = _EXIT_CODES
    make = parser.add_commands("coord_command")
    status = make("status", help="the leader, the number of members and keys, the last cleanup")
    members = make("members", help="every member, its last heartbeat and its health")
    _add_inspections(make)
    elect = make("elect", help="show the leader; with --force, change it")
    _add_elect(elect)
    cleanup = make("cleanup", help="remove the records of members that have been silent for long")
    _add_cleanup(cleanup)
    _add_queue(make("queue", help="queues, their tickets and dead letters"))
    for command in (status, members, elect, cleanup):
        _add_place(command)
    _add_member(elect)
    _add_schedule(make("schedule", help="jobs, their next due times and last runs"))
    signals = make("signal", help="send a signal to a member").add_commands("signal_command")
    _add_send(signals("send", help="put a signal into the inbox of a member"))
    _add_wait(make("wait", help="wait for a signal, as a member that never leads"))
    _add_cost(make("cost", help="estimate the requests of a group, and their price on S3"))
    secrets = make("secret", help="make or change the signing secret").add_commands(
        "secret_command"
    )
    secrets("generate", help="print 256 random bits as 64 hex characters")
    _add_rotate(secrets("rotate", help="change the secret while the group runs"))
    doctor = make("doctor", help="check everything: what is wrong and what to do")
    _add_doctor(doctor)
    install = make("install", help="write the files that run the cleanup every five minutes")
    _add_install(install)
    for command in (doctor, install):
        _add_place(command)


def _add_inspections(make: Make) -> None:
    """Commands that only read."""
    leader = make("leader", help="the leader, since when it leads, and the next in line")
    epoch = make("epoch", help="the current epoch, and which ones members have seen")
    signals = make("signals", help="inboxes: unread and refused signals, open waits")
    signals.add_argument(
        "member", nargs="?", metavar="MEMBER", help="show each signal of this member"
    )
    events = make("events", help="past elections, arrivals and deaths that the store recorded")
    events.add_argument(
        "--follow", action="store_true", help="also print new events as they happen"
    )
    events.add_argument(
        "--last", default="50", metavar="N", help="how many past events, default 50"
    )
    events.add_argument(
        "--every", metavar="SECONDS", help="time between two polls; default 1, on S3 10"
    )
    events.add_argument(
        "--for", dest="lasts", metavar="SECONDS", help="end --follow after this time"
    )
    for command in (leader, epoch, signals, events):
        _add_place(command)


def _add_queue(parser: Parser) -> None:
    make = parser.add_commands("queue_command")
    listing = make("list", help="number of tickets in each state, per queue")
    listing.add_argument("queues", nargs="+", metavar="QUEUE")
    _add_place(listing)
    peek = make("peek", help="open tickets; those that can be claimed come first")
    final = make("final", help="how a ticket ended; exit 1 if it is open or ended over a day ago")
    dead = make("dead", help="tickets that failed for good")
    requeue = make("requeue", help="enqueue dead letters again")
    cancel = make("cancel", help="end open tickets; their workers can no longer complete them")
    for command in (peek, final, dead, requeue, cancel):
        command.add_argument("queue", metavar="QUEUE")
        _add_place(command)
    peek.add_argument("--limit", default="100", metavar="N", help="at most N tickets, default 100")
    final.add_argument("ticket", metavar="TICKET")
    for command, what in ((requeue, "dead letter"), (cancel, "open ticket")):
        command.add_argument(
            "--ticket", action="append", default=[], metavar="ID", help="this one (repeatable)"
        )
        command.add_argument("--all", action="store_true", help=f"every {what} of the queue")
        _add_member(command)


def _add_schedule(parser: Parser) -> None:
    make = parser.add_commands("schedule_command")
    _add_place(make("list", help="every job: when it runs, next due time, last run"))
    history = make("history", help="the last 50 runs of a job")
    changes = (
        make("pause", help="no more runs of a job until it is resumed"),
        make("resume", help="run a paused job again, from its next due time on"),
        make("run", help="run a job once more, as soon as a member leads"),
        make("remove", help="remove a job; code that declares it adds it again"),
    )
    for command in (history, *changes):
        command.add_argument("job", metavar="JOB")
        _add_place(command)
    for command in changes:
        _add_member(command)


def _add_send(parser: Parser) -> None:
    parser.add_argument("receiver", metavar="MEMBER")
    parser.add_argument("type", metavar="TYPE", help="wake, completion, cancel, or one of yours")
    parser.add_argument("--payload", metavar="JSON", help="the payload")
    parser.add_argument("--correlation", metavar="ID", help="the correlation id")
    parser.add_argument("--iteration", default="0", metavar="N", help="default 0")
    parser.add_argument(
        "--no-ack",
        action="store_true",
        help="return once it is in the inbox, without waiting for the acknowledgement",
    )
    parser.add_argument(
        "--allow-unknown", action="store_true", help="send to a member that never registered too"
    )
    _add_place(parser)
    _add_member(parser, waits=False)


def _add_wait(parser: Parser) -> None:
    parser.add_argument(
        "--as", dest="member", metavar="MEMBER", help="member id; default: a new one"
    )
    parser.add_argument("--correlation", metavar="ID", help="only with this correlation id")
    parser.add_argument(
        "--type", action="append", default=[], metavar="TYPE", help="only this type (repeatable)"
    )
    parser.add_argument(
        "--from",
        dest="senders",
        action="append",
        default=[],
        metavar="MEMBER",
        help="only from this sender (repeatable); ends early if all of them are dead",
    )
    _add_place(parser)
    _add_member(parser)


def _add_cost(parser: Parser) -> None:
    parser.add_argument("--members", default="10", metavar="N", help="default 10")
    parser.add_argument(
        "--waits", default="0", metavar="N", help="workers and callers that always wait, default 0"
    )
    parser.add_argument("--profile", metavar="NAME", help="default: the one for the store")
    parser.add_argument("--store", metavar="URL", help="only its scheme counts; default s3:")
    add_json(parser)


def _add_elect(parser: Parser) -> None:
    parser.add_argument("--force", action="store_true", help="ask the leader to hand over")
    parser.add_argument("--to", metavar="MEMBER", help="hand over to this member; needs --force")
    parser.add_argument(
        "--allow-early", action="store_true", help="even within the first 60 s of a term"
    )


def _add_cleanup(parser: Parser) -> None:
    parser.add_argument("--once", action="store_true", help="run once, as without this flag")
    parser.add_argument(
        "--dry-run", action="store_true", help="show what would be removed, change nothing"
    )
    parser.add_argument(
        "--stale",
        default="600",
        metavar="SECONDS",
        help="remove members silent for this long, default 600",
    )


def _add_rotate(parser: Parser) -> None:
    make = parser.add_commands("rotate_command", "STEP")
    status = make("status", help="which keys live members accept, and which one signs")
    start = make("start", help="add a new secret to the file: both are accepted")
    promote = make("promote", help="drop the old one, a day after all sign with the new one")
    promote.add_argument("--force", action="store_true", help="even if it may be too early")
    abort = make("abort", help="drop the new one, while no member signs with it")
    for step in (status, start, promote, abort):
        _add_source(step)
        _add_place(step)


def _add_doctor(parser: Parser) -> None:
    parser.add_argument(
        "--production", action="store_true", help="also check what only a production service needs"
    )
    parser.add_argument(
        "--queue",
        action="append",
        default=[],
        metavar="QUEUE",
        help="look for stuck tickets in this queue (repeatable)",
    )
    parser.add_argument(
        "--rules", metavar="FILE", help="with --production: the alert rules that are loaded"
    )
    parser.add_argument(
        "--dashboard", metavar="FILE", help="with --production: the JSON of the dashboard"
    )
    parser.add_argument(
        "--profile", metavar="NAME", help="profile of the members; default: the one for the store"
    )
    _add_source(parser)


def _add_install(parser: Parser) -> None:
    parser.add_argument("what", choices=["cleanup"], help="the job")
    way = parser.add_mutually_exclusive_group(required=True)
    way.add_argument("--systemd", action="store_true", help="a service and its timer")
    way.add_argument(
        "--cron", action="store_true", help="a file for /etc/cron.d; includes SQUALL_COORD_STORE"
    )
    way.add_argument(
        "--kubernetes", action="store_true", help="a CronJob; its secret names the store"
    )
    parser.add_argument(
        "--folder", default=".", metavar="DIR", help="where to write them, default here"
    )
    parser.add_argument(
        "--image",
        default="squall",
        metavar="IMAGE",
        help="container image for --kubernetes that contains squall, default squall",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace existing files")


def _add_source(parser: Parser) -> None:
    parser.add_argument(
        "--secret-source", metavar="URL", help="where the secret is: file:/path, vault:, awssm:"
    )


def _add_place(parser: Parser) -> None:
    group = parser.add_argument_group("store")
    group.add_argument(
        "--store",
        metavar="URL",
        help="redis://host:6379/0, s3://bucket/prefix, sqlite:///file; or SQUALL_COORD_STORE",
    )
    group.add_argument("--namespace", default="default", metavar="NAME", help="default: default")
    group.add_argument("--prefix", metavar="PREFIX", help="prefix of all keys, default blocking")
    group.add_argument(
        "--environment",
        metavar="NAME",
        help="development, staging or production; or COORD_ENVIRONMENT",
    )
    add_json(parser)


def _add_member(parser: Parser, *, waits: bool = True) -> None:
    """For commands that send orders to members, which must be signed."""
    group = parser.add_argument_group("member")
    group.add_argument(
        "--secret-source",
        metavar="URL",
        help="env:, file:/path, vault:, awssm:; default: env: if its variable is set",
    )
    group.add_argument(
        "--profile", metavar="NAME", help="profile of the members; default: the one for the store"
    )
    if waits:
        group.add_argument(
            "--within", default="60", metavar="SECONDS", help="how long to wait, default 60"
        )


FLAGS: dict[str, Flags] = {"coord": _add_coord}
