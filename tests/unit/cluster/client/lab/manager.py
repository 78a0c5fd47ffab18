"""A manager as a client sees it: answers by the messages, nothing behind them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Literal, cast

import msgspec

from squall.cluster.client.cluster_client import ClusterClient
from squall.cluster.client.submission_journal import SubmissionJournal
from squall.cluster.ledger.blobs.in_memory import MemoryBlobs
from squall.cluster.protocol.group_messages import Relay, RelayAnswer
from squall.cluster.protocol.job_keys import JobId
from squall.cluster.protocol.messages import (
    Adjusted,
    AdjustJob,
    BlobHeld,
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
    OfferBlob,
    StreamEvent,
    StreamItem,
    SubmitJob,
    WhyJob,
    WorkflowView,
)
from squall.cluster.protocol.read_facts import ReadFacts
from squall.cluster.protocol.submission import BundleManifest, Submission
from squall.cluster.protocol.timeouts import RequestTimeouts
from squall.cluster.wire.blob_transfer import BlobFetcher, blob_hash, serve_blobs
from squall.cluster.wire.catalogue import CATALOGUE
from squall.cluster.wire.errors import RemoteError
from squall.cluster.wire.links.dispatch import Handlers, Incoming
from squall.cluster.wire.links.endpoint import Endpoint
from squall.cluster.wire.links.switchboard import Switchboard, make_keyring
from squall.cluster.wire.messages import ErrorCode
from squall.cluster.wire.seal.secrets import Secrets, client_credential
from squall.engine.run_options import RunOptions
from squall.runtime.interfaces import Address, Runtime
from squall.runtime.tasks import TaskRunner
from squall.stats.manifest import FileManifest, WorkflowManifest
from tests.fakes.wire import CLUSTER, SECRET, FakeNetwork, FakeRuntime, Gate


class MemoryDisk:
    """What a journal needs of a disk; survives the client that wrote it."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}

    async def make_directory(self, path: str) -> None: ...

    async def write_atomic(self, path: str, data: bytes) -> None:
        self.files[path] = data

    async def read(self, path: str, offset: int = 0, size: int | None = None) -> bytes:
        return self.files[path]

    async def remove(self, path: str) -> None:
        if path not in self.files:
            raise FileNotFoundError(path)
        del self.files[path]

    async def list(self, directory: str = "") -> list[str]:
        return sorted(p.removeprefix(f"{directory}/") for p in self.files)


