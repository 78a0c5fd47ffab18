"""What clients ask of a manager: submit, look, follow, cancel, adjust, drain.

Every change is one command that is safe to repeat. A manager that does not lead answers
with who does; the streams of a job are served by the member that leads it. Reads are
strong where somebody decides by them (status, list), so that who was told "accepted" also
sees the job.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Literal

import msgspec

from squall.api.errors import SquallError
from squall.control.rates import RateLimit
from squall.control.settings import LOOK_RATE, SUBMIT_RATE
from squall.engine.layers import topological_layers
from squall.ledger.interface import (
    Digest,
    Ledger,
    LedgerFailed,
    NotPrimary,
    OutcomeUnknown,
    ReadLevel,
    TryLater,
)
from squall.nodes.datacenter.commands import (
    Accepted,
    AdjustLoad,
    Command,
    CreateJob,
    DrainWorker,
    ExtendJob,
    Rejected,
    StopJob,
    decode_outcome,
    encode,
)
from squall.nodes.datacenter.machine import Datacenter
from squall.nodes.datacenter.records import JobEvent, JobRecord
from squall.nodes.datacenter.tables import Tables
from squall.nodes.identity import JobId
from squall.nodes.manager.director_limits import deadline_ms, extension_cap_ms
from squall.nodes.manager.leader import JobLeader
from squall.nodes.manager.vault import Vault
from squall.nodes.manager.views import events
from squall.nodes.messages import (
    Adjusted,
    AdjustJob,
    CancelAccepted,
    CancelJob,
    Draining,
    DrainNode,
    Explanation,
    Follow,
    Followed,
    GetJob,
    JobAccepted,
    JobList,
    JobStatus,
    JobView,
    ListJobs,
    ListNodes,
    NodeList,
    NodeView,
    SubmitJob,
    WhyJob,
)
from squall.nodes.submission import Submission, fingerprint
from squall.runtime.interfaces import Clock, NodeId
from squall.wire.dispatch import Handlers, Incoming
from squall.wire.errors import RemoteError
from squall.wire.messages import ErrorCode

FOLLOW_MAX_S = 30.0
KEY_MAX_CHARACTERS = 200
RETRY_S = 0.3
WAITING_MAX = 5_000
"""Jobs in the queue: a bound, so that the state cannot grow without one."""
WAITING_RETRY_S = 2.0

Limit = Literal["submits", "asks", "queue"]
"""What a client may be turned away by: its own rates, and the queue that all share."""
Address = Callable[[NodeId | None], str]
"""host:port of a member; empty when it is not known."""


class Views:
    """How the state is shown; the manager's pure functions, bound to their tables."""

    def __init__(
        self,
        job: Callable[[JobRecord], JobView],
        nodes: Callable[[], list[NodeView]],
        why: Callable[[JobRecord], tuple[list[str], list[str]]],
        silent: Callable[[JobRecord], list[str]] = lambda job: [],
    ) -> None:
        """`silent` tells which workers of a job are not heard."""
        self.silent = silent
        self.job = job
        self.nodes = nodes
        self.why = why


class Committer:
    """Takes commands to the log; failures become answers that a client understands."""

    def __init__(self, ledger: Ledger, address: Address) -> None:
        self._ledger = ledger
        self._address = address

    async def commit(self, command: Command) -> Accepted:
        try:
            body = encode(command)
        except SquallError as error:
            raise RemoteError(ErrorCode.BAD_MESSAGE, str(error)) from None
        try:
            committed = await self._ledger.submit(body)
        except SquallError as error:
            raise self.answer(error) from None
        outcome = decode_outcome(committed.result)
        if isinstance(outcome, Rejected):
            raise RemoteError(ErrorCode.CONFLICT, outcome.text)
        return outcome

    async def read(self) -> None:
        """Returns when the local state shows everything that was committed before."""
        try:
            await self._ledger.read(ReadLevel.STRONG)
        except SquallError as error:
            raise self.answer(error) from None

    def answer(self, error: SquallError) -> RemoteError:
        if isinstance(error, TryLater):
            return RemoteError(ErrorCode.RETRY_LATER, str(error), retry_after_s=RETRY_S)
        if isinstance(error, NotPrimary):
            where = self._address(error.primary)
            return RemoteError(
                ErrorCode.NOT_PRIMARY, str(error), primary=where, retry_after_s=RETRY_S
            )
        if isinstance(error, OutcomeUnknown | LedgerFailed):
            return RemoteError(ErrorCode.RETRY_LATER, str(error), retry_after_s=RETRY_S)
        return RemoteError(ErrorCode.INTERNAL, str(error))


