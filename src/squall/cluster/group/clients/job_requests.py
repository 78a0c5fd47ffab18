"""Answers what clients ask about jobs: list, status, why, nodes, follow; and checks their rights.

Status and list are strong reads: a client whose submission was accepted also sees the job. The
member that leads a job serves its stream. The requests that change something ask here for the rate
limits and rights of clients.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, Literal

import msgspec

from squall.api.errors import SquallError, UsageError
from squall.cluster.control.rates import RateLimit
from squall.cluster.control.settings import ClientSettings
from squall.cluster.group.committer import RETRY_AFTER_S, Committer
from squall.cluster.group.job_tables import GroupJob, HoldsJobs, Job, JobEventLine
from squall.cluster.group.telemetry.job_stream import JobStream
from squall.cluster.ledger.interface import Digest, Ledger
from squall.cluster.protocol.gates.job_reports import JobReports, ReportCursor
from squall.cluster.protocol.job_keys import JobId
from squall.cluster.protocol.messages import (
    AdjustJob,
    Explanation,
    Follow,
    Followed,
    GetJob,
    JobList,
    JobStatus,
    JobView,
    ListJobs,
    ListNodes,
    NodeList,
    WhyJob,
)
from squall.cluster.protocol.submission_limits import reason_fault
from squall.cluster.wire.errors import RemoteError
from squall.cluster.wire.links.dispatch import POLLS_MAX, Handlers, Incoming
from squall.cluster.wire.messages import ErrorCode
from squall.cluster.wire.roles import Role
from squall.cluster.wire.seal.keyring import Identity
from squall.engine.load_change import LoadChange, UnknownWorkflow, changed_workflows
from squall.runtime.interfaces import Clock
from squall.runtime.log import Log

FOLLOW_MAX_S = 30.0
"""The longest wait of a follow request for something new."""

ASK_OPERATOR = "an operator may (squall secret client NAME --operator)"

Limit = Literal["submits", "asks", "queue", "rights"]
"""Why a request is refused: the client's own rates, the queue that all share, or its rights."""


@dataclass(frozen=True)
class Views(Generic[Job]):
    """The views that clients get, bound to the tables of this member."""

    job: Callable[[Job], JobView]
    """For a list of jobs."""
    nodes: Callable[[str], Awaitable[NodeList]]
    """Of the datacenter with this name, or of this group if it is empty."""
    why: Callable[[Job], Awaitable[tuple[list[str], list[str]]]]
    """What a job waits for, and its events."""
    detailed: Callable[[Job], JobView]
    """For one job."""


