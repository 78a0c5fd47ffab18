"""`squall jobs | status | watch | cancel | why | adjust`: inspects and changes jobs.

Each prints lines for people, or with `--json` one JSON document on stdout.
"""

from __future__ import annotations

import asyncio
from argparse import Namespace
from collections.abc import Callable, Coroutine, Sequence
from contextlib import nullcontext
from typing import Any

from squall.api.errors import ConfigError, UsageError
from squall.api.quantities import parse_count, parse_rate
from squall.cli.run.command import exit_code, print_live_losses, print_summary, write_outputs
from squall.cli.shared.cluster_access import client_access
from squall.cli.shared.job_progress import JobFollower
from squall.cli.shared.live_feed import FeedingPresenter
from squall.cli.shared.local_runs import ask_local_run, find_local_run, is_local_name
from squall.cli.shared.presenters import Presenter, mode_of, presenter_of
from squall.cli.shared.run_options import seconds
from squall.cli.shared.web_page import web_page_of
from squall.cluster.client.cluster_client import (
    RECONNECT_TIMEOUT_S,
    TERMINAL,
    ClusterClient,
    outcome_from,
)
from squall.cluster.client.connection import connected
from squall.cluster.protocol.job_keys import JobId
from squall.cluster.protocol.messages import AdjustJob, JobView, PartView, WorkflowView
from squall.engine.load_change import LoadChange
from squall.engine.outcome import RunOutcome
from squall.engine.run_options import RunOptions
from squall.reporting.number_format import (
    duration,
    length,
    percent,
    percent_cell,
    three_digits,
)
from squall.reporting.outputs.delivery import parse_output, prepare, secrets_of
from squall.reporting.outputs.live.feed import LiveFeed
from squall.reporting.redaction import Redactor
from squall.reporting.text.layout import aligned
from squall.reporting.text.progress_lines import ProgressLines
from squall.reporting.text.standard_streams import print_json, print_or_drop, value_of
from squall.stats.snapshot import Snapshot

STATUS_HEAD = (
    "WORKFLOW", "STATE", "LAYER", "PRIORITY", "CORES", "WORKERS", "ITERATIONS", "REQUESTS",
    "FAILED", "ATTEMPTS", "LOST", "",
)  # fmt: skip
DATACENTER_HEAD = ("DC", "PART", "TRY", "STATE", "WORKERS", "RATE", "FAILED", "P95", "")
Answer = Callable[[ClusterClient, Namespace], Coroutine[Any, Any, int]]


def execute(arguments: Namespace) -> int:
    return asyncio.run(_answered(arguments, _ANSWERS[arguments.command]))


async def _answered(arguments: Namespace, answer: Answer) -> int:
    timeout_s = RECONNECT_TIMEOUT_S if arguments.command == "watch" else None
    if arguments.command == "adjust" and is_local_name(arguments.job):
        return _adjust_local(arguments)
    async with connected(client_access(arguments), timeout_s) as connection:
        await connection.ready(within_s=timeout_s)
        return await answer(connection.client, arguments)


async def _jobs(client: ClusterClient, arguments: Namespace) -> int:
    jobs = await client.jobs(_count(arguments.limit, "--limit"))
    if arguments.json:
        return print_json({"jobs": jobs})
    rows = [("JOB", "STATE", "FILE", "BY", "AGE", "ELAPSED", "")]
    rows += [
        (job.job, job.state, job.file, job.principal, length(job.age_s), *_rest(job))
        for job in jobs
    ]
    print_or_drop("\n".join(aligned(rows)) if jobs else "no jobs")
    return 0


async def _status(client: ClusterClient, arguments: Namespace) -> int:
    view = await client.counted_status(JobId(arguments.job))
    if arguments.json:
        return print_json(view)
    running = view.state not in TERMINAL and bool(view.datacenters)
    snapshot = await client.latest(view.job) if running else None
    print_or_drop("\n".join(status_lines(view, snapshot)))
    return 0


