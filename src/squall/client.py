"""Runs jobs on a cluster from Python.

    async with squall.Client(["10.0.0.1:7400"]) as client:
        job = await client.submit("shop.py", vus=500, duration="10m")
        async for snapshot in job.stream():
            print(snapshot.elapsed_s)
        result = await job.result()

The secret comes from the arguments, the environment or squall.toml, as for the commands.
The result has the type that `squall.run` returns.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from squall.api.errors import SquallError, UsageError
from squall.api.workflow import Workflow
from squall.run_arguments import WorkflowLoad, checked_options, seconds_of

if TYPE_CHECKING:
    from squall.cluster.client.connection import ClientConnection
    from squall.cluster.client.submission_journal import SubmissionEntry
    from squall.cluster.protocol.job_keys import JobId
    from squall.cluster.protocol.messages import Followed, JobView, NodeView
    from squall.cluster.protocol.submission import Targets
    from squall.engine.run_options import RunOptions
    from squall.job_callbacks import Callback, JobCallbacks, UpdateKind
    from squall.reporting.run_result import Result, WorkflowResult
    from squall.stats.snapshot import Snapshot


class Client:
    """A connection to the managers of a cluster; use it with `async with`."""

    def __init__(
        self,
        managers: str | Sequence[str] = (),
        *,
        store: str = "",
        prefix: str = "",
        secret: str = "",
        secret_file: str | os.PathLike[str] = "",
        cluster: str = "",
        patience: str | float = 60.0,
    ) -> None:
        """`managers` are "host:port". With `store` ("redis://...", "s3://...", "sqlite:///...") the
        client talks to the agents that meet there instead. `patience` is how long to wait for a
        cluster that does not answer."""
        self._store = store
        self._prefix = prefix
        self._managers = managers if isinstance(managers, str) else ",".join(managers)
        self._secret = secret
        self._secret_file = os.fspath(secret_file)
        self._cluster = cluster
        self._reconnect_timeout_s = seconds_of("squall.Client", patience) or 60.0
        self._stack = AsyncExitStack()
        self._connection: ClientConnection | None = None

    async def __aenter__(self) -> Client:
        from squall.cluster.client.access import AccessOptions
        from squall.cluster.client.connection import connected
        from squall.store_mode.access import client_access

        options = AccessOptions(
            to=self._managers,
            store=self._store,
            prefix=self._prefix,
            secret_file=self._secret_file,
            secret=self._secret,
            cluster=self._cluster,
        )
        access = client_access(options, comes_first=True)
        self._connection = await self._stack.enter_async_context(
            connected(access, self._reconnect_timeout_s)
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        self._connection = None
        await self._stack.aclose()

    async def submit(
        self,
        workflow: type[Workflow] | str | os.PathLike[str],
        *,
        key: str = "",
        vus: int | None = None,
        duration: str | float | None = None,
        iterations: int | str | None = None,
        rate: str | float | None = None,
        stages: Sequence[str] = (),
        load: Mapping[str, WorkflowLoad] | None = None,
        host: str = "",
        env: Mapping[str, str] | None = None,
        secrets: Mapping[str, str] | None = None,
        thresholds: Sequence[str] = (),
        only: Sequence[str] = (),
        skip: Sequence[str] = (),
        seed: int = 0,
        tags: Mapping[str, str] | None = None,
        warmup: str | float | None = None,
        timeout: str | float | None = None,  # noqa: ASYNC109 of the job, not of this call
        insecure: bool = False,
        http2: bool = False,
        traceparent: bool = False,
        cacert: str | os.PathLike[str] = "",
        cert: str | os.PathLike[str] = "",
        cert_key: str | os.PathLike[str] = "",
        proxy: str = "",
        resolve: Mapping[str, str] | None = None,
        on_agent_loss: str = "replan",
        on_control_loss: str = "",
        dc: str = "",
        dc_fallback: bool | Sequence[str] = False,
        on_dc_loss: str = "",
        on_status_update: Callable[[JobView], Awaitable[None] | None] | None = None,
        on_progress_update: Callable[[Snapshot], Awaitable[None] | None] | None = None,
        on_workflow_result: Callable[[WorkflowResult], Awaitable[None] | None] | None = None,
    ) -> Job:
        """Bundles a file (or a class with its file) and submits it to the cluster. The same `key`
        gives the same job; arguments that `squall.run` has too mean the same. With a store it waits
        for an agent. `on_agent_loss` is "replan" (the load of a lost machine moves to others) or
        "continue" (it is dropped). `on_control_loss` is "stop" (load ends with its lease when no
        manager answers) or "continue" (it runs on, and may overlap with a replacement); without it
        the file decides.

        Gates take a job for several datacenters: `dc` is "eu=60%,us=40%", "eu,us" for equal parts,
        or "any:2"; `dc_fallback` True, or a list of names, lets a part move to another datacenter.
        `on_dc_loss` is "wait" (for a datacenter that is lost while it runs) or "drop" (its part).

        The callbacks are called while this client is open: with the job's status when its state
        or that of a workflow changes, with a snapshot each second, and with the result of each
        workflow when it ends. `Job.result` returns after all calls. What a callback raises is
        logged under `squall.client`."""
        if on_agent_loss not in ("replan", "continue"):
            raise UsageError(f'on_agent_loss={on_agent_loss!r}: use "replan" or "continue"')
        if on_control_loss not in ("", "stop", "continue"):
            raise UsageError(f'on_control_loss={on_control_loss!r}: use "stop" or "continue"')
        targets = _targets(dc, dc_fallback, on_dc_loss)
        options = checked_options(
            "Client.submit",
            workflow,
            locals(),
            on_agent_loss=on_agent_loss,
            on_control_loss=on_control_loss,
        )
        job = await self._submitted(options, key, targets)
        callbacks = _given(on_status_update, on_progress_update, on_workflow_result)
        if callbacks:
            self._stack.push_async_callback(_ended, job.call_back(callbacks))
        return job

    async def _submitted(self, options: RunOptions, key: str, targets: Targets | None) -> Job:
        import msgspec

        from squall.cluster.client.pack import packed

        connection = self._open
        await connection.ready()
        names = await connection.client.datacenters_of(targets)
        submission, bundle = await packed(options, datacenters=names)
        if targets is not None:
            submission = msgspec.structs.replace(submission, targets=targets)
        accepted, entry = await connection.client.submit(
            submission, bundle.data, connection.journal, key
        )
        return Job(connection, accepted.job, options=options, entry=entry)

    def job(self, job_id: str) -> Job:
        """A job that was submitted before, by any client."""
        from squall.cluster.protocol.job_keys import JobId

        return Job(self._open, JobId(job_id))

    async def jobs(self, limit: int = 100) -> list[JobView]:
        """The newest jobs of the cluster, at most `limit`."""
        return await self._open.client.jobs(limit)

    async def nodes(self) -> list[NodeView]:
        """The managers and workers of the cluster."""
        return (await self._open.client.nodes()).nodes

    @property
    def _open(self) -> ClientConnection:
        if self._connection is None:
            raise SquallError("this client is not open: use `async with squall.Client(...)`")
        return self._connection


class Job:
    """A job of a cluster; it goes on when its client closes."""

    def __init__(
        self,
        connection: ClientConnection,
        job: JobId,
        *,
        options: RunOptions | None = None,
        entry: SubmissionEntry | None = None,
    ) -> None:
        self.id: str = job
        self._job = job
        self._connection = connection
        self._options = options
        self._entry = entry
        self._after = 0
        self._ended = False
        self._found: Result | None = None
        self._callbacks: JobCallbacks | None = None
        self._calls: asyncio.Future[None]

    def __repr__(self) -> str:
        return f"Job({self.id})"

    async def stream(self) -> AsyncIterator[Snapshot]:
        """Yields about one snapshot a second until the job ends. The last one has `final` set and
        the totals of the result; a job that left no result has none. You may leave the loop and
        call it again: it resumes where it was."""
        from squall.cluster.protocol.messages import StreamSnapshot

        async for answer in self._follow():
            for item in answer.items:
                if isinstance(item, StreamSnapshot):
                    yield item.snapshot
        final = await self._final()
        if final is not None:
            yield final

    async def workflow_results(self) -> AsyncIterator[WorkflowResult]:
        """Yields the result of each workflow as soon as it is over, and ends with the job. Such a
        result has the thresholds of its class; those given with the job are judged at its end."""
        from squall.cluster.client.job_updates import job_updates

        async for update in job_updates(self._connection.client, self._job):
            for result in update.results:
                yield result

    async def result(self) -> Result:
        """Waits for the end of the job. For a file that cannot run, it raises what `squall.run`
        raises."""
        async for _ in self._follow():
            pass
        if self._callbacks is not None and not self._callbacks.is_calling:
            # A caller that gives up waiting does not end the callbacks.
            await asyncio.shield(self._calls)
        found = await self._result()
        if self._entry is not None:
            await self._connection.journal.close(self._entry)
            self._entry = None
        return found

    async def status(self) -> JobView:
        """The state of the job, read from the log of the managers; once it has ended, with the
        counters of its result."""
        return await self._connection.client.counted_status(self._job)

    async def cancel(self, *, now: bool = False, reason: str = "") -> None:
        """Ends the job; running iterations get their grace period, unless `now`. The result is
        kept. The log records your name and the `reason`."""
        await self._connection.client.cancel(self._job, now=now, reason=reason)

    async def adjust(
        self,
        workflow: str = "",
        *,
        rate: str | float | None = None,
        vus: int | None = None,
        paused: bool | None = None,
        reason: str = "",
    ) -> None:
        """Changes the load of the running job; with several workflows, name one. The result names
        the change, who made it and the `reason`."""
        from squall.api.quantities import parse_rate
        from squall.cluster.protocol.messages import AdjustJob

        await self._connection.client.adjust(
            AdjustJob(
                job=self._job,
                workflow=workflow,
                paused=paused,
                rate_per_s=None if rate is None else parse_rate(rate),
                vus=vus,
                reason=reason,
            )
        )

    def call_back(self, callbacks: Mapping[UpdateKind, Callback]) -> asyncio.Task[None]:
        """Starts to call the callbacks; the task ends with the job."""
        from squall.cluster.client.job_updates import job_updates
        from squall.job_callbacks import JobCallbacks

        updates = job_updates(self._connection.client, self._job)
        self._callbacks = JobCallbacks(callbacks)
        self._calls = task = asyncio.create_task(self._callbacks.run(updates, self._final))
        return task

    async def _final(self) -> Snapshot | None:
        """The last snapshot; None if the job left no result."""
        from squall.cluster.client.job_updates import final_snapshot

        try:
            return final_snapshot(await self._result())
        except SquallError:
            return None

    async def _result(self) -> Result:
        from squall.cluster.client.cluster_client import outcome_from
        from squall.reporting.run_result import Result

        if self._found is None:
            result = await self._connection.client.result(self._job, known=True)
            self._found = Result(outcome_from(result, self._options))
        return self._found

    async def _follow(self) -> AsyncIterator[Followed]:
        from squall.cluster.client.cluster_client import TERMINAL

        if self._ended:
            return
        async for answer in self._connection.client.follow(
            self._job, self._after, known=self._options is not None
        ):
            self._after = max(self._after, answer.upto)
            self._ended = answer.state in TERMINAL and not answer.more
            yield answer


def _targets(dc: str, fallback: bool | Sequence[str], on_loss: str) -> Targets | None:
    from squall.cluster.client.datacenter_options import targets_of

    if on_loss not in ("", "wait", "drop"):
        raise UsageError(f'on_dc_loss={on_loss!r}: use "wait" or "drop"')
    if isinstance(fallback, bool):
        text = "any" if fallback else None
    else:
        text = fallback if isinstance(fallback, str) else ",".join(fallback)
    return targets_of(
        dc or None,
        text or None,
        None if on_loss == "" else "drop" if on_loss == "drop" else "wait",
        flags=("Client.submit: dc", "Client.submit: dc_fallback"),
    )


def _given(
    status: Callback | None, progress: Callback | None, workflow: Callback | None
) -> dict[UpdateKind, Callback]:
    callbacks: list[tuple[UpdateKind, Callback | None]] = [
        ("status", status),
        ("progress", progress),
        ("workflow", workflow),
    ]
    return {kind: each for kind, each in callbacks if each is not None}


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