class JobRequests(Generic[Job]):
    """Handles the requests of clients that change nothing."""

    def __init__(
        self,
        *,
        machine: HoldsJobs[Job],
        ledger: Ledger,
        committer: Committer[Any],
        stream: Callable[[Job], JobStream],
        views: Views[Job],
        clock: Clock,
        led_elsewhere: Callable[[Job | None], str],
        ask_primary: Callable[[msgspec.Struct], Awaitable[Any]],
        log: Log,
        rates: ClientSettings,
        on_refused: Callable[[str, Limit], None] = lambda client, limit: None,
        reports: Callable[[Job, ReportCursor], JobReports | None] = lambda job, cursor: None,
        held_elsewhere: Callable[[JobId], str] = lambda job: "",
    ) -> None:
        """`reports` returns the live numbers of a job for a receiver above this group.
        `held_elsewhere` returns where a job is that this group does not have, "" if that is not
        known. `led_elsewhere` returns the address of a job's leader, "" if this member leads it.
        `on_refused` is called with the client and the limit for each refused request."""
        self._machine = machine
        self._ledger = ledger
        self._committer = committer
        self._stream = stream
        self._views = views
        self._clock = clock
        self._led_elsewhere = led_elsewhere
        self._ask_primary = ask_primary
        self._log = log
        self.on_refused = on_refused
        self._reports = reports
        self._held_elsewhere = held_elsewhere
        self._allowed = {"submits": rates.submits, "asks": rates.queries}
        self._rates = {limit: RateLimit(allowed) for limit, allowed in self._allowed.items()}

    def register(self, handlers: Handlers) -> None:
        handlers.on(ListJobs, self.list_jobs)
        handlers.on(GetJob, self.get_job)
        handlers.on(WhyJob, self.why)
        handlers.on(ListNodes, self.list_nodes)
        handlers.on(Follow, self.follow, polls=POLLS_MAX)

    async def list_jobs(self, message: ListJobs, incoming: Incoming) -> JobList:
        self.limit("asks", incoming)
        read = await self._committer.read()
        newest = sorted(self._machine.tables.jobs.values(), key=lambda job: -job.op)
        return JobList([self._views.job(job) for job in newest[: max(1, message.limit)]], read)

    async def get_job(self, message: GetJob, incoming: Incoming) -> JobStatus:
        self.limit("asks", incoming)
        read = await self._committer.read()
        job = self.job(message.job)
        return JobStatus(self._views.detailed(job), job.submission.manifest, read)

    async def why(self, message: WhyJob, incoming: Incoming) -> Explanation:
        self.limit("asks", incoming)
        read = await self._committer.read()
        job = self.job(message.job)
        lines, happened = await self._views.why(job)
        if job.history and not happened:
            happened = await self._stored_events(job)
        return Explanation(lines, happened, read)

    async def _stored_events(self, job: Job) -> list[str]:
        """The events of a job that is over are a blob, which this member may lack."""
        try:
            data = await self._ledger.blobs.get(Digest(job.history))
            return event_lines(job, msgspec.msgpack.decode(data, type=list[_StoredEvent]))
        except (KeyError, OSError, SquallError, msgspec.MsgspecError):
            return [f"the history of {job.job} cannot be read on this manager: ask another one"]

    async def list_nodes(self, message: ListNodes, incoming: Incoming) -> NodeList:
        self.limit("asks", incoming)
        read = await self._committer.read()
        return msgspec.structs.replace(await self._views.nodes(message.datacenter), read=read)

    async def follow(self, message: Follow, incoming: Incoming) -> Followed:
        # A member that is behind does not know the job, or takes it for one that still runs.
        await self._committer.read_session(message.seen)
        if message.job not in self._machine.tables.jobs:
            # This member may be behind what the client heard elsewhere: a strong read decides.
            await self._committer.read()
        self._check_led(message.job)
        stream = self._stream(self.job(message.job))
        stream.shows_histograms = stream.shows_histograms or message.histograms
        if message.after >= 0:
            wait_s = min(max(message.wait_s, 0.0), FOLLOW_MAX_S)
            try:
                async with asyncio.timeout(wait_s):
                    await stream.grown(message.after)
            except TimeoutError:
                pass
        upto, items, missed = stream.after(message.after)
        # Another member may have become the leader of the job during the wait.
        self._check_led(message.job)
        view = await self._present_view(message.job)
        read = await self._committer.read_session(message.seen)
        reports = None
        if message.reports is not None:
            reports = self._reports(self.job(message.job), message.reports)
        return Followed(
            upto=upto,
            items=items,
            missed=missed,
            more=upto < stream.last,
            state=view.state,
            position=view.position,
            exit_code=view.exit_code,
            result=view.result,
            result_size=view.result_size,
            reason=view.reason,
            read=read,
            reports=reports,
        )

    def _check_led(self, job: JobId) -> None:
        """Raises with the address of the job's leader if that is another member."""
        where = self._led_elsewhere(self._machine.tables.jobs.get(job))
        if where:
            text = f"{job} is led by the manager at {where}"
            raise RemoteError(
                ErrorCode.NOT_PRIMARY, text, primary=where, retry_after_s=RETRY_AFTER_S
            )

    async def _present_view(self, name: JobId) -> JobView:
        if self.job(name).state == "queued" and not self._ledger.is_primary:
            # Only the primary knows the position in the queue.
            try:
                seen = await self._ask_primary(GetJob(name))
            except RemoteError:
                seen = None
            if isinstance(seen, JobStatus):
                return seen.view
        return self._views.job(self.job(name))

    # For the requests that change something.

    def job(self, job: JobId) -> Job:
        found = self._machine.tables.jobs.get(job)
        if found is not None:
            return found
        where = self._held_elsewhere(job)
        if where:
            text = f"{job} is a job of the gates: ask {where}"
            raise RemoteError(
                ErrorCode.NOT_PRIMARY, text, primary=where, retry_after_s=RETRY_AFTER_S
            )
        raise RemoteError(ErrorCode.NOT_FOUND, f"no job {job}: see `squall jobs`")

    def check_owner(self, does: str, job: Job, incoming: Incoming) -> str:
        """Returns the name under which the change is recorded."""
        who = principal_of(incoming.peer)
        if not is_operator(incoming.peer) and who != job.principal:
            text = f"{job.job} was submitted by {job.principal}: {who} may not {does} it"
            raise self.forbidden(who, text, job.job)
        return who

    def forbidden(self, who: str, text: str, job: str = "") -> RemoteError:
        self.on_refused(who, "rights")
        self._log.warning("client_refused", client=who, job=job, why=text)
        return RemoteError(ErrorCode.FORBIDDEN, f"{text}; {ASK_OPERATOR}")

    def limit(self, limit: Literal["submits", "asks"], incoming: Incoming) -> None:
        """Limits clients, which have a name, but not members that ask on their behalf. Stopping
        a job is never limited."""
        name = incoming.peer.name
        wait_s = self._rates[limit].ask(name, self._clock.now()) if name else 0.0
        if wait_s:
            self.on_refused(name, limit)
            allowed = self._allowed[limit]
            text = (
                f"{name} {limit} too often: {allowed.burst:g} at once and then "
                f"{allowed.per_s:g} a second are allowed; wait {wait_s:.1f} s"
            )
            self._log.warning("client_refused", client=name, why=text)
            raise RemoteError(ErrorCode.OVERLOADED, text, retry_after_s=wait_s)