def status_lines(view: JobView, snapshot: Snapshot | None = None) -> list[str]:
    """`snapshot` has the live numbers of the datacenters."""
    head = [view.job, view.state, view.file, f"by {view.principal}" if view.principal else ""]
    head.append(f"submitted {length(view.age_s)} ago")
    head += [f"led by {view.leader}" if view.leader and view.state not in TERMINAL else ""]
    head.append(_remark(view))
    rows = [STATUS_HEAD, *(_workflow_row(each) for each in view.workflows)]
    lines = ["  ".join(part for part in head if part)]
    if view.workflows:
        lines += aligned(rows)
    if view.datacenters:
        lines += aligned([DATACENTER_HEAD, *datacenter_rows(view.datacenters, snapshot)])
    lines += view.adjustments
    lines += view.silent
    if view.state in TERMINAL:
        lines.append(f"exit code {view.exit_code}; squall watch {view.job} shows the result")
    return lines


def _workflow_row(each: WorkflowView) -> tuple[str, ...]:
    known = each.counters
    counts = (known.made, known.sent, known.failed) if known is not None else (None, None, None)
    return (
        each.name,
        each.state,
        str(each.layer + 1),
        each.priority,
        str(each.cores),
        ",".join(each.workers) or "-",
        *("-" if n is None else f"{n:,}" for n in counts),
        str(each.attempts),
        str(each.lost),
        each.error or each.adjusted,
    )


def datacenter_rows(parts: Sequence[PartView], snapshot: Snapshot | None) -> list[tuple[str, ...]]:
    """A row for each part of the job, with what its datacenter does at this moment."""
    shown = {each.name: each for each in snapshot.datacenters} if snapshot is not None else {}
    rows: list[tuple[str, ...]] = []
    for part in parts:
        now = shown.get(part.datacenter)
        numbers = ("-", "-", "-", "-")
        if now is not None and now.samples_now:
            target = "" if now.target_per_s is None else f" of {three_digits(now.target_per_s)}"
            numbers = (
                str(now.workers),
                f"{three_digits(now.iterations_now_per_s)}{target}",
                percent_cell(now.failed_now_share),
                duration(now.p95_now_s),
            )
        silent = now.silent_s if now is not None else 0.0
        rows.append(
            (
                part.datacenter or "-",
                percent(part.part),
                str(part.tries),
                part.state,
                *numbers,
                f"silent for {silent:.0f} s" if silent else part.reason,
            )
        )
    return rows


async def _watch(client: ClusterClient, arguments: Namespace) -> int:
    """Shows the job as `squall run --to` does; Ctrl-C leaves the job running."""
    mode = mode_of(arguments.ui, quiet=arguments.quiet or arguments.json, once=False)
    prepared = prepare([parse_output(text) for text in arguments.output])
    redact = Redactor(secrets_of(prepared))
    lines = ProgressLines(redact, quiet=arguments.quiet or arguments.json)
    feed = LiveFeed(prepared, RunOptions(), redact)
    presenter = presenter_of(mode, lines)
    page = web_page_of(arguments, f"job {arguments.job}")
    if page is not None:
        page.start()
        presenter = page.beside(presenter)
    presenter = FeedingPresenter(presenter, feed)
    with nullcontext() if page is None else page.closed_at_the_end():
        try:
            outcome = await _followed(client, arguments, presenter)
        except BaseException:
            print_live_losses(feed, "watch")
            raise
        if not feed.has_begun:
            # The job was over before: live outputs get its totals alone.
            feed.on_manifest(outcome.manifest)
        complete = write_outputs(outcome, prepared, RunOptions(), redact, feed, "watch")
        if page is not None:
            page.finish(outcome, redact)
    if arguments.json:
        from squall.reporting.document.build import build_document, encode_document

        print_or_drop(encode_document(build_document(outcome)).decode().rstrip("\n"), exact=True)
    else:
        print_summary(outcome, None, redact, no_color=arguments.no_color)
    complete = complete or not arguments.require_outputs
    return exit_code(outcome, exit_zero=False, complete=complete)


async def _followed(
    client: ClusterClient, arguments: Namespace, presenter: Presenter
) -> RunOutcome:
    job = JobId(arguments.job)
    presenter.on_run(job)
    try:
        status = await client.job_status(job)
        if status.view.state not in TERMINAL:
            if status.manifest is not None:
                presenter.on_manifest(status.manifest, sum(w.cores for w in status.view.workflows))
            await JobFollower(
                client, job, presenter, cancels=False, shows_events=not arguments.quiet
            ).follow(after=-1)
        return outcome_from(await client.result(job))
    finally:
        await presenter.close()


