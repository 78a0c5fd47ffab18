"""Answers clients: submit, list, status, follow, cancel, adjust, drain.

Every change is one command that is safe to repeat. A manager that does not lead answers with
the address of the primary; the member that leads a job serves its stream. Status and list
are strong reads: a client whose submission was accepted also sees the job.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Literal

import msgspec

from squall.api.errors import SquallError
from squall.cluster.control.rates import RateLimit
from squall.cluster.control.settings import ClientSettings
from squall.cluster.datacenter.commands import (
    AdjustLoad,
    CreateJob,
    DrainWorker,
    ExtendJob,
    StopJob,
)
from squall.cluster.datacenter.records import JobEvent, JobRecord
from squall.cluster.datacenter.state_machine import Datacenter
from squall.cluster.datacenter.tables import Tables
from squall.cluster.group.committer import RETRY_AFTER_S, Committer
from squall.cluster.ledger.interface import Digest, Ledger
from squall.cluster.manager.clients.job_views import events
from squall.cluster.manager.results.assembler import ResultAssembler
from squall.cluster.manager.sealed_secrets import SecretSealer
from squall.cluster.manager.sessions.time_limits import deadline_ms, extension_cap_ms
from squall.cluster.manager.telemetry.job_leader import JobLeader
from squall.cluster.protocol.job_keys import JobId
from squall.cluster.protocol.messages import (
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
    GetWorkflowResult,
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
    WorkflowResultHeld,
)
from squall.cluster.protocol.submission import Submission, fingerprint
from squall.cluster.protocol.submission_limits import (
    TIMEOUT_MAX_S,
    adjustment_fault,
    key_fault,
    reason_fault,
    submission_fault,
)
from squall.cluster.results.job_result import encode_result
from squall.cluster.wire.errors import RemoteError
from squall.cluster.wire.links.dispatch import POLLS_MAX, Handlers, Incoming
from squall.cluster.wire.messages import ErrorCode
from squall.cluster.wire.roles import Role
from squall.cluster.wire.seal.keyring import Identity
from squall.engine.plan.layers import topological_layers
from squall.runtime.interfaces import Clock
from squall.runtime.log import Log
from squall.settings.shared_sections import DRAIN_MAX_S
from squall.stats.thresholds.binding import bind_all

FOLLOW_MAX_S = 30.0
"""The longest wait of a follow request for something new."""
WAITING_RETRY_S = 2.0

ASK_OPERATOR = "an operator may (squall secret client NAME --operator)"

Limit = Literal["submits", "asks", "queue", "rights"]
"""Why a request is refused: the client's own rates, the queue that all share, or its rights."""


class Views:
    """The functions of `job_views`, bound to this manager's tables."""

    def __init__(
        self,
        job: Callable[[JobRecord], JobView],
        nodes: Callable[[], list[NodeView]],
        why: Callable[[JobRecord], tuple[list[str], list[str]]],
        detailed: Callable[[JobRecord], JobView],
    ) -> None:
        """`job` is for a list of jobs, `detailed` for one job."""
        self.job = job
        self.detailed = detailed
        self.nodes = nodes
        self.why = why


