"""`squall run FILE --to HOST:PORT`, `--store URL` and `squall submit`: the same run on a
cluster.

The file is loaded here first, so that what is wrong with it is said here; then it is
bundled with its modules and data files, submitted, followed and its result shown by the
same code as a local run's.
"""

from __future__ import annotations

import asyncio
import math
import sys
from argparse import Namespace
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from squall.api.errors import UsageError
from squall.cli.access import Access, client_access
from squall.cli.connect import Connection, connected
from squall.cli.following import Following, Left
from squall.cli.options import seconds
from squall.engine.contents import read_contents
from squall.engine.loading import refuse_no_python_file
from squall.engine.local import OnLog, error_of, load_with_imports
from squall.engine.options import RunOptions
from squall.nodes.bundle import Bundle
from squall.nodes.client.client import PATIENCE_S
from squall.nodes.client.journal import Entry
from squall.nodes.client.packing import pack
from squall.nodes.identity import JobId
from squall.nodes.results.result import JobResult
from squall.nodes.submission import Submission

if TYPE_CHECKING:
    from squall.cli.presenting import Presenter
    from squall.engine.outcome import RunOutcome
    from squall.nodes.messages import NodeView


@dataclass(frozen=True)
class Destination:
    """Where a run goes, and how patiently it is waited for."""

    access: Access
    key: str = ""
    patience_s: float = PATIENCE_S
    quiet: bool = False
    waits_s: float = math.inf
    """How long agents are waited for where there are none yet."""

    @property
    def asked_for_s(self) -> float:
        """The patience that was asked for; 0: none was, and a cluster that is not there is
        said at once."""
        return self.patience_s if math.isfinite(self.waits_s) else 0.0


def destination_of(arguments: Namespace) -> Destination | None:
    """None: the run stays on this machine. Only `--to` and `--store` send it away: a
    variable that is set for `squall jobs` must not move a run that was meant to be local."""
    given = vars(arguments)
    if not (given.get("to") or given.get("store") or given.get("detach")):
        for flag in ("key", "patience", "prefix", "on_agent_loss"):
            if given.get(flag):
                shown = flag.replace("_", "-")
                raise UsageError(
                    f"--{shown} is for a run on a cluster: add --to HOST:PORT or --store URL"
                )
        return None
    if given.get("once"):
        raise UsageError("--once shows every exchange on this machine; leave out --to and --store")
    patience: str | None = given.get("patience")
    patience_s = PATIENCE_S if patience is None else seconds(patience, "--patience")
    return Destination(
        client_access(arguments, comes_first=True),
        given.get("key") or "",
        patience_s,
        bool(given.get("quiet")),
        math.inf if patience is None else patience_s,
    )


def perform_remote(
    options: RunOptions, presenter: Presenter, destination: Destination
) -> RunOutcome:
    """As `squall.cli.run.perform`, on a cluster."""
    return asyncio.run(_performed(options, presenter, destination))


def submit_only(options: RunOptions, destination: Destination) -> tuple[JobId, bool]:
    """The job's id, and whether it is new."""
    return asyncio.run(_submitted(options, destination))


def _check_file(options: RunOptions) -> None:
    """A name that was mistyped is said before anyone is asked."""
    if options.file:
        refuse_no_python_file(Path(options.file), options.file)


async def packed(options: RunOptions, on_log: OnLog | None) -> tuple[Submission, Bundle]:
    loaded = await load_with_imports(options, on_log)
    return pack(loaded, read_contents(loaded, options))


def cores_of(nodes: Iterable[NodeView]) -> int:
    """Of the workers that may be given work."""
    away = ("gone", "silent", "draining", "drained")
    return sum(node.cores for node in nodes if node.role == "worker" and node.state not in away)


def outcome_from(result: JobResult, options: RunOptions | None = None) -> RunOutcome:
    """What was refused before anything ran is the same error as on this machine."""
    if result.refusal:
        raise error_of(result.refusal, result.refusal_code)
    from squall.nodes.results.result import outcome_of

    outcome = outcome_of(result)
    if options is not None and options.file:
        from squall.engine.run_info import git_commit

        outcome.info.git = git_commit(options.file)
    return outcome


async def _performed(
    options: RunOptions, presenter: Presenter, destination: Destination
) -> RunOutcome:
    try:
        _check_file(options)
        async with connected(destination.access, destination.patience_s) as connection:
            await connection.ready(lambda text: presenter.on_log("", text), destination.waits_s)
            # Before the file is loaded, so that a cluster that is not there is said at once.
            nodes = await connection.client.nodes(destination.asked_for_s)
            submission, bundle = await packed(options, presenter.on_log)
            cores = cores_of(nodes.nodes)
            job, entry = await _submit(connection, submission, bundle, destination)
            presenter.on_manifest(submission.manifest, cores)
            following = Following(
                connection.client, job, presenter, says_events=not destination.quiet
            )
            try:
                await following.to_the_end()
            except Left:
                # Cancelled on purpose: the same command again is a new job.
                await connection.journal.close(entry)
                raise
            result = await connection.client.result(job, known=True)
            await connection.journal.close(entry)
            return outcome_from(result, options)
    finally:
        await presenter.close()


async def _submit(
    connection: Connection, submission: Submission, bundle: Bundle, destination: Destination
) -> tuple[JobId, Entry]:
    accepted, entry = await connection.client.submit(
        submission, bundle.data, connection.journal, destination.key
    )
    if not destination.quiet:
        known = "" if accepted.created else " (submitted before with this key)"
        print(f"job {accepted.job} on {connection.client.managers.shown}{known}", file=sys.stderr)
    return accepted.job, entry


def _say(text: str) -> None:
    print(text, file=sys.stderr)


async def _submitted(options: RunOptions, destination: Destination) -> tuple[JobId, bool]:
    _check_file(options)
    async with connected(destination.access, destination.patience_s) as connection:
        await connection.ready(_say, destination.waits_s)
        await connection.client.nodes(destination.asked_for_s)
        submission, bundle = await packed(options, None)
        accepted, entry = await connection.client.submit(
            submission, bundle.data, connection.journal, destination.key
        )
        await connection.journal.close(entry)
        return accepted.job, accepted.created