class ClientApi:
    def __init__(
        self,
        *,
        datacenter: str,
        machine: Datacenter,
        ledger: Ledger,
        committer: Committer,
        leader: JobLeader,
        views: Views,
        vault: Vault,
        clock: Clock,
        lead_member: Callable[[str], str],
        led_elsewhere: Callable[[JobRecord | None], str],
        ask_primary: Callable[[msgspec.Struct], Awaitable[Any]],
        on_refused: Callable[[str, Limit], None] = lambda client, limit: None,
    ) -> None:
        """`lead_member` chooses who leads a new job, `led_elsewhere` says where that is.
        `on_refused` is told of every client that is turned away, and by which limit."""
        self._datacenter = datacenter
        self._machine = machine
        self._ledger = ledger
        self._committer = committer
        self._leader = leader
        self._views = views
        self._vault = vault
        self._clock = clock
        self._lead_member = lead_member
        self._led_elsewhere = led_elsewhere
        self._ask_primary = ask_primary
        self._on_refused = on_refused
        self._rates: dict[Limit, RateLimit] = {
            "submits": RateLimit(SUBMIT_RATE),
            "asks": RateLimit(LOOK_RATE),
        }

    @property
    def _tables(self) -> Tables:
        return self._machine.tables

    def register(self, handlers: Handlers) -> None:
        handlers.on(SubmitJob, self.submit)
        handlers.on(ListJobs, self.list_jobs)
        handlers.on(GetJob, self.get_job)
        handlers.on(CancelJob, self.cancel)
        handlers.on(AdjustJob, self.adjust)
        handlers.on(WhyJob, self.why)
        handlers.on(ListNodes, self.list_nodes)
        handlers.on(DrainNode, self.drain)
        handlers.on(Follow, self.follow)

    # Changes.

    async def submit(self, message: SubmitJob, incoming: Incoming) -> JobAccepted:
        self._limit("submits", incoming)
        return await self.accept(message, incoming.peer.name or incoming.peer.node)

    async def accept(self, message: SubmitJob, principal: str) -> JobAccepted:
        submission = message.submission
        _check_submission(message)
        if submission.bundle and not await self._ledger.blobs.has(Digest(submission.bundle)):
            raise RemoteError(ErrorCode.NOT_FOUND, "offer the bundle first")
        names = {w.name: w.depends for w in submission.manifest.workflows}
        try:
            layers = topological_layers(names, "workflow")
        except SquallError as error:
            raise RemoteError(ErrorCode.BAD_MESSAGE, str(error)) from None
        self._check_room(principal, message.key)
        bound_to = f"{principal}/{message.key}"
        stored, sealed = self._sealed(submission, bound_to)
        accepted = await self._committer.commit(
            CreateJob(
                principal=principal,
                key=message.key,
                fingerprint=fingerprint(submission),
                submission=stored,
                sealed=sealed,
                leader=self._lead_member(message.key),
                created_at=self._clock.wall(),
                layers=tuple(tuple(layer) for layer in layers),
                timeout_ms=int((submission.timeout_s or 0.0) * 1000),
            )
        )
        return JobAccepted(accepted.job, accepted.changed)

    async def cancel(self, message: CancelJob, incoming: Incoming) -> CancelAccepted:
        await self._committer.read()
        before = self._job(message.job)
        if before.over:
            return CancelAccepted(before.state, repeated=True)
        who = incoming.peer.name or incoming.peer.node
        accepted = await self._committer.commit(
            StopJob(
                job=message.job,
                kind="cancelled",
                reason=f"cancelled by {who}",
                now=message.now,
            )
        )
        return CancelAccepted(self._job(message.job).state, repeated=not accepted.changed)

    async def adjust(self, message: AdjustJob, incoming: Incoming) -> Adjusted:
        await self._committer.read()
        job = self._job(message.job)
        if job.over:
            raise RemoteError(ErrorCode.CONFLICT, f"{job.job} is over ({job.state})")
        extended_s = await self._extended(job, message.extend_s)
        if message.paused is None and message.rate_per_s is None and message.vus is None:
            return Adjusted(extended_s=extended_s)
        accepted = await self._committer.commit(
            AdjustLoad(
                job=message.job,
                workflows=_adjusted_workflows(job, message),
                paused=message.paused,
                rate_per_s=message.rate_per_s,
                vus=message.vus,
            )
        )
        return Adjusted(accepted.value, extended_s)

    async def _extended(self, job: JobRecord, seconds: float | None) -> float:
        """The time it has beyond its timeout, which may be less than was asked for. The wish
        names the sum of all extensions, so that to repeat it changes nothing."""
        if seconds is None:
            return 0.0
        if deadline_ms(job) is None:
            raise RemoteError(ErrorCode.CONFLICT, f"{job.job} has no timeout yet: it waits")
        cap_ms = extension_cap_ms(job)
        by_ms = min(round(seconds * 1000), cap_ms) - job.extension_ms
        if by_ms > 0:
            await self._committer.commit(ExtendJob(job=job.job, by_ms=by_ms, cap_ms=cap_ms))
        return self._job(job.job).extension_ms / 1000.0

    async def drain(self, message: DrainNode, incoming: Incoming) -> Draining:
        await self._committer.read()
        if message.node not in self._tables.workers:
            raise RemoteError(ErrorCode.NOT_FOUND, f"no worker {message.node}: see `squall nodes`")
        await self._committer.commit(DrainWorker(node=message.node, draining=not message.resume))
        return Draining(message.node, len(self._tables.live.get(message.node, {})))

    # Looking.

    async def list_jobs(self, message: ListJobs, incoming: Incoming) -> JobList:
        self._limit("asks", incoming)
        await self._committer.read()
        newest = sorted(self._tables.jobs.values(), key=lambda job: -job.op)
        return JobList([self._views.job(job) for job in newest[: max(1, message.limit)]])

    async def get_job(self, message: GetJob, incoming: Incoming) -> JobStatus:
        self._limit("asks", incoming)
        await self._committer.read()
        job = self._job(message.job)
        view = msgspec.structs.replace(self._views.job(job), silent=self._views.silent(job))
        return JobStatus(view, job.submission.manifest)

    async def why(self, message: WhyJob, incoming: Incoming) -> Explanation:
        self._limit("asks", incoming)
        await self._committer.read()
        job = self._job(message.job)
        lines, happened = self._views.why(job)
        if job.history and not happened:
            happened = await self._stored_events(job)
        return Explanation(lines, happened)

    async def _stored_events(self, job: JobRecord) -> list[str]:
        """Of a job that is over they are a blob; without it the rest is still worth telling."""
        try:
            data = await self._ledger.blobs.get(Digest(job.history))
            return events(job, msgspec.msgpack.decode(data, type=list[JobEvent]))
        except (KeyError, OSError, SquallError, msgspec.MsgspecError):
            return [f"what happened to {job.job} is not readable on this manager"]

    async def list_nodes(self, message: ListNodes, incoming: Incoming) -> NodeList:
        self._limit("asks", incoming)
        await self._committer.read()
        return NodeList(self._datacenter, self._views.nodes())

    async def follow(self, message: Follow, incoming: Incoming) -> Followed:
        self._check_led(message.job)
        stream = self._leader.stream(self._job(message.job))
        if message.after >= 0:
            wait_s = min(max(message.wait_s, 0.0), FOLLOW_MAX_S)
            try:
                async with asyncio.timeout(wait_s):
                    await stream.grown(message.after)
            except TimeoutError:
                pass
        upto, items, missed = stream.after(message.after)
        # While it waited another member may have been named.
        self._check_led(message.job)
        view = await self._present_view(message.job)
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
        )

    def _check_room(self, principal: str, key: str) -> None:
        try:
            check_room(self._tables, principal, key)
        except RemoteError:
            self._on_refused(principal, "queue")
            raise

    def _limit(self, limit: Limit, incoming: Incoming) -> None:
        """Of clients, never of managers that ask for one; to stop a job is never limited."""
        name = incoming.peer.name
        wait_s = self._rates[limit].ask(name, self._clock.now()) if name else 0.0
        if wait_s:
            self._on_refused(name, limit)
            text = f"{name} {limit} too often"
            raise RemoteError(ErrorCode.OVERLOADED, text, retry_after_s=wait_s)

    def _check_led(self, job: JobId) -> None:
        """Streams are served by the member that leads the job."""
        where = self._led_elsewhere(self._tables.jobs.get(job))
        if where:
            text = f"{job} is led by the manager at {where}"
            raise RemoteError(ErrorCode.NOT_PRIMARY, text, primary=where, retry_after_s=RETRY_S)

    async def _present_view(self, name: JobId) -> JobView:
        if self._job(name).state == "queued" and not self._ledger.is_primary:
            # Only the primary knows the place in the queue.
            try:
                seen = await self._ask_primary(GetJob(name))
            except RemoteError:
                seen = None
            if isinstance(seen, JobStatus):
                return seen.view
        return self._views.job(self._job(name))

    def _job(self, job: JobId) -> JobRecord:
        found = self._tables.jobs.get(job)
        if found is None:
            raise RemoteError(ErrorCode.NOT_FOUND, f"no job {job}: see `squall jobs`")
        return found

    def _sealed(self, submission: Submission, bound_to: str) -> tuple[Submission, bytes]:
        options = submission.options
        if not options.secrets:
            return submission, b""
        sealed = self._vault.seal(options.secrets, bound_to)
        bare = msgspec.structs.replace(options, secrets={})
        return msgspec.structs.replace(submission, options=bare), sealed