class ClientApi:
    """Handles the requests of clients."""

    def __init__(
        self,
        *,
        datacenter: str,
        machine: Datacenter,
        ledger: Ledger,
        committer: Committer,
        leader: JobLeader,
        views: Views,
        sealer: SecretSealer,
        clock: Clock,
        wall_s: Callable[[], float],
        lead_member: Callable[[str], str],
        led_elsewhere: Callable[[JobRecord | None], str],
        ask_primary: Callable[[msgspec.Struct], Awaitable[Any]],
        log: Log,
        rates: ClientSettings,
        queue_max: int,
        results: ResultAssembler,
        on_refused: Callable[[str, Limit], None] = lambda client, limit: None,
    ) -> None:
        """`wall_s` returns the time to stamp a new job with, and `lead_member` chooses its leader
        by its key. `led_elsewhere` returns the address of a job's leader, "" if this member leads
        it. `on_refused` is called with the client and the limit for each refused request."""
        self._datacenter = datacenter
        self._machine = machine
        self._ledger = ledger
        self._committer = committer
        self._leader = leader
        self._views = views
        self._sealer = sealer
        self._clock = clock
        self._wall_s = wall_s
        self._lead_member = lead_member
        self._led_elsewhere = led_elsewhere
        self._ask_primary = ask_primary
        self._log = log
        self._on_refused = on_refused
        self._queue_max = queue_max
        self._results = results
        self._allowed = {"submits": rates.submits, "asks": rates.queries}
        self._rates = {limit: RateLimit(allowed) for limit, allowed in self._allowed.items()}

    @property
    def _tables(self) -> Tables:
        return self._machine.tables

    def register(self, handlers: Handlers) -> None:
        handlers.on(SubmitJob, self.submit)
        handlers.on(ListJobs, self.list_jobs)
        handlers.on(GetJob, self.get_job)
        handlers.on(GetWorkflowResult, self.get_workflow_result)
        handlers.on(CancelJob, self.cancel)
        handlers.on(AdjustJob, self.adjust)
        handlers.on(WhyJob, self.why)
        handlers.on(ListNodes, self.list_nodes)
        handlers.on(DrainNode, self.drain)
        handlers.on(Follow, self.follow, polls=POLLS_MAX)

    # Changes.

    async def submit(self, message: SubmitJob, incoming: Incoming) -> JobAccepted:
        self._limit("submits", incoming)
        return await self.accept(message, principal_of(incoming.peer))

    async def accept(self, message: SubmitJob, principal: str) -> JobAccepted:
        submission = message.submission
        _check_submission(message)
        if submission.targets:
            raise RemoteError(ErrorCode.BAD_MESSAGE, no_gate(self._datacenter))
        if submission.bundle and not await self._ensured(Digest(submission.bundle)):
            raise RemoteError(ErrorCode.NOT_FOUND, "offer the bundle first")
        names = {w.name: w.depends for w in submission.manifest.workflows}
        try:
            layers = topological_layers(names, "workflow")
        except SquallError as error:
            raise RemoteError(ErrorCode.BAD_MESSAGE, str(error)) from None
        if not self._tables.group:
            # The first command of a group names it. A job that came before would be rejected, which
            # the client would take for an answer about its key.
            text = "the group is not configured yet"
            raise RemoteError(ErrorCode.RETRY_LATER, text, retry_after_s=RETRY_AFTER_S)
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
                created_at=self._wall_s(),
                layers=tuple(tuple(layer) for layer in layers),
                timeout_ms=int((submission.timeout_s or 0.0) * 1000),
            )
        )
        return JobAccepted(accepted.job, accepted.changed, self._committer.facts("strong"))

    async def _ensured(self, bundle: Digest) -> bool:
        """Whether a member has the bundle: the client may have offered it to the manager that
        relays for it. Returns when a quorum has it, because `CreateJob` names it (R9)."""
        blobs = self._ledger.blobs
        try:
            return await blobs.ensure(bundle)
        except SquallError as error:
            raise self._committer.answer(error) from None

    async def cancel(self, message: CancelJob, incoming: Incoming) -> CancelAccepted:
        read = await self._committer.read()
        before = self._job(message.job)
        if before.over:
            return CancelAccepted(before.state, True, read)
        who = _with_reason(self._check_owner("cancel", before, incoming), message.reason)
        accepted = await self._committer.commit(
            StopJob(
                job=message.job,
                kind="cancelled",
                reason=f"cancelled by {who}",
                now=message.now,
            )
        )
        return CancelAccepted(self._job(message.job).state, not accepted.changed, read)

    async def adjust(self, message: AdjustJob, incoming: Incoming) -> Adjusted:
        read = await self._committer.read()
        job = self._job(message.job)
        made = job.adjusted_by(message.request_id)
        if made:
            # Also if the job is over by now: the client repeats what took effect before.
            extended_ms = 0 if message.extend_s is None else job.extension_ms
            return Adjusted(made, extended_ms / 1000.0, read)
        if job.over:
            raise RemoteError(ErrorCode.CONFLICT, f"{job.job} is over ({job.state})")
        who = self._check_owner("adjust", job, incoming)
        who = _with_reason(who, message.reason)
        fault = adjustment_fault(message.rate_per_s, message.vus, message.request_id)
        if fault:
            raise RemoteError(ErrorCode.BAD_MESSAGE, fault)
        extended_s = await self._extended(job, message.extend_s, who)
        if message.paused is None and message.rate_per_s is None and message.vus is None:
            return Adjusted(0, extended_s, read)
        accepted = await self._committer.commit(
            AdjustLoad(
                job=message.job,
                workflows=_adjusted_workflows(job, message),
                paused=message.paused,
                rate_per_s=message.rate_per_s,
                vus=message.vus,
                by=who,
                request_id=message.request_id,
            )
        )
        self._log.info(
            "job_adjusted",
            job=message.job,
            by=who,
            paused=message.paused,
            rate_per_s=message.rate_per_s,
            vus=message.vus,
        )
        return Adjusted(accepted.value, extended_s, read)

    async def _extended(self, job: JobRecord, seconds: float | None, who: str) -> float:
        """Returns the time that the job has beyond its timeout, which may be less than asked
        for. A request names the sum of all extensions, so repeating it changes nothing."""
        if seconds is None:
            return 0.0
        if not 0.0 <= seconds <= TIMEOUT_MAX_S:
            text = f"extend_s is {seconds}; it must be at least 0 and at most {TIMEOUT_MAX_S:,.0f}"
            raise RemoteError(ErrorCode.BAD_MESSAGE, text)
        if deadline_ms(job) is None:
            text = f"{job.job} has no timeout yet because it waits in the queue: try again later"
            raise RemoteError(ErrorCode.CONFLICT, text)
        # The wanted sum is the cap of the command: another request, or an earlier try of this one,
        # may extend the job before the command is applied.
        sum_ms = min(round(seconds * 1000), extension_cap_ms(job))
        if sum_ms <= job.extension_ms:
            return job.extension_ms / 1000.0
        command = ExtendJob(job=job.job, by_ms=sum_ms, cap_ms=sum_ms, by=who)
        accepted = await self._committer.commit(command)
        self._log.info("job_extended", job=job.job, by=who, extended_s=accepted.value / 1000.0)
        return accepted.value / 1000.0

    async def drain(self, message: DrainNode, incoming: Incoming) -> Draining:
        read = await self._committer.read()
        if message.node not in self._tables.workers:
            raise RemoteError(ErrorCode.NOT_FOUND, f"no worker {message.node}: see `squall nodes`")
        who = principal_of(incoming.peer)
        if not is_operator(incoming.peer):
            # A worker runs the jobs of all clients.
            does = "resume" if message.resume else "drain"
            raise self._forbidden(who, f"{who} may not {does} {message.node}")
        draining = not message.resume
        if not 0.0 <= message.within_s <= DRAIN_MAX_S:
            text = f"within_s is {message.within_s}; it must be 0 to {DRAIN_MAX_S:,.0f}"
            raise RemoteError(ErrorCode.BAD_MESSAGE, text)
        within_ms = round(message.within_s * 1000)
        command = DrainWorker(node=message.node, draining=draining, by=who, within_ms=within_ms)
        await self._committer.commit(command)
        self._log.info("worker_drained", worker=message.node, by=who, draining=draining)
        return Draining(message.node, len(self._tables.live.get(message.node, {})), read)

    # Reads.

    async def list_jobs(self, message: ListJobs, incoming: Incoming) -> JobList:
        self._limit("asks", incoming)
        read = await self._committer.read()
        newest = sorted(self._tables.jobs.values(), key=lambda job: -job.op)
        return JobList([self._views.job(job) for job in newest[: max(1, message.limit)]], read)

    async def get_job(self, message: GetJob, incoming: Incoming) -> JobStatus:
        self._limit("asks", incoming)
        read = await self._committer.read()
        job = self._job(message.job)
        return JobStatus(self._views.detailed(job), job.submission.manifest, read)

    async def get_workflow_result(
        self, message: GetWorkflowResult, incoming: Incoming
    ) -> WorkflowResultHeld:
        """Assembles the result of the workflow while the job goes on; no command names that blob,
        so it is collected later. The result of a job that is over has all workflows."""
        self._limit("asks", incoming)
        await self._committer.read()
        job = self._job(message.job)
        workflow = job.workflow(message.workflow)
        if workflow is None:
            known = ", ".join(each.name for each in job.workflows)
            text = f"{job.job} has no workflow {message.workflow}: it has {known}"
            raise RemoteError(ErrorCode.NOT_FOUND, text)
        if not workflow.over:
            text = f"{workflow.name} of {job.job} is not over yet"
            raise RemoteError(ErrorCode.CONFLICT, text)
        if not job.over:
            data = encode_result(await self._results.workflow(job.job, workflow.name))
            job = self._job(message.job)
            # Its attempts leave the state when it ends, perhaps while they were read.
            if not job.over:
                return WorkflowResultHeld(await self._ledger.blobs.put(data), len(data))
        if not job.result:
            raise RemoteError(ErrorCode.NOT_FOUND, f"{job.job} left no result: {job.reason}")
        return WorkflowResultHeld(job.result, job.result_size)

    async def why(self, message: WhyJob, incoming: Incoming) -> Explanation:
        self._limit("asks", incoming)
        read = await self._committer.read()
        job = self._job(message.job)
        lines, happened = self._views.why(job)
        if job.history and not happened:
            happened = await self._stored_events(job)
        return Explanation(lines, happened, read)

    async def _stored_events(self, job: JobRecord) -> list[str]:
        """The events of a job that is over are a blob, which this member may lack."""
        try:
            data = await self._ledger.blobs.get(Digest(job.history))
            return events(job, msgspec.msgpack.decode(data, type=list[JobEvent]))
        except (KeyError, OSError, SquallError, msgspec.MsgspecError):
            return [f"the history of {job.job} cannot be read on this manager: ask another one"]

    async def list_nodes(self, message: ListNodes, incoming: Incoming) -> NodeList:
        self._limit("asks", incoming)
        read = await self._committer.read()
        return NodeList(self._datacenter, self._views.nodes(), read)

    async def follow(self, message: Follow, incoming: Incoming) -> Followed:
        # A member that is behind does not know the job, or takes it for one that still runs.
        await self._committer.read_session(message.seen)
        if message.job not in self._tables.jobs:
            # This member may be behind what the client heard elsewhere: a strong read decides.
            await self._committer.read()
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
        # Another member may have become the leader of the job during the wait.
        self._check_led(message.job)
        view = await self._present_view(message.job)
        read = await self._committer.read_session(message.seen)
        reports = None
        if message.reports is not None:
            reports = self._leader.reports(self._job(message.job), message.reports)
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

    def _check_owner(self, does: str, job: JobRecord, incoming: Incoming) -> str:
        """Returns the name under which the change is recorded."""
        who = principal_of(incoming.peer)
        if not is_operator(incoming.peer) and who != job.principal:
            text = f"{job.job} was submitted by {job.principal}: {who} may not {does} it"
            raise self._forbidden(who, text, job.job)
        return who

    def _forbidden(self, who: str, text: str, job: str = "") -> RemoteError:
        self._on_refused(who, "rights")
        self._log.warning("client_refused", client=who, job=job, why=text)
        return RemoteError(ErrorCode.FORBIDDEN, f"{text}; {ASK_OPERATOR}")

    def _check_room(self, principal: str, key: str) -> None:
        try:
            check_room(self._tables, principal, key, self._queue_max)
        except RemoteError:
            self._on_refused(principal, "queue")
            self._log.warning("client_refused", client=principal, why="the queue is full")
            raise

    def _limit(self, limit: Literal["submits", "asks"], incoming: Incoming) -> None:
        """Limits clients, which have a name, but not managers that ask on their behalf. Stopping
        a job is never limited."""
        name = incoming.peer.name
        wait_s = self._rates[limit].ask(name, self._clock.now()) if name else 0.0
        if wait_s:
            self._on_refused(name, limit)
            allowed = self._allowed[limit]
            text = (
                f"{name} {limit} too often: {allowed.burst:g} at once and then "
                f"{allowed.per_s:g} a second are allowed; wait {wait_s:.1f} s"
            )
            self._log.warning("client_refused", client=name, why=text)
            raise RemoteError(ErrorCode.OVERLOADED, text, retry_after_s=wait_s)

    def _check_led(self, job: JobId) -> None:
        """Raises with the address of the job's leader if that is another member."""
        where = self._led_elsewhere(self._tables.jobs.get(job))
        if where:
            text = f"{job} is led by the manager at {where}"
            raise RemoteError(
                ErrorCode.NOT_PRIMARY, text, primary=where, retry_after_s=RETRY_AFTER_S
            )

    async def _present_view(self, name: JobId) -> JobView:
        if self._job(name).state == "queued" and not self._ledger.is_primary:
            # Only the primary knows the position in the queue.
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
        sealed = self._sealer.seal(options.secrets, bound_to)
        bare = msgspec.structs.replace(options, secrets={})
        return msgspec.structs.replace(submission, options=bare), sealed