async def _cancel(client: ClusterClient, arguments: Namespace) -> int:
    job = JobId(arguments.job)
    answer = await client.cancel(job, now=arguments.now, reason=arguments.reason)
    if arguments.json:
        return print_json({"job": job} | value_of(answer))
    if answer.state in TERMINAL:
        print_or_drop(f"job {job} has already ended: {answer.state}")
    elif answer.repeated:
        print_or_drop(f"job {job} was already cancelled and is {answer.state}")
    else:
        print_or_drop(f"job {job} is being cancelled")
    return 0


async def _why(client: ClusterClient, arguments: Namespace) -> int:
    answer = await client.why(JobId(arguments.job))
    if arguments.json:
        return print_json({"job": JobId(arguments.job)} | value_of(answer))
    lines = list(answer.lines)
    lines += ["", *answer.events] if answer.events else []
    print_or_drop("\n".join(lines))
    return 0


async def _adjust(client: ClusterClient, arguments: Namespace) -> int:
    change = adjustment_of(arguments)
    answer = await client.adjust(change)
    if arguments.json:
        return print_json({"job": change.job} | value_of(answer))
    effects = [f"change {answer.adjust_seq} is accepted"] if answer.adjust_seq else []
    if change.extend_s is not None:
        effects.append(f"it may run {length(answer.extended_s)} past its timeout")
    print_or_drop(f"job {change.job}: {', '.join(effects)}")
    return 0


def _adjust_local(arguments: Namespace) -> int:
    """Changes a run on this machine through its page."""
    change = adjustment_of(arguments)
    if change.extend_s is not None or change.reason:
        flag = "--extend" if change.extend_s is not None else "--reason"
        raise UsageError(f"{flag} is for a job of a cluster; a run on this machine has none")
    run = find_local_run(change.job)
    asked = LoadChange(
        workflow=change.workflow,
        paused=change.paused,
        rate_per_s=change.rate_per_s,
        vus=change.vus,
    )
    ask_local_run(run, "/api/change", value_of(asked))
    if arguments.json:
        return print_json({"job": change.job, "file": run.what})
    print_or_drop(f"{run.what}: the change is accepted")
    return 0


def adjustment_of(arguments: Namespace) -> AdjustJob:
    """`--rate Shop=300/s` names a workflow; `--rate 300/s` means the only one."""
    if arguments.pause and arguments.resume:
        raise UsageError("--pause and --resume: choose one")
    names: set[str] = set()

    def named(text: str) -> str:
        name, equals, value = text.partition("=")
        names.add(name.strip() if equals else "")
        return value if equals else text

    rate = None if arguments.rate is None else _rate(named(arguments.rate))
    vus = None if arguments.vus is None else _count(named(arguments.vus), "--vus")
    extend_s = None if arguments.extend is None else seconds(arguments.extend, "--extend")
    wishes = (rate, vus, extend_s, arguments.pause or None, arguments.resume or None)
    if all(wish is None for wish in wishes):
        raise UsageError("nothing to change: give --rate, --vus, --pause, --resume or --extend")
    if len(names) > 1:
        raise UsageError("--rate and --vus name different workflows: change one at a time")
    return AdjustJob(
        job=JobId(arguments.job),
        workflow=names.pop() if names else "",
        paused=True if arguments.pause else False if arguments.resume else None,
        rate_per_s=rate,
        vus=vus,
        extend_s=extend_s,
        reason=arguments.reason,
    )


def _rate(text: str) -> float:
    try:
        return parse_rate(text, "--rate")
    except ConfigError as error:
        raise UsageError(str(error)) from None


def _count(text: str, flag: str) -> int:
    try:
        return parse_count(text, flag)
    except ConfigError as error:
        raise UsageError(str(error)) from None


def _rest(job: JobView) -> tuple[str, str]:
    return length(job.elapsed_s) if job.elapsed_s else "-", _remark(job)


def _remark(job: JobView) -> str:
    if job.position:
        return f"place {job.position} in the queue"
    return job.reason


_ANSWERS: dict[str, Answer] = {
    "jobs": _jobs,
    "status": _status,
    "watch": _watch,
    "cancel": _cancel,
    "why": _why,
    "adjust": _adjust,
}
