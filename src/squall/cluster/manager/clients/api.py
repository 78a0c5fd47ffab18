"""Answers clients: submit, drain, results; the rest is in `cluster.group.clients`.

Every change is one command that is safe to repeat. A manager that does not lead answers with
the address of the primary; the member that leads a job serves its stream. Status and list
are strong reads: a client whose submission was accepted also sees the job.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any
from zlib import crc32

import msgspec

from squall.cluster.control.settings import ClientSettings
from squall.cluster.datacenter.commands import (
    AdjustLoad,
    Command,
    CreateJob,
    DrainWorker,
)
from squall.cluster.datacenter.records import JobRecord
from squall.cluster.datacenter.state_machine import Datacenter
from squall.cluster.datacenter.tables import Tables
from squall.cluster.group.clients.job_changes import JobChanges
from squall.cluster.group.clients.job_requests import (
    JobRequests,
    Limit,
    Views,
    adjusted_workflows,
    is_operator,
    principal_of,
)
from squall.cluster.group.clients.submissions import QueueFull, SubmissionCheck
from squall.cluster.group.committer import Committer
from squall.cluster.group.sealed_secrets import SecretSealer
from squall.cluster.group.telemetry.job_stream import JobStream
from squall.cluster.ledger.interface import Ledger
from squall.cluster.manager.results.assembler import ResultAssembler
from squall.cluster.protocol.gates.handover_keys import gate_group_of
from squall.cluster.protocol.gates.job_reports import JobReports, ReportCursor
from squall.cluster.protocol.job_keys import JobId
from squall.cluster.protocol.messages import (
    AdjustJob,
    Draining,
    DrainNode,
    GetWorkflowResult,
    JobAccepted,
    SubmitJob,
    WorkflowResultHeld,
)
from squall.cluster.results.job_result import encode_result
from squall.cluster.wire.errors import RemoteError
from squall.cluster.wire.links.dispatch import Handlers, Incoming
from squall.cluster.wire.messages import ErrorCode
from squall.runtime.interfaces import Clock
from squall.runtime.log import Log
from squall.settings.shared_sections import DRAIN_MAX_S


class ClientApi:
    """Handles the requests of clients."""

    def __init__(
        self,
        *,
        datacenter: str,
        machine: Datacenter,
        ledger: Ledger,
        committer: Committer[Command],
        stream: Callable[[JobRecord], JobStream],
        views: Views[JobRecord],
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
        reports: Callable[[JobRecord, ReportCursor], JobReports | None] = lambda job, cursor: None,
    ) -> None:
        """`wall_s` returns the time to stamp a new job with, and `lead_member` chooses its leader
        by its key. `led_elsewhere` returns the address of a job's leader, "" if this member leads
        it. `on_refused` is called with the client and the limit for each refused request. `reports`
        returns the live numbers of a datacenter's part."""
        self.requests = JobRequests(
            machine=machine,
            ledger=ledger,
            committer=committer,
            stream=stream,
            views=views,
            clock=clock,
            led_elsewhere=led_elsewhere,
            ask_primary=ask_primary,
            log=log,
            rates=rates,
            on_refused=on_refused,
            reports=reports,
            held_elsewhere=lambda job: gate_of(machine.tables, job),
        )
        self.changes = JobChanges(
            self.requests, committer, log, _load_command, "it waits in the queue"
        )
        self._datacenter = datacenter
        self._submissions = SubmissionCheck(
            machine=machine,
            ledger=ledger,
            committer=committer,
            sealer=sealer,
            queue_max=queue_max,
        )
        self._machine = machine
        self._ledger = ledger
        self._committer = committer
        self._wall_s = wall_s
        self._lead_member = lead_member
        self._log = log
        self._results = results

    @property
    def _tables(self) -> Tables:
        return self._machine.tables

    def register(self, handlers: Handlers) -> None:
        self.requests.register(handlers)
        self.changes.register(handlers)
        handlers.on(SubmitJob, self.submit)
        handlers.on(GetWorkflowResult, self.get_workflow_result)
        handlers.on(DrainNode, self.drain)

    # Changes.

    async def submit(self, message: SubmitJob, incoming: Incoming) -> JobAccepted:
        self.requests.limit("submits", incoming)
        who = principal_of(incoming.peer)
        if message.direct and self._tables.gates and not is_operator(incoming.peer):
            raise self.requests.forbidden(who, f"{who} may not go past the gates with --direct")
        return await self.accept(message, who)

    async def accept(self, message: SubmitJob, principal: str) -> JobAccepted:
        self._redirect_to_gates(message, principal)
        if message.submission.targets:
            raise RemoteError(ErrorCode.BAD_MESSAGE, _no_gate(self._datacenter))
        try:
            checked = await self._submissions.checked(message, principal)
        except QueueFull:
            self.requests.on_refused(principal, "queue")
            self._log.warning("client_refused", client=principal, why="the queue is full")
            raise
        command = CreateJob(
            principal=principal,
            key=message.key,
            fingerprint=checked.fingerprint,
            submission=checked.submission,
            sealed=checked.sealed,
            leader=self._lead_member(message.key),
            created_at=self._wall_s(),
            layers=checked.layers,
            timeout_ms=int((message.submission.timeout_s or 0.0) * 1000),
            direct=message.direct,
        )
        try:
            accepted = await self._committer.commit(command)
        except RemoteError:
            # Gates may have become known meanwhile.
            self._redirect_to_gates(message, principal)
            raise
        return JobAccepted(accepted.job, accepted.changed, self._committer.facts("strong"))

    def _redirect_to_gates(self, message: SubmitJob, principal: str) -> None:
        """Sends the client to a gate, unless its key has created a job here: a repeated submission
        must find that job (R13), not get a second one from the gates (R15)."""
        tables = self._tables
        addresses = [address for each in tables.gates.values() for address in each.addresses]
        if message.direct or not addresses or (principal, message.key) in tables.keys:
            return
        text = (
            f"{self._datacenter} takes its jobs from gates: submit to {', '.join(addresses)}, "
            "or here with --direct"
        )
        # Spread over the gates, but the same one first for every try of a submission.
        first = crc32(message.key.encode()) % len(addresses)
        gates = ",".join((*addresses[first:], *addresses[:first]))
        raise RemoteError(ErrorCode.GATED, text, primary=gates)

    async def drain(self, message: DrainNode, incoming: Incoming) -> Draining:
        read = await self._committer.read()
        if message.node not in self._tables.workers:
            raise RemoteError(ErrorCode.NOT_FOUND, f"no worker {message.node}: see `squall nodes`")
        who = principal_of(incoming.peer)
        if not is_operator(incoming.peer):
            # A worker runs the jobs of all clients.
            does = "resume" if message.resume else "drain"
            raise self.requests.forbidden(who, f"{who} may not {does} {message.node}")
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

    async def get_workflow_result(
        self, message: GetWorkflowResult, incoming: Incoming
    ) -> WorkflowResultHeld:
        """Assembles the result of the workflow while the job goes on; no command names that blob,
        so it is collected later. The result of a job that is over has all workflows."""
        self.requests.limit("asks", incoming)
        await self._committer.read()
        job = self.requests.job(message.job)
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
            job = self.requests.job(message.job)
            # Its attempts leave the state when it ends, perhaps while they were read.
            if not job.over:
                return WorkflowResultHeld(await self._ledger.blobs.put(data), len(data))
        if not job.result:
            raise RemoteError(ErrorCode.NOT_FOUND, f"{job.job} left no result: {job.reason}")
        return WorkflowResultHeld(job.result, job.result_size)


def _load_command(job: JobRecord, message: AdjustJob, who: str) -> AdjustLoad:
    return AdjustLoad(
        job=message.job,
        workflows=adjusted_workflows(job, message),
        paused=message.paused,
        rate_per_s=message.rate_per_s,
        vus=message.vus,
        by=who,
        request_id=message.request_id,
    )


def gate_of(tables: Tables, job: JobId) -> str:
    """A gate of the group that created a job, or of one that took it over; "": no such gate is
    known here. A client that was sent to the gates may come back with their job (R15)."""
    group = gate_group_of(job)
    for known in tables.gates.values():
        if group in (known.group, *known.former) and known.addresses:
            return known.addresses[crc32(job.encode()) % len(known.addresses)]
    return ""


def _no_gate(datacenter: str) -> str:
    """Why a manager refuses a job that names datacenters."""
    return (
        f"this is a manager of {datacenter}, not a gate, and chooses no datacenters: leave out "
        "--dc, name a gate with --to, or split the load here with --to eu=HOST:PORT,us=HOST:PORT"
    )
