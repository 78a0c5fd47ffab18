"""Flags of the commands of store mode."""

from __future__ import annotations

from squall.cli.shared.flags import (
    add_access,
    add_agent_loss,
    add_drain_timeout,
    add_json,
    add_judgement,
    add_launcher,
    add_no_color,
    add_node_web,
    add_plan,
    add_store,
    add_tags,
    add_target,
    add_timers,
)
from squall.cli.shared.parser import Flags, Parser


def _add_agent(parser: Parser) -> None:
    group = parser.add_argument_group("store")
    add_store(group, "the same for all agents; or SQUALL_STORE")
    parser.add_argument("--cores", metavar="N", help="default: all of this machine")
    parser.add_argument("--name", metavar="NAME", help="default: a new one at each start")
    parser.add_argument("--data", metavar="DIR", help="keep unsent results across restarts")
    add_drain_timeout(parser)
    parser.add_argument("--metrics", metavar="HOST:PORT", help="serve /metrics, /healthz, /readyz")
    add_node_web(parser)
    add_launcher(parser)
    add_timers(parser)
    add_access(parser, to=False)


def _add_schedule(parser: Parser) -> None:
    make = parser.add_commands("schedule_command")
    add = make("add", help="run FILE on a schedule until it is removed")
    add_plan(add)
    _add_times(add)
    add_target(add)
    add_judgement(add)
    add_tags(add)
    listing = make("list", help="schedules, their next run, and how the last one ended")
    remove = make("remove", help="remove a schedule and its history; a running job goes on")
    history = make("history", help="its runs: time, job, verdict, exit code, what changed")
    result = make("result", help="the summary of a run; with --json its results document")
    for command in (remove, history, result):
        command.add_argument("name", metavar="NAME")
    result.add_argument("job", nargs="?", metavar="JOB", help="default: the last one")
    add_no_color(result)
    for command in (add, listing, remove, history, result):
        add_json(command)
        group = add_access(command, to=False)
        add_store(group, "where the schedules are kept; or SQUALL_STORE")


def _add_times(parser: Parser) -> None:
    """When to run, and what to do with the results."""
    group = parser.add_argument_group("schedule")
    group.add_argument("--cron", metavar="TEXT", help='a cron expression, such as "0 3 * * *"')
    group.add_argument(
        "--every", metavar="TIME", help="or an interval: 15m runs at each multiple of 15m"
    )
    group.add_argument("--zone", metavar="NAME", help="time zone of --cron, default UTC")
    group.add_argument("--name", metavar="NAME", help="default: the name of the file")
    group.add_argument(
        "--catch-up",
        choices=("skip", "once", "all"),
        default="skip",
        help="runs missed while no agent was there: skip them (default), run once, or run all",
    )
    group.add_argument(
        "--compare-to", choices=("last",), help="compare each run with the one before"
    )
    group.add_argument(
        "--keep", metavar="TIME", default="7d", help="how long to keep results, default 7d"
    )
    add_agent_loss(group)


FLAGS: dict[str, Flags] = {"agent": _add_agent, "schedule": _add_schedule}
