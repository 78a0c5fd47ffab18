"""`squall schedule add | list | remove | history | result`: load tests at their times.

A schedule lies in the store where agents meet. It is written there by this command, whether
an agent runs or not; whoever coordinates the agents runs it. A mistake in what was typed, the
file included, is told before anything is stored.
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
from squall.cli.access import Access, client_access, store_url
from squall.cli.connect import connected
from squall.cli.jobs import print_json
from squall.cli.options import run_options, seconds
from squall.cli.remote import packed
from squall.cli.streams import print_or_drop
from squall.coordination.scheduler.records import JobRecord
from squall.engine.loading import refuse_no_python_file
from squall.engine.options import RunOptions
from squall.nodes.agent.leader import find_leader
from squall.nodes.agent.schedules_book import Entry, ScheduleBook, Wish, check_wish
from squall.nodes.agent.schedules_records import GRACE_S, NAME_MAX, UNDER_WAY, Run
from squall.reporting.format import moment
from squall.reporting.layout import aligned

if TYPE_CHECKING:
    from squall.coordination.scheduler.records import Misfire

NO_STORE = "schedules lie in a store: name it with --store URL or SQUALL_STORE"
NOBODY = "no agent coordinates at the moment: nothing runs until one does"
CATCH_UP: dict[str, Misfire] = {"skip": "skip", "once": "run_once", "all": "run_all"}
SHORTEST_S = 1.0

Answer = Callable[[ScheduleBook, Namespace], Awaitable[int]]


def execute(arguments: Namespace) -> int:
    if not store_url(arguments):
        raise UsageError(NO_STORE)
    access = client_access(arguments, comes_first=arguments.schedule_command == "add")
    if arguments.schedule_command == "add":
        return asyncio.run(_added(arguments, access))
    return asyncio.run(_answered(arguments, access))


async def _answered(arguments: Namespace, access: Access) -> int:
    async with _book(access) as (book, _):
        return await _ANSWERS[arguments.schedule_command](book, arguments)


# Adding.


async def _added(arguments: Namespace, access: Access) -> int:
    options = run_options(arguments)
    wish = wish_of(arguments, options)
    if options.file:
        refuse_no_python_file(Path(options.file), options.file)
    async with _book(access) as (book, coordinated):
        await book.refuse_taken(wish.name)
        try:
            submission, bundle = await packed(options, None)
        except SquallError as error:
            # What cannot be run once cannot be scheduled: the command line is refused.
            raise UsageError(str(error)) from None
        entry = await book.add(wish, submission, bundle)
        if arguments.json:
            return print_json(entry_view(entry))
        print_or_drop(f"schedule {wish.name}: {times_text(entry)}, next {moment(entry.next_due)}")
        if not await coordinated():
            print(NOBODY, file=sys.stderr)
    return 0


def wish_of(arguments: Namespace, options: RunOptions) -> Wish:
    if bool(arguments.cron) == bool(arguments.every):
        raise UsageError('when: give one of --cron "*/15 * * * *" and --every 15m')
    if arguments.zone and not arguments.cron:
        raise UsageError("--zone is for --cron")
    every_s = seconds(arguments.every, "--every") if arguments.every else 0.0
    if arguments.every and every_s < SHORTEST_S:
        raise UsageError(f"--every {arguments.every}: at least {SHORTEST_S:g}s")
    wish = Wish(
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
    check_wish(wish)
    return wish


def name_of(options: RunOptions) -> str:
    """Of the file, or of the host."""
    what = Path(options.file).stem if options.file else urlsplit(options.url).hostname or ""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", what)[:NAME_MAX].strip(".-") or "load"


# Answers.


async def _list(book: ScheduleBook, arguments: Namespace) -> int:
    entries = await book.entries()
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
            _now(each.standing.under_way),
            _last(each.last),
        )
        for each in entries
    ]
    print_or_drop("\n".join(aligned(rows)) if entries else "no schedules")
    return 0


async def _remove(book: ScheduleBook, arguments: Namespace) -> int:
    entry = await book.remove(arguments.name)
    if arguments.json:
        return print_json(entry_view(entry))
    running = entry.standing.under_way
    goes_on = f"; job {running.job} of it goes on" if running is not None and running.job else ""
    print_or_drop(f"schedule {arguments.name} is removed, with its history{goes_on}")
    return 0


async def _history(book: ScheduleBook, arguments: Namespace) -> int:
    entry = await book.entry(arguments.name)
    runs = list(entry.standing.runs)
    if entry.standing.under_way is not None:
        runs.append(entry.standing.under_way)
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


async def _result(book: ScheduleBook, arguments: Namespace) -> int:
    """As `squall watch` shows it at the end of a job."""
    from squall.cli.remote import outcome_from

    outcome = outcome_from(await book.result(arguments.name, arguments.job or ""))
    if arguments.json:
        from squall.reporting.document import build_document, encode_document

        print_or_drop(encode_document(build_document(outcome)).decode().rstrip("\n"))
    else:
        from squall.cli.run import print_summary
        from squall.reporting.secrets import Redactor

        print_summary(outcome, None, Redactor(()), no_color=arguments.no_color)
    return int(outcome.exit_code)


_ANSWERS: dict[str, Answer] = {
    "list": _list,
    "remove": _remove,
    "history": _history,
    "result": _result,
}


# Words.


def times_text(entry: Entry) -> str:
    times = entry.schedule.times
    if not times.cron:
        return f"every {format_duration(times.every, compact=True)}"
    return times.cron if times.zone == "UTC" else f"{times.cron} ({times.zone})"


def remark(run: Run) -> str:
    """Why it did not run, or what changed since the run before."""
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


def entry_view(entry: Entry) -> dict[str, Any]:
    schedule, running = entry.schedule, entry.standing.under_way
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


def run_view(run: Run) -> dict[str, Any]:
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


def _now(run: Run | None) -> str:
    if run is None:
        return "-"
    return f"{run.state} {run.job}".rstrip() if run.state in UNDER_WAY else run.state


def _last(run: Run | None) -> str:
    if run is None:
        return "-"
    words = [run.state, run.verdict, "" if run.exit_code is None else f"exit {run.exit_code}"]
    return " ".join(word for word in words if word)


def _change(before: float, after: float) -> str:
    return f"{100.0 * (after / before - 1.0):+.0f} %" if before else f"to {after:.3g}"


# The store.


@asynccontextmanager
async def _book(
    access: Access,
) -> AsyncGenerator[tuple[ScheduleBook, Callable[[], Awaitable[bool]]]]:
    async with connected(access) as connection:
        agents = connection.agents
        assert agents is not None, "there is a store"

        async def coordinated() -> bool:
            try:
                await find_leader(agents.store)
            except ConnectionError:
                return False
            return True

        yield (
            ScheduleBook(agents.store, agents.world, access.secrets, access.cluster),
            coordinated,
        )
