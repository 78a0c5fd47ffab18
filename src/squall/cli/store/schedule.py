"""`squall schedule add | list | remove | history | result`: runs load tests on a schedule.

A schedule lies in the store where agents meet. This command writes it there, whether or not an
agent runs; the agent that coordinates runs it. Mistakes on the command line and in the file are
reported before anything is stored.
"""

from __future__ import annotations

import asyncio
import re
import sys
from argparse import Namespace
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from squall.api.errors import SquallError, UsageError
from squall.api.quantities import format_duration
from squall.cli.shared.cluster_access import client_access, store_url
from squall.cli.shared.run_options import run_options, seconds
from squall.cluster.client.access import ClusterAccess
from squall.cluster.client.cluster_client import outcome_from
from squall.cluster.client.connection import client_runtime
from squall.cluster.client.pack import packed
from squall.coordination.scheduler.records import JobRecord
from squall.engine.plan.author_file import refuse_no_python_file
from squall.engine.run_options import RunOptions
from squall.reporting.number_format import moment, three_digits
from squall.reporting.text.layout import aligned
from squall.reporting.text.standard_streams import print_json, print_or_drop
from squall.store_mode.client_side import StoreRoute
from squall.store_mode.find_coordinator import find_leader
from squall.store_mode.schedules.client import (
    ScheduleClient,
    ScheduleEntry,
    ScheduleRequest,
    check_request,
)
from squall.store_mode.schedules.records import GRACE_S, NAME_MAX, UNDER_WAY, ScheduledRun

if TYPE_CHECKING:
    from squall.coordination.scheduler.records import Misfire

NO_STORE = "schedules are kept in a store: name it with --store URL or SQUALL_STORE"
NO_COORDINATOR = (
    "no agent coordinates at the moment: nothing runs until one is started (squall agent)"
)
CATCH_UP: dict[str, Misfire] = {"skip": "skip", "once": "run_once", "all": "run_all"}
SHORTEST_S = 1.0

Answer = Callable[[ScheduleClient, Namespace], Awaitable[int]]


def execute(arguments: Namespace) -> int:
    if not store_url(arguments):
        raise UsageError(NO_STORE)
    access = client_access(arguments, comes_first=arguments.schedule_command == "add")
    if arguments.schedule_command == "add":
        return asyncio.run(_added(arguments, access))
    return asyncio.run(_answered(arguments, access))


async def _answered(arguments: Namespace, access: ClusterAccess) -> int:
    async with _open_client(access) as (client, _):
        return await _ANSWERS[arguments.schedule_command](client, arguments)


# Adding.


async def _added(arguments: Namespace, access: ClusterAccess) -> int:
    options = run_options(arguments)
    request = request_of(arguments, options)
    if options.file:
        refuse_no_python_file(Path(options.file), options.file)
    async with _open_client(access) as (client, coordinated):
        await client.refuse_taken(request.name)
        try:
            submission, bundle = await packed(options)
        except SquallError as error:
            # A file that cannot run once cannot be scheduled: it is a mistake of usage here.
            raise UsageError(str(error)) from None
        if request.compare_to:
            from squall.reporting.compare.changes import never_judged

            for text in never_judged(submission.manifest, options.warmup_s):
                print(f"warning: --compare-to {request.compare_to}: {text}", file=sys.stderr)
        entry = await client.add(request, submission, bundle)
        if arguments.json:
            return print_json(entry_view(entry))
        print_or_drop(
            f"schedule {request.name}: {times_text(entry)}, next {moment(entry.next_due)}"
        )
        if not await coordinated():
            print(NO_COORDINATOR, file=sys.stderr)
    return 0


def request_of(arguments: Namespace, options: RunOptions) -> ScheduleRequest:
    if bool(arguments.cron) == bool(arguments.every):
        raise UsageError('say when to run: either --cron "*/15 * * * *" or --every 15m')
    if arguments.zone and not arguments.cron:
        raise UsageError("--zone needs --cron")
    every_s = seconds(arguments.every, "--every") if arguments.every else 0.0
    if arguments.every and every_s < SHORTEST_S:
        raise UsageError(f"--every {arguments.every}: at least {SHORTEST_S:g}s")
    request = ScheduleRequest(
        name=arguments.name or name_of(options),
        times=JobRecord(
            cron=arguments.cron or "",
            zone=arguments.zone or "UTC",
            every=every_s,
            misfire=CATCH_UP[arguments.catch_up],
            grace=GRACE_S,
        ),
        compare_to=arguments.compare_to or "",
        keep_s=seconds(arguments.keep, "--keep"),
    )
    check_request(request)
    return request


def name_of(options: RunOptions) -> str:
    """Named after the file, or after the host of the URL."""
    what = Path(options.file).stem if options.file else urlsplit(options.url).hostname or ""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", what)[:NAME_MAX].strip(".-") or "load"


# Answers.


async def _list(client: ScheduleClient, arguments: Namespace) -> int:
    entries = await client.entries()
    if arguments.json:
        return print_json({"schedules": [entry_view(each) for each in entries]})
    rows = [("NAME", "WHEN", "FILE", "BY", "NEXT", "NOW", "LAST")]
    rows += [
        (
            each.schedule.name,
            times_text(each),
            each.schedule.file,
            each.schedule.principal,
            moment(each.next_due),
            _now(each.progress.under_way),
            _last(each.last),
        )
        for each in entries
    ]
    print_or_drop("\n".join(aligned(rows)) if entries else "no schedules")
    return 0


