"""`squall run FILE --to HOST:PORT`, `--store URL` and `squall submit`: a run on a cluster.

The file is loaded on this machine first, so that mistakes are reported here. Then it is bundled
with its modules and data files, submitted and followed; the code of a local run shows the result.
"""

from __future__ import annotations

import asyncio
import math
import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from squall.api.errors import UsageError
from squall.cli.shared.cluster_access import client_access
from squall.cli.shared.job_progress import JobFollower, LeftJob
from squall.cli.shared.run_options import seconds
from squall.cluster.client.access import ClusterAccess
from squall.cluster.client.cluster_client import RECONNECT_TIMEOUT_S, cluster_cores, outcome_from
from squall.cluster.client.connection import ClientConnection, connected
from squall.cluster.client.datacenter_options import targets_of
from squall.cluster.client.pack import packed
from squall.cluster.client.submission_journal import SubmissionEntry
from squall.cluster.protocol.bundle import Bundle
from squall.cluster.protocol.job_keys import JobId
from squall.cluster.protocol.submission import Submission, Targets
from squall.engine.plan.author_file import refuse_no_python_file
from squall.engine.run.local_run import OnLog
from squall.engine.run_options import RunOptions
from squall.reporting.outputs.registry import check_reporters

if TYPE_CHECKING:
    from squall.cli.shared.presenters import Presenter
    from squall.engine.outcome import RunOutcome


@dataclass(frozen=True)
class Destination:
    """Where a run goes, and how long to wait for the cluster."""

    access: ClusterAccess
    key: str = ""
    patience_s: float = RECONNECT_TIMEOUT_S
    quiet: bool = False
    waits_s: float = math.inf
    """How long to wait for a first agent behind a store."""
    targets: Targets | None = None
    """The datacenters that a gate is asked for."""
    direct: bool = False
    """Go to a datacenter although it takes its jobs from gates."""

    @property
    def asked_for_s(self) -> float | None:
        """The value of `--patience`. None without the flag: an absent cluster is then reported as
        soon as a query reports it."""
        return self.patience_s if math.isfinite(self.waits_s) else None


def destination_of(arguments: Namespace) -> Destination | None:
    """None if the run stays on this machine. Only `--to` and `--store` send it away: a variable
    that is set for `squall jobs` must not move a run that was meant to be local."""
    given = vars(arguments)
    if not (given.get("to") or given.get("store") or given.get("detach")):
        for flag in (
            *("key", "patience", "prefix", "on_agent_loss", "on_control_loss"),
            *("split", "dc", "dc_fallback", "on_dc_loss", "direct"),
        ):
            if given.get(flag):
                shown = flag.replace("_", "-")
                raise UsageError(
                    f"--{shown} is for a run on a cluster: add --to HOST:PORT or --store URL"
                )
        return None
    targets = targets_of(given.get("dc"), given.get("dc_fallback"), given.get("on_dc_loss"))
    if targets is not None and given.get("store"):
        raise UsageError("--dc chooses datacenters of a gate, and a store has none: use --to GATE")
    if given.get("split"):
        raise UsageError("--split needs the datacenters: write --to eu=HOST:PORT,us=HOST:PORT")
    if given.get("once"):
        raise UsageError("--once runs on this machine only; leave out --to and --store")
    patience: str | None = given.get("patience")
    patience_s = RECONNECT_TIMEOUT_S if patience is None else seconds(patience, "--patience")
    return Destination(
        client_access(arguments, comes_first=True),
        given.get("key") or "",
        patience_s,
        bool(given.get("quiet")),
        math.inf if patience is None else patience_s,
        targets,
        bool(given.get("direct")),
    )


def perform_remote(
    options: RunOptions, presenter: Presenter, destination: Destination
) -> RunOutcome:
    """Runs on a cluster; otherwise as `squall.cli.run.command.perform`."""
    return asyncio.run(_performed(options, presenter, destination))


def submit_only(options: RunOptions, destination: Destination) -> tuple[JobId, bool]:
    """Submits and returns the job's id, and whether the job is new."""
    return asyncio.run(_submitted(options, destination))


def check_file(options: RunOptions) -> None:
    """Reports a mistyped name before the cluster is contacted."""
    if options.file:
        refuse_no_python_file(Path(options.file), options.file)


async def _performed(
    options: RunOptions, presenter: Presenter, destination: Destination
) -> RunOutcome:
    try:
        check_file(options)
        async with connected(destination.access, destination.patience_s) as connection:
            await connection.ready(lambda text: presenter.on_log("", text), destination.waits_s)
            # Asked before the file is loaded, so that an absent cluster is reported at once.
            nodes = await connection.client.nodes(destination.asked_for_s)
            datacenters = await connection.client.datacenters_of(destination.targets, nodes)
            submission, bundle = await _packed(options, destination, datacenters, presenter.on_log)
            check_reporters(submission.manifest)
            cores = cluster_cores(nodes)
            job, entry = await _submit(connection, submission, bundle, destination)
            presenter.on_run(job)
            presenter.on_manifest(submission.manifest, cores)
            following = JobFollower(
                connection.client, job, presenter, shows_events=not destination.quiet
            )
            try:
                await following.follow()
            except LeftJob:
                # The user cancelled it: the same command again makes a new job.
                await connection.journal.close(entry)
                raise
            result = await connection.client.result(job, known=True)
            await connection.journal.close(entry)
            return outcome_from(result, options)
    finally:
        await presenter.close()


async def _packed(
    options: RunOptions,
    destination: Destination,
    datacenters: Sequence[str],
    on_log: OnLog | None = None,
) -> tuple[Submission, Bundle]:
    """`datacenters` are those that a threshold may name."""
    submission, bundle = await packed(options, on_log, datacenters)
    if destination.targets is not None:
        submission = msgspec.structs.replace(submission, targets=destination.targets)
    return submission, bundle


async def _submit(
    connection: ClientConnection, submission: Submission, bundle: Bundle, destination: Destination
) -> tuple[JobId, SubmissionEntry]:
    accepted, entry = await connection.client.submit(
        submission,
        bundle.data,
        connection.journal,
        destination.key,
        direct=destination.direct,
    )
    if not destination.quiet:
        known = "" if accepted.created else " (already submitted with this key)"
        print(f"job {accepted.job} on {connection.client.managers.shown}{known}", file=sys.stderr)
    return accepted.job, entry


def _print_notice(text: str) -> None:
    print(text, file=sys.stderr)


async def _submitted(options: RunOptions, destination: Destination) -> tuple[JobId, bool]:
    check_file(options)
    async with connected(destination.access, destination.patience_s) as connection:
        await connection.ready(_print_notice, destination.waits_s)
        nodes = await connection.client.nodes(destination.asked_for_s)
        datacenters = await connection.client.datacenters_of(destination.targets, nodes)
        submission, bundle = await _packed(options, destination, datacenters)
        for text in submission.manifest.all_warnings:
            _print_notice(f"warning: {text}")
        accepted, entry = await connection.client.submit(
            submission,
            bundle.data,
            connection.journal,
            destination.key,
            direct=destination.direct,
        )
        await connection.journal.close(entry)
        return accepted.job, accepted.created
