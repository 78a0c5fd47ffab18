"""Flags of the commands of a cluster: jobs, nodes, and the disks of managers."""

from __future__ import annotations

import argparse

from squall.cli.shared.flags import (
    add_access,
    add_drain_timeout,
    add_json,
    add_launcher,
    add_no_color,
    add_node_web,
    add_require_outputs,
    add_timers,
    add_web,
)
from squall.cli.shared.parser import Flags, Parser


def _add_jobs(parser: Parser) -> None:
    parser.add_argument("--limit", default="100", metavar="N", help="default 100")
    _finish(parser)


def _add_job(parser: Parser) -> None:
    """`status` and `why` take a job and nothing else."""
    parser.add_argument("job", metavar="JOB")
    _finish(parser)


def _add_watch(parser: Parser) -> None:
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress lines")
    parser.add_argument("--ui", metavar="MODE", help="full, ci or none, as for squall run")
    parser.add_argument(
        "-o",
        "--output",
        action="append",
        default=[],
        metavar="KIND=TARGET",
        help="an output, also a live one, as for squall run (repeatable)",
    )
    add_require_outputs(parser)
    add_web(parser)
    add_no_color(parser)
    _add_job(parser)


def _add_cancel(parser: Parser) -> None:
    parser.add_argument("--now", action="store_true", help="stop running iterations too")
    _add_reason(parser)
    _add_job(parser)


def _add_adjust(parser: Parser) -> None:
    parser.epilog = (
        "JOB local is the run of yours on this machine that serves a page (squall run --web); "
        "local:PORT where there are several."
    )
    parser.add_argument("--rate", metavar="[NAME=]RATE", help="iterations started, 500/s")
    parser.add_argument("--vus", metavar="[NAME=]N", help="virtual users")
    parser.add_argument("--pause", action="store_true", help="start no more iterations")
    parser.add_argument("--resume", action="store_true", help="start iterations again")
    parser.add_argument(
        "--extend", metavar="TIME", help="let it run this long past its timeout, in total: 30s"
    )
    _add_reason(parser)
    _add_job(parser)


def _add_web(parser: Parser) -> None:
    parser.add_argument(
        "--listen",
        default="",
        metavar="[HOST:]PORT",
        help="address to listen on; default 127.0.0.1 and port 8650, or a free one",
    )
    parser.add_argument(
        "--files", metavar="DIR", help="folder of workflow files that can be submitted on the page"
    )
    # The process of the page that a node serves: `--web` of squall manager.
    parser.add_argument("--of-node", action="store_true", help=argparse.SUPPRESS)
    add_access(parser)


def _add_reason(parser: Parser) -> None:
    parser.add_argument("--reason", metavar="TEXT", default="", help="why; recorded with your name")


def _add_drain(parser: Parser) -> None:
    parser.add_argument("node", metavar="NODE")
    parser.add_argument("--resume", action="store_true", help="let it accept work again")
    add_drain_timeout(parser)
    _finish(parser)


def _finish(parser: Parser, *, store: bool = True) -> None:
    add_json(parser)
    add_access(parser, store=store)


def _add_nodes(parser: Parser) -> None:
    parser.add_argument(
        "--dc", metavar="NAME", help="with a gate in --to: list the nodes of this datacenter"
    )
    _finish(parser)


def _add_members(parser: Parser) -> None:
    parser.add_argument(
        "address", nargs="?", metavar="HOST:PORT", help="the node to ask; the same as --to"
    )
    parser.add_argument(
        "--dc", metavar="NAME", help="with a gate in --to: list the members of this datacenter"
    )
    _finish(parser, store=False)


def _add_manager(parser: Parser) -> None:
    parser.add_argument("--dc", required=True, metavar="NAME", help="the datacenter")
    parser.add_argument("--name", required=True, metavar="NAME", help="name of this manager: m1")
    parser.add_argument("--listen", required=True, metavar="HOST:PORT", help="address to listen on")
    parser.add_argument(
        "--members",
        required=True,
        action="append",
        metavar="NAME=HOST:PORT[,...]",
        help="all managers of the datacenter, including this one (1, 3 or 5)",
    )
    parser.add_argument(
        "--data", required=True, metavar="DIR", help="directory for its log and blobs"
    )
    parser.add_argument(
        "--join",
        action="store_true",
        help="start with an empty directory and wait to be added by squall group",
    )
    add_node_web(parser)
    _add_node(parser)