async def _remove(client: ScheduleClient, arguments: Namespace) -> int:
    entry = await client.remove(arguments.name)
    if arguments.json:
        return print_json(entry_view(entry))
    running = entry.progress.under_way
    goes_on = f"; its job {running.job} goes on" if running is not None and running.job else ""
    print_or_drop(f"removed schedule {arguments.name} and its history{goes_on}")
    return 0


async def _history(client: ScheduleClient, arguments: Namespace) -> int:
    entry = await client.entry(arguments.name)
    runs = list(entry.progress.runs)
    if entry.progress.under_way is not None:
        runs.append(entry.progress.under_way)
    if arguments.json:
        return print_json({"schedule": entry_view(entry), "runs": [run_view(run) for run in runs]})
    rows = [("TIME", "JOB", "STATE", "VERDICT", "EXIT", "")]
    rows += [
        (
            moment(run.due),
            run.job or "-",
            run.state,
            run.verdict or "-",
            "-" if run.exit_code is None else str(run.exit_code),
            remark(run),
        )
        for run in runs
    ]
    print_or_drop("\n".join(aligned(rows)) if runs else f"schedule {arguments.name} has not run")
    return 0


async def _result(client: ScheduleClient, arguments: Namespace) -> int:
    """Shows a result as `squall watch` does at the end of a job."""
    outcome = outcome_from(await client.result(arguments.name, arguments.job or ""))
    if arguments.json:
        from squall.reporting.document.build import build_document, encode_document

        print_or_drop(encode_document(build_document(outcome)).decode().rstrip("\n"), exact=True)
    else:
        from squall.cli.run.command import print_summary
        from squall.reporting.redaction import Redactor

        print_summary(outcome, None, Redactor(()), no_color=arguments.no_color)
    return int(outcome.exit_code)


_ANSWERS: dict[str, Answer] = {
    "list": _list,
    "remove": _remove,
    "history": _history,
    "result": _result,
}


# Words.


def times_text(entry: ScheduleEntry) -> str:
    times = entry.schedule.times
    if not times.cron:
        return f"every {format_duration(times.every, compact=True)}"
    return times.cron if times.zone == "UTC" else f"{times.cron} ({times.zone})"


def remark(run: ScheduledRun) -> str:
    """Why the run did not pass or did not start, and what changed since the one before."""
    parts = [run.reason] if run.reason else []
    compared = run.comparison
    if compared is not None:
        shown = [
            f"{each.step} {each.column} {each.judgement} {_change(each.before, each.after)}"
            for each in compared.changes
            if each.judgement == "worse"
        ]
        parts.append(f"{compared.text}{': ' if shown else ''}{', '.join(shown)}")
    return "; ".join(parts)


def entry_view(entry: ScheduleEntry) -> dict[str, Any]:
    schedule, running = entry.schedule, entry.progress.under_way
    return {
        "name": schedule.name,
        "file": schedule.file,
        "by": schedule.principal,
        "cron": schedule.times.cron,
        "zone": schedule.times.zone,
        "every_s": schedule.times.every,
        "catch_up": next(
            word for word, policy in CATCH_UP.items() if policy == schedule.times.misfire
        ),
        "compare_to": schedule.compare_to,
        "keep_s": schedule.keep_s,
        "bundle": schedule.bundle,
        "added": moment(schedule.added_at),
        "next": moment(entry.next_due),
        "running": None if running is None else run_view(running),
        "last": None if entry.last is None else run_view(entry.last),
    }


def run_view(run: ScheduledRun) -> dict[str, Any]:
    return {
        "time": moment(run.due),
        "job": run.job,
        "state": run.state,
        "verdict": run.verdict,
        "exit_code": run.exit_code,
        "reason": run.reason,
        "ended": moment(run.ended) if run.ended else None,
        "has_result": bool(run.result),
        "comparison": run.comparison,
    }


def _now(run: ScheduledRun | None) -> str:
    if run is None:
        return "-"
    return f"{run.state} {run.job}".rstrip() if run.state in UNDER_WAY else run.state


def _last(run: ScheduledRun | None) -> str:
    if run is None:
        return "-"
    words = [run.state, run.verdict, "" if run.exit_code is None else f"exit {run.exit_code}"]
    return " ".join(word for word in words if word)


def _change(before: float, after: float) -> str:
    return f"{100.0 * (after / before - 1.0):+.0f} %" if before else f"to {three_digits(after)}"


# The store.


@asynccontextmanager
async def _open_client(
    access: ClusterAccess,
) -> AsyncGenerator[tuple[ScheduleClient, Callable[[], Awaitable[bool]]]]:
    place = access.route
    assert isinstance(place, StoreRoute), "there is a store"
    async with client_runtime() as (runtime, tasks), place.open(runtime, tasks) as agents:

        async def coordinated() -> bool:
            try:
                await find_leader(agents.store)
            except ConnectionError:
                return False
            return True

        yield (
            ScheduleClient(agents.store, agents.runtime, access.secrets, access.cluster),
            coordinated,
        )
