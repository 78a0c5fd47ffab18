"""Answers clients of a gate: submit, drain, results; the rest is in
`cluster.group.clients`.

Every change is one command that is safe to repeat. A gate that does not lead answers with the
address of the primary, or relays.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from squall.cluster.assignments.commands import AdjustParts, CreateGateJob, GateCommand, PartLoad
from squall.cluster.assignments.records import GateJobRecord
from squall.cluster.assignments.state_machine import Assignments
from squall.cluster.gate.job_parts import part_weights
from squall.cluster.gate.router import DatacenterRouter
from squall.cluster.gate.routing.known_datacenters import KnownDatacenters
from squall.cluster.group.clients.job_changes import JobChanges
from squall.cluster.group.clients.job_requests import (
    JobRequests,
    adjusted_workflows,
    is_operator,
    principal_of,
)
from squall.cluster.group.clients.submissions import QueueFull, SubmissionCheck
from squall.cluster.group.committer import Committer
from squall.cluster.protocol.gates.federation_messages import DatacenterList, ListDatacenters
from squall.cluster.protocol.gates.job_split import part_of_change
from squall.cluster.protocol.messages import (
    AdjustJob,
    Draining,
    DrainNode,
    GetWorkflowResult,
    JobAccepted,
    SubmitJob,
    WorkflowResultHeld,
)
from squall.cluster.protocol.submission import Targets
from squall.cluster.wire.errors import RemoteError
from squall.cluster.wire.links.dispatch import Handlers, Incoming
from squall.cluster.wire.messages import ErrorCode
from squall.runtime.interfaces import Clock
from squall.runtime.log import Log

AskDatacenterNode = Callable[[str, msgspec.Struct], Awaitable[Any]]
"""Asks the primary of a datacenter. Raises WireError."""


class GateClientApi:
    """Handles the requests of clients that change the gates' state."""

    def __init__(
        self,
        *,
        machine: Assignments,
        committer: Committer[GateCommand],
        requests: JobRequests[GateJobRecord],
        submissions: SubmissionCheck,
        known: KnownDatacenters,
        router: DatacenterRouter,
        node: str,
        clock: Clock,
        wall_s: Callable[[], float],
        lead_member: Callable[[str], str],
        ask: AskDatacenterNode,
        log: Log,
    ) -> None:
        """`wall_s` returns the time to stamp a new job with, and `lead_member` chooses its leader
        by its key."""
        self._machine = machine
        self._committer = committer
        self._requests = requests
        self._changes = JobChanges(requests, committer, log, _load_command, "it has not started")
        self._submissions = submissions
        self._known = known
        self._router = router
        self._node = node
        self._clock = clock
        self._wall_s = wall_s
        self._lead_member = lead_member
        self._ask = ask
        self._log = log

    def register(self, handlers: Handlers) -> None:
        self._requests.register(handlers)
        self._changes.register(handlers)
        handlers.on(SubmitJob, self.submit)
        handlers.on(GetWorkflowResult, self.get_workflow_result)
        handlers.on(DrainNode, self.drain)
        handlers.on(ListDatacenters, self.list_datacenters)

    async def submit(self, message: SubmitJob, incoming: Incoming) -> JobAccepted:
        self._requests.limit("submits", incoming)
        principal = principal_of(incoming.peer)
        targets = message.submission.targets or Targets(count=1)
        self._check_targets(targets)
        try:
            checked = await self._submissions.checked(message, principal)
        except QueueFull:
            self._requests.on_refused(principal, "queue")
            self._log.warning("client_refused", client=principal, why="the queue is full")
            raise
        count = max(targets.count, 1)
        accepted = await self._committer.commit(
            CreateGateJob(
                principal=principal,
                key=message.key,
                fingerprint=checked.fingerprint,
                submission=checked.submission,
                sealed=checked.sealed,
                leader=self._lead_member(message.key),
                created_at=self._wall_s(),
                timeout_ms=int((message.submission.timeout_s or 0.0) * 1000),
                weights=tuple(weight for _, weight in targets.weights) or (1.0 / count,) * count,
            )
        )
        return JobAccepted(accepted.job, accepted.changed, self._committer.facts("strong"))

    def _check_targets(self, targets: Targets) -> None:
        """Refuses a job that asks for datacenters which this gate does not know."""
        unknown = self._router.unknown(targets)
        if not unknown and targets.count > len(self._known.names):
            there = ", ".join(self._known.names)
            unknown = f"{targets.count} datacenters wanted; there are {there}"
        if unknown:
            # Not NOT_FOUND: a client would take that for a bundle that it has to offer first.
            raise RemoteError(ErrorCode.BAD_MESSAGE, unknown)

    async def drain(self, message: DrainNode, incoming: Incoming) -> Draining:
        """Passes the request on to the datacenter of the worker, which is named `eu/w1`."""
        read = await self._committer.read()
        datacenter, slash, worker = message.node.partition("/")
        if not slash or datacenter not in self._known:
            text = f"no worker {message.node}: name its datacenter, as in {self._known.names[0]}/w1"
            raise RemoteError(ErrorCode.BAD_MESSAGE, text)
        who = principal_of(incoming.peer)
        if not is_operator(incoming.peer):
            # A worker runs the jobs of all clients.
            does = "resume" if message.resume else "drain"
            raise self._requests.forbidden(who, f"{who} may not {does} {message.node}")
        drained: Draining = await self._ask(
            datacenter, msgspec.structs.replace(message, node=worker)
        )
        self._log.info("worker_drained", worker=message.node, by=who, draining=not message.resume)
        return Draining(message.node, drained.running, read)

    async def get_workflow_result(
        self, message: GetWorkflowResult, incoming: Incoming
    ) -> WorkflowResultHeld:
        """The parts of a workflow are merged when the job is over, with all others."""
        self._requests.limit("asks", incoming)
        await self._committer.read()
        job = self._requests.job(message.job)
        if message.workflow not in [each.name for each in job.submission.manifest.workflows]:
            known = ", ".join(each.name for each in job.submission.manifest.workflows)
            text = f"{job.job} has no workflow {message.workflow}: it has {known}"
            raise RemoteError(ErrorCode.NOT_FOUND, text)
        if not job.over:
            text = f"{job.job} is not over yet: its datacenters' results are merged at its end"
            raise RemoteError(ErrorCode.CONFLICT, text)
        if not job.result:
            raise RemoteError(ErrorCode.NOT_FOUND, f"{job.job} left no result: {job.reason}")
        return WorkflowResultHeld(job.result, job.result_size)

    def list_datacenters(self, message: ListDatacenters, incoming: Incoming) -> DatacenterList:
        views = self._known.views(self._clock.now())
        return DatacenterList(datacenters=views, reported_by=self._node)


def _load_command(job: GateJobRecord, message: AdjustJob, who: str) -> AdjustParts:
    return AdjustParts(
        job=message.job,
        workflows=adjusted_workflows(job, message),
        paused=message.paused,
        rate_per_s=message.rate_per_s,
        vus=message.vus,
        parts=_part_loads(job, message),
        by=who,
        request_id=message.request_id,
    )


def _part_loads(job: GateJobRecord, message: AdjustJob) -> tuple[PartLoad, ...]:
    """Apportions a change of the load to the parts; they add up to it exactly."""
    weights = part_weights(job)
    changes = [part_of_change(message, index, weights) for index in range(len(weights))]
    return tuple(PartLoad(each.rate_per_s, each.vus) for each in changes)