class _StoredEvent(msgspec.Struct, frozen=True, array_like=True):
    """An event in the history of a job, as every state machine stores it."""

    at_ms: int
    text: str


def event_lines(job: GroupJob, happened: Iterable[JobEventLine]) -> list[str]:
    """The events of a job, each with the seconds since its creation."""
    return [f"{(event.at_ms - job.created_ms) / 1000.0:8.1f} s  {event.text}" for event in happened]


def principal_of(peer: Identity) -> str:
    """The name of a client; a node that asks has none and is known by its node id."""
    return peer.name or peer.node


def with_reason(who: str, reason: str) -> str:
    """The name as it is recorded and shown: `ann (the shop is down)`."""
    fault = reason_fault(reason)
    if fault:
        raise RemoteError(ErrorCode.BAD_MESSAGE, fault)
    return f"{who} ({reason})" if reason else who


def is_operator(peer: Identity) -> bool:
    """Nodes hold the secret of the cluster, from which every credential can be made."""
    return peer.operator or peer.role is Role.NODE


def adjusted_workflows(job: GroupJob, message: AdjustJob) -> tuple[str, ...]:
    """The workflows whose load a request changes. Raises RemoteError if it fits none."""
    change = LoadChange(workflow=message.workflow, rate_per_s=message.rate_per_s, vus=message.vus)
    try:
        return changed_workflows(job.submission.manifest, change, owner=job.job)
    except UnknownWorkflow as error:
        raise RemoteError(ErrorCode.NOT_FOUND, str(error)) from None
    except UsageError as error:
        raise RemoteError(ErrorCode.BAD_MESSAGE, str(error)) from None