def check_room(tables: Tables, principal: str, key: str) -> None:
    """More jobs than the queue holds are turned away for a while; one that was accepted
    before is answered whatever waits."""
    if (principal, key) in tables.keys:
        return
    waiting = sum(tables.jobs[job].state == "queued" for job in tables.active)
    if waiting >= WAITING_MAX:
        text = f"{waiting} jobs wait in the queue, which is all it holds"
        raise RemoteError(ErrorCode.OVERLOADED, text, retry_after_s=WAITING_RETRY_S)


def _check_submission(message: SubmitJob) -> None:
    if not message.key or len(message.key) > KEY_MAX_CHARACTERS:
        raise RemoteError(ErrorCode.BAD_MESSAGE, f"a key has 1 to {KEY_MAX_CHARACTERS} characters")
    if not message.submission.manifest.workflows:
        raise RemoteError(ErrorCode.BAD_MESSAGE, "the file holds no workflow to run")


def _adjusted_workflows(job: JobRecord, message: AdjustJob) -> tuple[str, ...]:
    tests = [w for w in job.submission.manifest.workflows if w.is_test]
    names = [w.name for w in tests]
    if message.workflow:
        if message.workflow not in names:
            raise RemoteError(
                ErrorCode.NOT_FOUND,
                f"{job.job} has no test workflow {message.workflow}: it has {', '.join(names)}",
            )
        names = [message.workflow]
    elif len(names) > 1 and (message.rate_per_s is not None or message.vus is not None):
        raise RemoteError(
            ErrorCode.BAD_MESSAGE,
            f"{job.job} has several test workflows: name one of {', '.join(names)}",
        )
    for workflow in tests:
        if workflow.name not in names:
            continue
        if message.rate_per_s is not None and not workflow.profile.is_open:
            raise RemoteError(
                ErrorCode.BAD_MESSAGE, f"{workflow.name} has users, not a rate: give --vus"
            )
        if message.vus is not None and workflow.profile.is_open:
            raise RemoteError(
                ErrorCode.BAD_MESSAGE, f"{workflow.name} has a rate, not users: give --rate"
            )
    return tuple(names)