class Manager:
    """`shared` are the facts of the group: jobs by key, blobs, the stream of the one job."""

    def __init__(self, network: FakeNetwork, port: int, shared: Manager | None = None) -> None:
        self.network = network
        self.address = (f"m{port}", port)
        self.primary = ""
        """host:port of the leading manager; empty: this one leads."""
        self.leads = True
        self.gates = ""
        """Where submissions are sent instead."""
        self.busy = 0
        self.failover_s = 0.0
        """How long an election may take, as its refusals say."""
        self.asked: list[str] = []
        self.managers: list[str] = []
        """The addresses of the group's members, as its answers name them."""
        self.answers: dict[type, Callable[..., Any]] = {}
        self.keys: dict[str, JobId] = {} if shared is None else shared.keys
        self.blobs = MemoryBlobs() if shared is None else shared.blobs
        self.items: list[StreamItem] = [] if shared is None else shared.items
        self.view: dict[JobId, JobView] = {} if shared is None else shared.view
        self.after: list[int] = []
        self.seen: list[tuple[str, int]] = []
        # How recent its answers say that they are.
        self.group, self.op = "g", 7
        self.before_answer: Callable[[], None] = lambda: None
        self._boots = 0
        self.endpoint: Endpoint | None = None

    async def start(self, secret: str = SECRET) -> None:
        self._boots += 1
        runtime = cast("Runtime", FakeRuntime(self.network, self.address[0], f"boot{self._boots}"))
        tasks = TaskRunner(runtime.clock, runtime.random)
        handlers = Handlers()
        self.board = Switchboard(
            runtime=runtime,
            keyring=make_keyring(runtime, Secrets.of_node(secret), CLUSTER),
            admit=Gate(),
            tasks=tasks,
            handlers=handlers,
        )
        self.fetcher = BlobFetcher(self.blobs, self.board.counters, tasks)
        serve_blobs(handlers, self.blobs)
        for struct, handler in (
            (OfferBlob, self._offer), (SubmitJob, self._submit), (Follow, self._follow),
            (GetJob, self._get), (CancelJob, self._cancel), (ListNodes, self._nodes),
            (AdjustJob, self._adjust), (WhyJob, self._why), (ListJobs, self._jobs),
            (DrainNode, self._drain),
        ):  # fmt: skip
            handlers.on(cast("Any", struct), self._checked(handler))
            self.answers[struct] = handler
        handlers.on(Relay, self._relay)
        self.endpoint = Endpoint(self.board)
        await self.endpoint.listen(self.address)

    async def stop(self) -> None:
        if self.endpoint is not None:
            await self.endpoint.close()
            await self.board.tasks.shutdown(1.0)
            self.endpoint = None

    def end(self, job: JobId, state: Any, result: bytes = b"") -> None:
        digest = self.blobs.put(result) if result else ""
        self.view[job] = msgspec.structs.replace(
            self.view[job], state=state, result=digest, result_size=len(result)
        )

    def say(self, text: str) -> None:
        self.items.append(StreamEvent(0.0, text))

    def _checked(self, handler: Callable[..., Any]) -> Callable[..., Any]:
        async def checked(message: Any, incoming: Incoming) -> Any:
            self.asked.append(type(message).__name__)
            if self.busy:
                self.busy -= 1
                raise RemoteError(ErrorCode.RETRY_LATER, "no quorum", retry_after_s=0.3)
            if (self.primary or not self.leads) and not isinstance(message, OfferBlob):
                raise RemoteError(
                    ErrorCode.NOT_PRIMARY, primary=self.primary, leader_within_s=self.failover_s
                )
            if self.gates and isinstance(message, SubmitJob):
                text = f"submit to {self.gates}, or here with --direct"
                raise RemoteError(ErrorCode.GATED, text, primary=self.gates)
            answer = await handler(message, incoming)
            self.before_answer()
            return answer

        return checked

    async def _relay(self, message: Relay, incoming: Incoming) -> RelayAnswer:
        row = CATALOGUE.by_number[message.number]
        self.asked.append(f"Relay {row.name}")
        if row.struct is OfferBlob:
            raise RemoteError(ErrorCode.BAD_MESSAGE, "is not relayed")
        answer = await self.answers[row.struct](row.decode(message.body), incoming)
        kind, body = CATALOGUE.encode(answer)
        return RelayAnswer(kind.number, body)

    async def _offer(self, message: OfferBlob, incoming: Incoming) -> BlobHeld:
        await self.fetcher.fetch(message.blob, message.size, [incoming.channel])
        return BlobHeld(message.blob)

    async def _submit(self, message: SubmitJob, incoming: Incoming) -> JobAccepted:
        if await self.blobs.size(message.submission.bundle) is None:
            raise RemoteError(ErrorCode.NOT_FOUND, "offer the bundle first")
        created = message.key not in self.keys
        job = self.keys.setdefault(message.key, JobId(f"t-{len(self.keys) + 1}"))
        if created:
            self.view[job] = JobView(
                job=job,
                state="running",
                file="shop.py",
                workflows=[WorkflowView(name="Shop", state="running")],
            )
        return JobAccepted(job, created, self._read("strong"))

    async def _follow(self, message: Follow, incoming: Incoming) -> Followed:
        self.after.append(message.after)
        self.seen.append(message.seen)
        until = self.board.runtime.clock.now() + message.wait_s
        while True:
            view = self._known(message.job)
            items = self.items[max(message.after, 0) :]
            if items or view.state == "completed" or self.board.runtime.clock.now() >= until:
                return Followed(
                    upto=len(self.items), items=items, state=view.state, read=self._read("session")
                )
            await asyncio.sleep(0.05)

    async def _get(self, message: GetJob, incoming: Incoming) -> JobStatus:
        return JobStatus(self._known(message.job), read=self._read("strong"))

    async def _cancel(self, message: CancelJob, incoming: Incoming) -> CancelAccepted:
        return CancelAccepted(self._known(message.job).state, read=self._read("strong"))

    async def _adjust(self, message: AdjustJob, incoming: Incoming) -> Adjusted:
        return Adjusted(1, read=self._read("strong"))

    async def _why(self, message: WhyJob, incoming: Incoming) -> Explanation:
        return Explanation([], [], self._read("strong"))

    async def _jobs(self, message: ListJobs, incoming: Incoming) -> JobList:
        return JobList(list(self.view.values()), self._read("strong"))

    async def _drain(self, message: DrainNode, incoming: Incoming) -> Draining:
        return Draining(message.node, 0, self._read("strong"))

    async def _nodes(self, message: ListNodes, incoming: Incoming) -> NodeList:
        return NodeList("dc", [], self._read("strong"))

    def _read(self, level: Literal["strong", "session"]) -> ReadFacts:
        return ReadFacts(level=level, group=self.group, op=self.op, managers=self.managers)

    def _known(self, job: JobId) -> JobView:
        if job not in self.view:
            raise RemoteError(ErrorCode.NOT_FOUND)
        return self.view[job]


class Person:
    """A client process with its journal; `dies` leaves the journal as it is."""

    def __init__(
        self,
        network: FakeNetwork,
        *managers: Manager,
        disk: MemoryDisk | None = None,
        secret: str = SECRET,
        owner: str = "1",
        reconnect_timeout_s: float = 20.0,
        timeouts: RequestTimeouts | None = None,
        remembered: Sequence[Address] = (),
        names: Sequence[Address] = (),
    ) -> None:
        runtime = FakeRuntime(network, f"client-{owner}", f"client-{owner}-boot")
        self.disk = cast("Any", runtime).disk = disk or MemoryDisk()
        self.world = cast("Runtime", runtime)
        self.tasks = TaskRunner(runtime.clock, runtime.random)
        self.alive = {owner}
        self.journal = SubmissionJournal(self.world, owner, lambda name: name in self.alive)
        self.client = ClusterClient(
            self.world,
            self.tasks,
            addresses=[*(manager.address for manager in managers), *names],
            secrets=Secrets.of_credential(client_credential(secret, "ann")),
            cluster=CLUSTER,
            reconnect_timeout_s=reconnect_timeout_s,
            timeouts=timeouts,
            remembered=remembered,
            on_managers=self._met,
        )
        self.met: list[Address] = []

    async def _met(self, managers: list[Address]) -> None:
        self.met = managers

    async def close(self) -> None:
        await self.client.close()
        await self.tasks.shutdown(1.0)


BUNDLE = b"a bundle " * 100_000


def submission(content: bytes = BUNDLE) -> Submission:
    return Submission(
        bundle=blob_hash(content),
        bundle_size=len(content),
        contents=BundleManifest(entry="shop.py", python="3.11"),
        manifest=FileManifest(path="shop.py", workflows=[WorkflowManifest(name="Shop")]),
        options=RunOptions(file="shop.py"),
    )
