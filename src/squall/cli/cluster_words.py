"""The words of the cluster's commands. Only parsing: nothing here may import more than
argparse, because every command reads it first.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

COMMANDS = {
    "submit": "squall.cli.submit",
    "schedule": "squall.cli.schedule",
    "jobs": "squall.cli.jobs",
    "status": "squall.cli.jobs",
    "watch": "squall.cli.jobs",
    "cancel": "squall.cli.jobs",
    "why": "squall.cli.jobs",
    "adjust": "squall.cli.jobs",
    "nodes": "squall.cli.nodes",
    "drain": "squall.cli.nodes",
    "dev": "squall.cli.dev",
    "manager": "squall.cli.manager",
    "worker": "squall.cli.worker",
    "agent": "squall.cli.agent",
    "secret": "squall.cli.secret",
    "group": "squall.cli.group",
    "recover": "squall.cli.recover",
    "backup": "squall.cli.backup",
    "restore": "squall.cli.backup",
}

DEFAULT_CLUSTER = "squall"
GROUP_SIZES = (1, 3, 5)

Add = Callable[..., argparse.ArgumentParser]


def add_cluster_words(add: Add) -> None:
    """`add` makes the parser of one command."""
    _add_questions(add)
    _add_wishes(add)
    _add_dev(add("dev", help="a whole datacenter on this machine, until Ctrl-C"))
    _add_manager(add("manager", help="a manager of a datacenter"))
    _add_worker(add("worker", help="a worker of a datacenter"))
    _add_agent(add("agent", help="a machine that runs load, with others through a store"))
    _add_secret(add("secret", help="make the cluster's secret, or credentials from it"))
    _add_group(add("group", help="the managers of a datacenter: status, members, who leads"))
    _add_disks(add)


def add_destination(parser: argparse.ArgumentParser) -> None:
    """Of `run` and `submit`: where a run goes. To leave is what `submit` does anyway."""
    group = add_access(parser)
    group.add_argument("--key", metavar="KEY", help="the same key gives the same job")
    group.add_argument("--patience", metavar="TIME", help="for managers that stay away, 60s")
    _add_loss(group)
    group.add_argument("--detach", action="store_true", help="print the job's id and leave")


def _add_loss(group: argparse._ArgumentGroup) -> None:  # pyright: ignore[reportPrivateUsage]
    group.add_argument(
        "--on-agent-loss",
        choices=("replan", "continue"),
        help="the load of a lost machine: replan (default) moves it, continue does without",
    )


def add_access(
    parser: argparse.ArgumentParser, *, to: bool = True, store: bool = True
) -> argparse._ArgumentGroup:  # pyright: ignore[reportPrivateUsage]
    group = parser.add_argument_group("cluster")
    if to:
        group.add_argument(
            "--to", metavar="HOST:PORT[,...]", help="managers; but for run also SQUALL_TO"
        )
    if to and store:
        _add_store(group, "agents meet there; but for run also SQUALL_STORE")
    group.add_argument(
        "--secret-file", metavar="FILE", help="secret or credential; or SQUALL_SECRET_FILE"
    )
    group.add_argument("--cluster", metavar="NAME", help="the cluster's id; or SQUALL_CLUSTER_ID")
    return group


def _add_store(group: argparse._ArgumentGroup, text: str) -> None:  # pyright: ignore[reportPrivateUsage]
    group.add_argument("--store", metavar="URL", help=f"redis://, s3://, sqlite:///file: {text}")
    group.add_argument("--prefix", metavar="NAME", help="of all keys in the store, default squall")


def add_times(parser: argparse.ArgumentParser) -> None:
    """Of `schedule add`: when, and what becomes of the results."""
    group = parser.add_argument_group("schedule")
    group.add_argument("--cron", metavar="TEXT", help='minute hour day month weekday: "0 3 * * *"')
    group.add_argument("--every", metavar="TIME", help="instead: at each multiple of 15m")
    group.add_argument("--zone", metavar="NAME", help="of the cron text, default UTC")
    group.add_argument("--name", metavar="NAME", help="default: that of the file")
    group.add_argument(
        "--catch-up",
        choices=("skip", "once", "all"),
        default="skip",
        help="due times at which no agent was there: skip (default), run one, or all of them",
    )
    group.add_argument("--compare-to", choices=("last",), help="judge each run by the one before")
    group.add_argument("--keep", metavar="TIME", default="7d", help="results, default 7d")
    _add_loss(group)


def add_schedule_questions(add: Add) -> None:
    """`list`, `remove`, `history` and `result` of `schedule`."""
    listing = add("list", help="schedules, when each is due, how the last run ended")
    remove = add("remove", help="forget a schedule and its history; its job goes on")
    history = add("history", help="its runs: time, job, verdict, exit code, what changed")
    result = add("result", help="the summary of a run, or with --json its document")
    for parser in (remove, history, result):
        parser.add_argument("name", metavar="NAME")
    result.add_argument("job", nargs="?", metavar="JOB", help="default: the last one")
    result.add_argument("--no-color", action="store_true", help="NO_COLOR does the same")
    for parser in (listing, remove, history, result):
        finish_schedule(parser)


def finish_schedule(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    group = add_access(parser, to=False)
    _add_store(group, "the schedules lie there; or SQUALL_STORE")


def add_cost(parser: argparse.ArgumentParser) -> None:
    """Of `explain`: what a run asks of a store."""
    group = parser.add_argument_group("store mode")
    group.add_argument("--store", metavar="URL", help="what the run would ask of this store")
    group.add_argument("--agents", metavar="N", help="default 3; with --store")


def _add_questions(add: Add) -> None:
    jobs = add("jobs", help="jobs of a cluster, the newest first")
    jobs.add_argument("--limit", default="100", metavar="N", help="default 100")
    status = add("status", help="where a job is")
    watch = add("watch", help="follow a job; its summary and exit code at the end")
    watch.add_argument("-q", "--quiet", action="store_true", help="no progress lines")
    watch.add_argument("--ui", metavar="MODE", help="full, ci or none, as of squall run")
    watch.add_argument("--no-color", action="store_true", help="NO_COLOR does the same")
    why = add("why", help="what a job waits for, and what happened to it")
    nodes = add("nodes", help="managers and workers of a datacenter")
    for parser in (status, watch, why):
        parser.add_argument("job", metavar="JOB")
    for parser in (jobs, status, watch, why, nodes):
        _finish(parser)


def _add_wishes(add: Add) -> None:
    cancel = add("cancel", help="end a job; its result is kept")
    cancel.add_argument("job", metavar="JOB")
    cancel.add_argument("--now", action="store_true", help="do not let iterations end")
    adjust = add("adjust", help="change the load of a job that runs")
    adjust.add_argument("job", metavar="JOB")
    adjust.add_argument("--rate", metavar="[NAME=]RATE", help="starts, 500/s")
    adjust.add_argument("--vus", metavar="[NAME=]N", help="users")
    adjust.add_argument("--pause", action="store_true", help="start no iteration")
    adjust.add_argument("--resume", action="store_true")
    adjust.add_argument("--extend", metavar="TIME", help="time beyond its timeout, in all: 30s")
    drain = add("drain", help="give a worker no new work")
    drain.add_argument("node", metavar="NODE")
    drain.add_argument("--resume", action="store_true", help="give it work again")
    for parser in (cancel, adjust, drain):
        _finish(parser)


def _finish(parser: argparse.ArgumentParser, *, store: bool = True) -> None:
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    add_access(parser, store=store)


def _add_dev(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--managers", default="1", metavar="N", help="1, 3 or 5; default 1")
    parser.add_argument("--workers", default="2", metavar="N", help="default 2")
    parser.add_argument("--cores", default="1", metavar="N", help="of each worker, default 1")
    parser.add_argument("--data", metavar="DIR", help="keep the data here; default: temporary")
    parser.add_argument("--json", action="store_true", help="addresses, pids, secret as JSON")
    _add_timers(parser)


def _add_manager(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dc", required=True, metavar="NAME", help="the datacenter")
    parser.add_argument("--name", required=True, metavar="NAME", help="of this manager, m1")
    parser.add_argument("--listen", required=True, metavar="HOST:PORT")
    parser.add_argument(
        "--members",
        required=True,
        action="append",
        metavar="NAME=HOST:PORT[,...]",
        help="all managers of the datacenter, this one too (1, 3 or 5)",
    )
    parser.add_argument("--data", required=True, metavar="DIR", help="its log and blobs")
    parser.add_argument(
        "--join", action="store_true", help="with an empty directory: wait for squall group"
    )
    _add_node(parser)


def _add_worker(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dc", required=True, metavar="NAME", help="the datacenter")
    parser.add_argument("--managers", metavar="HOST:PORT[,...]", help="or SQUALL_TO")
    parser.add_argument("--cores", metavar="N", help="default: all of this machine")
    parser.add_argument("--name", metavar="NAME", help="default: the name of this machine")
    parser.add_argument("--data", metavar="DIR", help="keeps unsent results over a restart")
    _add_node(parser)


def _add_agent(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("store")
    _add_store(group, "all agents name the same; or SQUALL_STORE")
    parser.add_argument("--cores", metavar="N", help="default: all of this machine")
    parser.add_argument("--name", metavar="NAME", help="default: a new one at each start")
    parser.add_argument("--data", metavar="DIR", help="keeps unsent results over a restart")
    _add_node(parser)


def _add_node(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--metrics", metavar="HOST:PORT", help="/metrics, /healthz, /readyz")
    _add_timers(parser)
    add_access(parser, to=False)


def _add_timers(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--timers", choices=("lan", "fast"), help=argparse.SUPPRESS)


def _add_secret(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(
        dest="secret_command", metavar="COMMAND", required=True, parser_class=type(parser)
    )
    new = commands.add_parser("new", help="a secret for a new cluster")
    client = commands.add_parser("client", help="a credential for a person or a CI job")
    client.add_argument("name", nargs="?", metavar="NAME", help="who; default: you")
    worker = commands.add_parser("worker", help="the credential of all workers")
    for command in (new, client, worker):
        command.add_argument(
            "-o", "--output", metavar="FILE", help="write it there, readable only by you"
        )
    for command in (client, worker):
        add_access(command, to=False)


def _add_group(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(
        dest="group_command", metavar="COMMAND", required=True, parser_class=type(parser)
    )
    status = commands.add_parser("status", help="members, who leads, how far each is")
    replace = commands.add_parser("replace", help="a new manager takes the place of one")
    replace.add_argument("old", metavar="OLD", help="the name of the one that goes")
    replace.add_argument("new", metavar="NEW=HOST:PORT", help="runs already, with --join")
    more = commands.add_parser("add", help="two more managers")
    more.add_argument("new", metavar="NEW=HOST:PORT", nargs="+", help="run already, with --join")
    remove = commands.add_parser("remove", help="two managers less")
    remove.add_argument("old", metavar="NAME", nargs="+")
    handover = commands.add_parser("handover", help="another manager leads")
    for command in (status, replace, more, remove, handover):
        _finish(command, store=False)


def _add_disks(add: Add) -> None:
    recover = add("recover", help="a new group from one data directory, when a quorum is lost")
    recover.add_argument("directory", metavar="DIR", help="of a manager that does not run")
    recover.add_argument("--force", action="store_true", help="do it; without: only say what")
    recover.add_argument("--json", action="store_true", help="one JSON document on stdout")
    backup = add("backup", help="copy the data directory of a manager, checked")
    backup.add_argument("directory", metavar="DIR", help="of a manager")
    backup.add_argument("to", metavar="TO", help="an empty or new directory")
    restore = add("restore", help="make a data directory from a backup, checked")
    restore.add_argument("backup", metavar="BACKUP")
    restore.add_argument("directory", metavar="DIR", help="an empty or new directory")
