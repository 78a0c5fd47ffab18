"""The client of a datacenter: submits, follows, changes and lists jobs, and fetches results.

The managers decide everything about a job. Every request of a client may be repeated, so a lost
connection is a failure only after the reconnect timeout. An accepted job goes on without its
client. The client must never send a job before its key is on disk.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from squall.api.errors import SquallError
from squall.cluster.client.errors import JobLost, RequestRefused, Unreachable
from squall.cluster.client.manager_connections import ManagerConnections
from squall.cluster.client.submission_journal import SubmissionEntry, SubmissionJournal
from squall.cluster.ledger.blobs.in_memory import MemoryBlobs
from squall.cluster.protocol.gates.federation_messages import DatacenterList, ListDatacenters
from squall.cluster.protocol.gates.job_reports import ReportCursor
from squall.cluster.protocol.job_keys import JobId
from squall.cluster.protocol.membership.contacts import AskMembers, MemberList
from squall.cluster.protocol.messages import (
    Adjusted,
    AdjustJob,
    CancelAccepted,
    CancelJob,
    Counters,
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
    OfferBlob,
    StreamSnapshot,
    SubmitJob,
    WhyJob,
    WorkflowResultHeld,
)
from squall.cluster.protocol.read_facts import ReadFacts
from squall.cluster.protocol.submission import Submission, Targets, fingerprint
from squall.cluster.protocol.timeouts import RequestTimeouts
from squall.cluster.results.counters import final_counters, live_counters
from squall.cluster.results.job_result import JobResult, decode_result, outcome_of
from squall.cluster.wire.blob_transfer import BlobFetcher, serve_blobs
from squall.cluster.wire.errors import BlobError
from squall.cluster.wire.links.dispatch import Handlers
from squall.cluster.wire.links.switchboard import LinkTLS
from squall.cluster.wire.messages import ErrorCode
from squall.cluster.wire.seal.secrets import Secrets
from squall.runtime.addresses import address_in
from squall.runtime.backoff import Backoff
from squall.runtime.interfaces import Address, Runtime
from squall.runtime.tasks import TaskRunner
from squall.settings.shared_sections import DRAIN_TIMEOUT_S
from squall.stats.snapshot import Snapshot

if TYPE_CHECKING:
    from squall.engine.outcome import RunOutcome
    from squall.engine.run_options import RunOptions

TERMINAL = frozenset({"completed", "partial", "failed", "cancelled", "timeout"})
QUERY_TIMEOUT_S = RequestTimeouts().query_s
RECONNECT_TIMEOUT_S = 60.0
FOLLOW_S = 5.0
"""How long a manager holds a `Follow` that has nothing new to answer."""
OFFERS_MAX = 5
FETCH_RETRY = Backoff(0.2, factor=1.0)
"""Constant: the question before each fetch already waits until a manager answers."""


class ClusterClient:
    """Sends requests to the managers of one datacenter until `close`."""

    def __init__(
        self,
        runtime: Runtime,
        tasks: TaskRunner,
        *,
        addresses: Sequence[Address],
        remembered: Sequence[Address] = (),
        on_managers: Callable[[list[Address]], Awaitable[None]] | None = None,
        secrets: Secrets,
        cluster: str,
        reconnect_timeout_s: float | None = RECONNECT_TIMEOUT_S,
        timeouts: RequestTimeouts | None = None,
        shown: str = "",
        tls: LinkTLS | None = None,
    ) -> None:
        """`remembered` are managers of former runs, `on_managers` receives those of the present.
        `reconnect_timeout_s` is how long the client of a running job waits for lost managers, None
        as long as a query; `timeouts` are those of the network. `shown` names the managers in
        messages, if their addresses do not."""
        self._runtime = runtime
        self._timeouts = timeouts or RequestTimeouts(query_s=QUERY_TIMEOUT_S)
        if reconnect_timeout_s is None:
            reconnect_timeout_s = self._timeouts.query_s
        self._reconnect_timeout_s = reconnect_timeout_s
        self._on_managers = on_managers
        self._blobs = MemoryBlobs()
        handlers = Handlers()
        serve_blobs(handlers, self._blobs)
        self.managers = ManagerConnections(
            runtime,
            tasks,
            handlers,
            addresses=addresses,
            remembered=remembered,
            secrets=secrets,
            cluster=cluster,
            tls=tls,
            timeouts=self._timeouts,
            shown=shown,
        )
        self._job_leader = self.managers.apart()
        # The group and its highest op of all answers: no later answer may be older.
        self._seen = ("", 0)
        self._managers_named: list[str] = []
        board = self.managers.board
        self._fetcher = BlobFetcher(
            self._blobs, board.counters, tasks, chunk_timeout_s=self._timeouts.chunk_s
        )

    async def close(self) -> None:
        await self.managers.close()

    def out_of_contact_s(self) -> tuple[float, float]:
        """How long no manager has answered the follower of a job, and how long it still tries;
        (0, 0) while one answers."""
        since = self._job_leader.lost_since
        if since is None:
            return 0.0, 0.0
        lost_s = self._runtime.clock.now() - since
        return max(lost_s, 0.001), max(self._reconnect_timeout_s - lost_s, 0.0)

    # Jobs.

    async def submit(
        self,
        submission: Submission,
        bundle: bytes,
        journal: SubmissionJournal,
        key: str = "",
        *,
        direct: bool = False,
    ) -> tuple[JobAccepted, SubmissionEntry]:
        """Writes the key to disk before the first byte is sent. The caller closes the entry when
        it has seen the end of the job. `direct`: past the gates of the datacenter."""
        asked = f"{fingerprint(submission)} {self.managers.shown}"
        entry = await journal.open(asked, key)
        try:
            accepted = await self._submitted(SubmitJob(entry.key, submission, direct), bundle)
        except RequestRefused:
            await journal.close(entry)
            raise
        return accepted, await journal.accepted(entry, accepted.job)

    async def _submitted(self, message: SubmitJob, bundle: bytes) -> JobAccepted:
        """Offers the bundle again if another manager leads by now and does not have it yet."""
        submission = message.submission
        if not submission.bundle:
            return await self._ask_long(message, self._timeouts.answer_s)
        self._blobs.put(bundle)
        offer = OfferBlob(submission.bundle, submission.bundle_size)
        offers = 0
        while True:
            offers += 1
            await self._ask_long(offer, self._timeouts.upload_s)
            try:
                return await self._ask_long(message, self._timeouts.answer_s)
            except RequestRefused as error:
                if error.code != ErrorCode.NOT_FOUND or offers == OFFERS_MAX:
                    raise

    async def follow(
        self,
        job: JobId,
        after: int = 0,
        *,
        known: bool = False,
        cursor: Callable[[], ReportCursor] | None = None,
        histograms: bool = False,
    ) -> AsyncIterator[Followed]:
        """Yields answers with what is new; the last has a terminal state. Raises `JobLost` if the
        cluster no longer knows a job that was `known`. With `cursor`, which returns what the caller
        has, the answers also have the reports of a datacenter's part. With `histograms`, snapshots
        have those of all rows."""
        longest_s = min(FOLLOW_S, self._reconnect_timeout_s / 2.0)
        wait_s = longest_s
        while True:
            has = cursor() if cursor is not None else None
            ask = Follow(
                job=job,
                after=after,
                wait_s=wait_s,
                seen=self._seen,
                reports=has,
                histograms=histograms,
            )
            try:
                answer: Followed = await self._job_leader.ask(
                    ask,
                    timeout_s=FOLLOW_S + self._timeouts.answer_s,
                    reconnect_timeout_s=self._reconnect_timeout_s,
                )
            except RequestRefused as error:
                raise self._unknown(error, job, known=known) from None
            known = True
            await self._note(answer)
            after = max(after, answer.upto)
            wait_s = 0.0 if answer.reports is not None and answer.reports.more else longest_s
            yield answer
            if answer.state in TERMINAL and not answer.more:
                return
            if self._timeouts.follow_pause_s and not answer.more:
                await self._runtime.clock.sleep(self._timeouts.follow_pause_s)

    async def latest(self, job: JobId) -> Snapshot | None:
        """The last snapshot of a running job; None before its first and after its end."""
        async for answer in self.follow(job, -1):
            shown = [item.snapshot for item in answer.items if isinstance(item, StreamSnapshot)]
            return shown[-1] if shown and answer.state not in TERMINAL else None
        return None

    async def result(self, job: JobId, *, known: bool = False) -> JobResult:
        """The result of a job that has ended; raises `SquallError` with the reason if it left
        none."""
        try:
            view = await self.status(job)
        except RequestRefused as error:
            raise self._unknown(error, job, known=known) from None
        if view.state not in TERMINAL:
            raise SquallError(f"job {job} is {view.state}; it has a result once it has ended")
        if not view.result:
            raise SquallError(f"job {job} ended ({view.state}) without a result: {view.reason}")
        return await self._result_of(view)

    async def _result_of(self, view: JobView) -> JobResult:
        await self._fetch(view.result, view.result_size)
        return decode_result(self._blobs.take(view.result))

    async def workflow_result(self, job: JobId, workflow: str) -> JobResult:
        """A result that has this workflow, which must be over; its job may go on."""
        held: WorkflowResultHeld = await self._ask_about(GetWorkflowResult(job, workflow), job)
        await self._fetch(held.blob, held.size)
        return decode_result(self._blobs.take(held.blob))

    async def status(self, job: JobId) -> JobView:
        return (await self.job_status(job)).view

    async def counted_status(self, job: JobId) -> JobView:
        """The status with counters also of a job that has ended: those of its result. Gates show
        those of a running job in its snapshots."""
        view = await self.status(job)
        counters: dict[str, Counters] = {}
        if view.state in TERMINAL and view.result:
            counters = final_counters(await self._result_of(view))
        elif view.state not in TERMINAL and view.datacenters:
            snapshot = await self.latest(job)
            counters = live_counters(snapshot) if snapshot is not None else {}
        if not counters:
            return view
        workflows = [
            msgspec.structs.replace(each, counters=counters.get(each.name))
            for each in view.workflows
        ]
        return msgspec.structs.replace(view, workflows=workflows)

    async def job_status(self, job: JobId) -> JobStatus:
        """The state of the job and the manifest of its file."""
        return await self._ask_about(GetJob(job), job)

    async def jobs(self, limit: int = 100) -> list[JobView]:
        answer: JobList = await self._ask(ListJobs(limit))
        return answer.jobs

    async def cancel(self, job: JobId, *, now: bool = False, reason: str = "") -> CancelAccepted:
        return await self._ask_about(CancelJob(job, now, reason), job)

    async def adjust(self, change: AdjustJob) -> Adjusted:
        # Every try of the request has the same id, so that a late one changes nothing.
        once = msgspec.structs.replace(change, request_id=self._runtime.entropy(8).hex())
        return await self._ask_about(once, change.job)

    async def why(self, job: JobId) -> Explanation:
        return await self._ask_about(WhyJob(job), job)

    # Nodes.

    async def datacenters_of(
        self, targets: Targets | None, nodes: NodeList | None = None
    ) -> list[str]:
        """The datacenters that may run a job with these targets, which its thresholds may name;
        none if the managers of one datacenter run it. `nodes` are asked for if not given."""
        if targets is not None and targets.weights:
            return [name for name, _ in targets.weights]
        if nodes is None:
            nodes = await self.nodes()
        if not any(node.role == "gate" for node in nodes.nodes):
            return []
        answer: DatacenterList = await self._ask(ListDatacenters())
        return [each.name for each in answer.datacenters]

    async def nodes(self, within_s: float | None = None, datacenter: str = "") -> NodeList:
        """`within_s` is how long to wait for a manager, if the user said so. A gate answers with
        its datacenters, or with the nodes of the one that is named."""
        return await self._ask(ListNodes(datacenter), within_s)

    async def members(self, datacenter: str = "") -> MemberList:
        """Whom the nodes hear, as the answering member sees it; `datacenter` as in `nodes`."""
        return await self._ask(AskMembers(datacenter))

    async def drain(
        self, node: str, *, resume: bool = False, within_s: float = DRAIN_TIMEOUT_S
    ) -> Draining:
        """The shares that run on it end within `within_s`, or others continue them."""
        try:
            return await self._ask(DrainNode(node, resume, within_s))
        except RequestRefused as error:
            if error.code != ErrorCode.NOT_FOUND:
                raise
            raise RequestRefused(
                f"no node {node} here; squall nodes lists them", error.code, error.exit_code
            ) from None

    # Requests.

    def _unknown(self, error: RequestRefused, job: JobId, *, known: bool) -> SquallError:
        if error.code != ErrorCode.NOT_FOUND or not known:
            return _unknown_job(error, job)
        return JobLost(
            f"job {job} is lost: {self.managers.shown} no longer knows it. The log that held it "
            "was lost or replaced (an emptied store, a forced recovery): its load has stopped "
            "and its counts are gone. Run it again"
        )

    async def _ask(self, message: msgspec.Struct, within_s: float | None = None) -> Any:
        timeouts = self._timeouts
        return await self._note(
            await self.managers.ask(
                message,
                timeout_s=timeouts.answer_s,
                reconnect_timeout_s=timeouts.query_s if within_s is None else within_s,
                awaits_leader=within_s is None,
            )
        )

    async def _note(self, answer: Any) -> Any:
        """Remembers how recent the answer is, and the managers that it names."""
        read: ReadFacts | None = getattr(answer, "read", None)
        if read is None:
            return answer
        group, op = self._seen
        # Another group: the former one was recovered or restored, with other op numbers.
        self._seen = (read.group, max(op, read.op) if read.group == group else read.op)
        await self.learn(read.managers)
        return answer

    async def learn(self, named: list[str]) -> None:
        """Remembers where the members of the group are, also for the next run."""
        if not named or named == self._managers_named:
            return
        self._managers_named = named
        managers = [each for text in named if (each := address_in(text)) is not None]
        self.managers.learn(managers)
        # Gates that managers sent us to are not what the given addresses lead to.
        if self._on_managers is not None and not self.managers.is_gated:
            await self._on_managers(managers)

    async def _ask_about(self, message: msgspec.Struct, job: JobId) -> Any:
        try:
            return await self._ask_long(message, self._timeouts.answer_s)
        except RequestRefused as error:
            raise _unknown_job(error, job) from None

    async def _ask_long(self, message: msgspec.Struct, timeout_s: float) -> Any:
        """A request about a running job: waits `reconnect_timeout_s` for a lost manager."""
        return await self._note(
            await self.managers.ask(
                message, timeout_s=timeout_s, reconnect_timeout_s=self._reconnect_timeout_s
            )
        )

    async def _fetch(self, blob: str, size: int) -> None:
        """Resumes a broken transfer where it ended, from any manager that answers."""
        clock = self._runtime.clock
        until = clock.now() + self._reconnect_timeout_s
        failures = 0
        while True:
            try:
                await self._fetcher.fetch(blob, size, [self.managers.current])
                return
            except BlobError as error:
                if clock.now() >= until:
                    raise Unreachable(f"{self.managers.shown}: {error}") from None
            await self.managers.ask(
                ListNodes(),
                timeout_s=self._timeouts.answer_s,
                reconnect_timeout_s=max(until - clock.now(), 0.0),
            )
            failures += 1
            await clock.sleep(FETCH_RETRY.delay_s(failures))


def _unknown_job(error: RequestRefused, job: JobId) -> RequestRefused:
    if error.code != ErrorCode.NOT_FOUND:
        return error
    return RequestRefused(f"no job {job} here; squall jobs lists them", error.code, error.exit_code)


def cluster_cores(answer: NodeList) -> int:
    """Cores that can be given work, of one datacenter or of all datacenters of a gate."""
    usable = ("healthy", "busy", "degraded")
    far = sum(each.cores for each in answer.datacenters if each.health in usable)
    return far + cores_of(answer.nodes)


def cores_of(nodes: Iterable[NodeView]) -> int:
    """Cores of the workers that can be given work."""
    away = ("gone", "silent", "draining", "drained")
    return sum(node.cores for node in nodes if node.role == "worker" and node.state not in away)


def outcome_from(result: JobResult, options: RunOptions | None = None) -> RunOutcome:
    """Raises the same error as a run on this machine if the cluster refused the file."""
    if result.refusal:
        from squall.engine.run.local_run import error_of

        raise error_of(result.refusal, result.refusal_code)
    outcome = outcome_of(result)
    if options is not None and options.file:
        from squall.engine.run.metadata import git_commit

        outcome.info.git = git_commit(options.file)
    return outcome