def _add_gate(parser: Parser) -> None:
    parser.add_argument("--name", required=True, metavar="NAME", help="name of this gate: g1")
    parser.add_argument("--listen", required=True, metavar="HOST:PORT", help="address to listen on")
    parser.add_argument(
        "--members",
        required=True,
        action="append",
        metavar="NAME=HOST:PORT[,...]",
        help="all gates, including this one (1, 3 or 5)",
    )
    parser.add_argument(
        "--datacenter",
        required=True,
        action="append",
        metavar="NAME=HOST:PORT[;HOST:PORT][,...]",
        help="the datacenters, each with one or more of its managers",
    )
    parser.add_argument(
        "--data", required=True, metavar="DIR", help="directory for its log and blobs"
    )
    parser.add_argument(
        "--region", metavar="NAME", help="where this gate is: gates of one region fail together"
    )
    parser.add_argument(
        "--join",
        action="store_true",
        help="start with an empty directory and wait to be added by squall group",
    )
    add_node_web(parser)
    _add_node(parser)


def _add_worker(parser: Parser) -> None:
    parser.add_argument("--dc", required=True, metavar="NAME", help="the datacenter")
    parser.add_argument(
        "--managers",
        metavar="HOST:PORT[,...]",
        help="also dns:NAME:PORT or srv:NAME; SQUALL_TO does the same",
    )
    parser.add_argument("--cores", metavar="N", help="default: all of this machine")
    parser.add_argument("--name", metavar="NAME", help="default: the name of this machine")
    parser.add_argument("--data", metavar="DIR", help="keep unsent results across restarts")
    add_drain_timeout(parser)
    _add_node(parser)


def _add_node(parser: Parser) -> None:
    parser.add_argument("--metrics", metavar="HOST:PORT", help="serve /metrics, /healthz, /readyz")
    add_launcher(parser)
    add_timers(parser)
    add_access(parser, to=False)


def _add_secret(parser: Parser) -> None:
    make = parser.add_commands("secret_command")
    new = make("new", help="a secret for a new cluster")
    client = make("client", help="a credential for a person or a CI job")
    client.add_argument("name", nargs="?", metavar="NAME", help="its owner; default: you")
    client.add_argument(
        "--operator",
        action="store_true",
        help="it may also cancel and adjust the jobs of others, and drain workers",
    )
    worker = make("worker", help="a credential for workers")
    worker.add_argument(
        "name", nargs="?", metavar="NAME", help="the only worker that may use it; default: all"
    )
    for command in (new, client, worker):
        command.add_argument(
            "-o", "--output", metavar="FILE", help="write it there, readable only by you"
        )
    for command in (client, worker):
        add_access(command, to=False)


def _add_group(parser: Parser) -> None:
    make = parser.add_commands("group_command")
    status = make("status", help="members, which one leads, how far each has come")
    replace = make("replace", help="put a new manager in the place of another")
    replace.add_argument("old", metavar="OLD", help="name of the manager that leaves")
    replace.add_argument("new", metavar="NEW=HOST:PORT", help="running with --join")
    more = make("add", help="add two managers")
    more.add_argument("new", metavar="NEW=HOST:PORT", nargs="+", help="running with --join")
    remove = make("remove", help="remove two managers")
    remove.add_argument("old", metavar="NAME", nargs="+")
    handover = make("handover", help="let another manager lead")
    for command in (status, replace, more, remove, handover):
        _finish(command, store=False)


def _add_wal(parser: Parser) -> None:
    make = parser.add_commands("wal_command")
    inspect = make("inspect", help="show the segments, and records on request")
    inspect.add_argument("--records", metavar="A..B", help="show these records")
    verify = make("verify", help="exit 1 if anything durable is damaged")
    for command in (inspect, verify):
        command.add_argument("directory", metavar="DIR", help="data directory of a stopped node")


def _add_recover(parser: Parser) -> None:
    parser.add_argument("directory", metavar="DIR", help="data of a stopped manager or gate")
    parser.add_argument(
        "--force", action="store_true", help="make the change; without it only explain"
    )
    add_json(parser)


def _add_backup(parser: Parser) -> None:
    parser.add_argument("directory", metavar="DIR", help="data directory of a manager or gate")
    parser.add_argument("to", metavar="TO", help="an empty or new directory")


def _add_restore(parser: Parser) -> None:
    parser.add_argument("backup", metavar="BACKUP", help="directory that squall backup made")
    parser.add_argument("directory", metavar="DIR", help="an empty or new directory")


FLAGS: dict[str, Flags] = {
    "jobs": _add_jobs,
    "status": _add_job,
    "watch": _add_watch,
    "cancel": _add_cancel,
    "why": _add_job,
    "adjust": _add_adjust,
    "web": _add_web,
    "nodes": _add_nodes,
    "members": _add_members,
    "drain": _add_drain,
    "manager": _add_manager,
    "gate": _add_gate,
    "worker": _add_worker,
    "secret": _add_secret,
    "group": _add_group,
    "wal": _add_wal,
    "recover": _add_recover,
    "backup": _add_backup,
    "restore": _add_restore,
}