def principal_of(peer: Identity) -> str:
    """The name of a client; a manager that asks has none and is known by its node."""
    return peer.name or peer.node


def _with_reason(who: str, reason: str) -> str:
    """The name as it is recorded and shown: `ann (the shop is down)`."""
    fault = reason_fault(reason)
    if fault:
        raise RemoteError(ErrorCode.BAD_MESSAGE, fault)
    return f"{who} ({reason})" if reason else who


def is_operator(peer: Identity) -> bool:
    """Managers hold the secret of the cluster, from which every credential can be made."""
    return peer.operator or peer.role is Role.NODE


def check_room(tables: Tables, principal: str, key: str, queue_max: int) -> None:
    """Refuses a new job while the queue is full. A repeated submission is let through: its job
    is in the queue already (R13)."""
    if (principal, key) in tables.keys:
        return
    waiting = sum(tables.jobs[job].state == "queued" for job in tables.active)
    if waiting >= queue_max:
        text = (
            f"the queue is full: {waiting:,} jobs wait, at most {queue_max:,} are allowed; "
            "submit again later"
        )
        raise RemoteError(ErrorCode.OVERLOADED, text, retry_after_s=WAITING_RETRY_S)


def no_gate(datacenter: str) -> str:
    """Why a manager refuses a job that names datacenters."""
    return (
        f"this is a manager of {datacenter}, not a gate, and chooses no datacenters: leave out "
        "--dc, name a gate with --to, or split the load here with --to eu=HOST:PORT,us=HOST:PORT"
    )


def _check_submission(message: SubmitJob) -> None:
    submission = message.submission
    fault = key_fault(message.key) or submission_fault(submission)
    if fault:
        raise RemoteError(ErrorCode.BAD_MESSAGE, fault)
    try:
        # The job's leader judges them while the job runs. Apply does not parse them: the grammar
        # grows, and members of two versions would disagree.
        bind_all(submission.manifest, submission.options.thresholds)
    except SquallError as error:
        raise RemoteError(ErrorCode.BAD_MESSAGE, str(error)) from None


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
