"""`squall run FILE --to eu=HOST:PORT,us=HOST:PORT [--split eu=60%,us=40%]`: a run in several
datacenters that this client splits, follows and merges, without gates.

The first Ctrl-C cancels all parts gracefully, the second immediately; after both the result is
still awaited and shown. A third one leaves.
"""

from __future__ import annotations

import asyncio
import sys
from argparse import Namespace
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from squall.api.errors import UsageError
from squall.cli.shared.cluster_access import client_access
from squall.cli.shared.cluster_run import check_file
from squall.cli.shared.job_progress import LeftJob, interrupts
from squall.cli.shared.run_options import seconds
from squall.cluster.client.access import ClusterAccess
from squall.cluster.client.cluster_client import RECONNECT_TIMEOUT_S, cores_of, outcome_from
from squall.cluster.client.connection import ClientConnection, connected
from squall.cluster.client.datacenter_options import Weights, addresses_of, split_of
from squall.cluster.client.pack import packed
from squall.cluster.client.split_job import SplitJob, SplitObserver, reach_all, submit_split
from squall.cluster.protocol.messages import StreamEvent
from squall.engine.run_controls import RunControls
from squall.engine.run_options import RunOptions
from squall.reporting.outputs.registry import check_reporters
from squall.reporting.text.control_characters import one_line
from squall.runtime.real.runtime import CLOCK

if TYPE_CHECKING:
    from squall.cli.shared.presenters import Presenter
    from squall.engine.outcome import RunOutcome


@dataclass(frozen=True)
class SplitDestination:
    """The datacenters of a run, and how long to wait for one of them."""

    accesses: Mapping[str, ClusterAccess]
    weights: Weights
    key: str
    patience_s: float
    asked_for_s: float | None
    """The value of `--patience`; None without the flag."""
    quiet: bool


def split_destination_of(arguments: Namespace) -> SplitDestination | None:
    """None if `--to` names no datacenters."""
    given = vars(arguments)
    addresses = addresses_of(given.get("to") or "")
    if addresses is None:
        return None
    for flag in ("dc", "dc_fallback", "on_dc_loss"):
        if given.get(flag):
            shown = flag.replace("_", "-")
            raise UsageError(
                f"--{shown} is for a gate; the datacenters of --to are split with --split"
            )
    if given.get("once"):
        raise UsageError("--once runs on this machine only; leave out --to")
    weights = split_of(given.get("split"), list(addresses))
    patience: str | None = given.get("patience")
    patience_s = RECONNECT_TIMEOUT_S if patience is None else seconds(patience, "--patience")
    accesses = {
        name: client_access(Namespace(**{**given, "to": managers}), comes_first=True)
        for name, managers in addresses.items()
    }
    return SplitDestination(
        accesses=accesses,
        weights=weights,
        key=given.get("key") or "",
        patience_s=patience_s,
        asked_for_s=None if patience is None else patience_s,
        quiet=bool(given.get("quiet")),
    )


def refuse_split(arguments: Namespace) -> None:
    """A command that does not follow its job cannot merge the parts of datacenters."""
    if addresses_of(vars(arguments).get("to") or "") is not None:
        raise UsageError(
            "--to names datacenters: this client would have to follow and merge their parts; "
            "use squall run without --detach, or submit to a gate with --dc"
        )


def perform_split(
    options: RunOptions, presenter: Presenter, destination: SplitDestination
) -> RunOutcome:
    """Runs in several datacenters; otherwise as `squall.cli.run.command.perform`."""
    return asyncio.run(_performed(options, presenter, destination))


async def _performed(
    options: RunOptions, presenter: Presenter, destination: SplitDestination
) -> RunOutcome:
    try:
        check_file(options)
        async with AsyncExitStack() as stack:
            connections: dict[str, ClientConnection] = {}
            for name, access in destination.accesses.items():
                opened = connected(access, destination.patience_s)
                connections[name] = await stack.enter_async_context(opened)
            nodes = await reach_all(connections, destination.asked_for_s)
            submission, bundle = await packed(options, presenter.on_log, list(connections))
            check_reporters(submission.manifest)
            job = await submit_split(
                connections,
                destination.weights,
                submission,
                bundle.data,
                clock=CLOCK,
                key=destination.key,
            )
            if not destination.quiet:
                _print_jobs(job)
            cores = sum(cores_of(each) for each in nodes.values())
            presenter.on_run(job.id)
            presenter.on_manifest(submission.manifest, cores)
            try:
                await _Follower(job, presenter, shows_events=not destination.quiet).follow()
            except LeftJob:
                await job.close()
                raise
            result = await job.result()
            await job.close()
            return outcome_from(result, options)
    finally:
        await presenter.close()


def _print_jobs(job: SplitJob) -> None:
    for each, part in zip(job.jobs, job.totals.parts, strict=True):
        known = "" if each.created else " (already submitted with this key)"
        where = each.connection.client.managers.shown
        text = f"job {each.job} on {where}: {part.part * 100:.4g} % of the load in {each.name}"
        print(f"{text}{known}", file=sys.stderr)


class _Follower:
    """Presents all parts until their end; Ctrl-C cancels them."""

    def __init__(self, job: SplitJob, presenter: Presenter, *, shows_events: bool) -> None:
        self._job = job
        self._presenter = presenter
        self._shows_events = shows_events
        self._interruptions = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._left: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def follow(self) -> None:
        presenter = self._presenter
        presenter.on_controls(RunControls(self.interrupt, self._job.change))
        observer = SplitObserver(
            on_snapshot=presenter.on_snapshot,
            histograms=presenter.wants_histograms,
            on_line=lambda prefix, text: presenter.on_log(one_line(prefix), one_line(text)),
            on_event=self._event,
            on_notice=lambda text: presenter.on_log("", one_line(text)),
        )
        with interrupts(self.interrupt):
            running = asyncio.ensure_future(self._job.run(observer))
            try:
                await asyncio.wait((running, self._left), return_when=asyncio.FIRST_COMPLETED)
                if not running.done():
                    jobs = ", ".join(f"{each.job} in {each.name}" for each in self._job.jobs)
                    raise LeftJob(f"left; the jobs are being cancelled: {jobs}")
                running.result()
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
                for task in self._tasks:
                    task.cancel()

    def interrupt(self, now: bool = False) -> None:
        """The first call cancels gracefully, the second immediately; with `now` the first does
        too."""
        self._interruptions = max(self._interruptions + 1, 2 if now else 1)
        if self._interruptions > 2:
            if not self._left.done():
                self._left.set_result(None)
            return
        self._presenter.on_interrupt(self._interruptions)
        task = asyncio.ensure_future(self._job.cancel(now=self._interruptions > 1))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _event(self, datacenter: str, event: StreamEvent) -> None:
        if self._shows_events:
            text = f"{event.at_s:7.1f} s  {datacenter}  {one_line(event.text)}"
            self._presenter.on_log("", text)
