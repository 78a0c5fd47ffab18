"""A worker as a real process under a manager that the test controls.

The manager speaks the messages of the session: it prepares, grants, starts, stops and frees on
request, takes telemetry and pulls the records that are offered.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import msgspec

from squall.cluster.ledger.blobs.in_memory import MemoryBlobs
from squall.cluster.protocol.bundle import make_bundle
from squall.cluster.protocol.encoded_reports import decode_windows
from squall.cluster.protocol.job_keys import Attempt, AttemptKey, JobId
from squall.cluster.protocol.messages import (
    AdjustOrder,
    AttemptStatus,
    BlobHeld,
    GoOrder,
    JobBrief,
    OfferBlob,
    Preparation,
    Registered,
    RegisterWorker,
    SessionAnswer,
    SessionPush,
    SessionRequest,
    StopOrder,
    Telemetry,
    TelemetryAck,
)
from squall.cluster.wire.blob_transfer import BlobFetcher, serve_blobs
from squall.cluster.wire.links.dispatch import Handlers, Incoming
from squall.cluster.wire.links.endpoint import Endpoint
from squall.cluster.wire.links.switchboard import Switchboard, make_keyring
from squall.cluster.wire.seal.secrets import Secrets, worker_credential
from squall.cluster.worker.manager_links import admit_all
from squall.engine.load.share_specs import share_specs
from squall.engine.process.machine import mark
from squall.engine.run_options import RunOptions
from squall.runtime.interfaces import Runtime
from squall.runtime.real.runtime import RealRuntime
from squall.runtime.tasks import TaskRunner
from squall.stats.attempt_record import AttemptRecord
from squall.stats.manifest import Profile, WorkflowManifest
from squall.stats.record_builder import decode_record
from tests.lab.target import TargetHandle

SECRET = "a secret of the worker's laboratory"
CLUSTER = "worker-lab"
JOB = JobId("lab-1")
WAITS_S = 120.0
SCRIPT = """
import sys
from pathlib import Path
from squall.cluster.worker.main import WorkerOptions, run_worker
from squall.runtime.log import StreamSink
from squall.cluster.wire.seal.secrets import Secrets
port, data, cores, credential, cluster = sys.argv[1:]
sys.exit(run_worker(WorkerOptions(
    datacenter="lab", cores=int(cores),
    managers=tuple(("127.0.0.1", int(each)) for each in port.split(",")),
    data_dir=Path(data), name="w1", timers="fast", cluster=cluster, drain_s=1.0,
    secrets=Secrets.of_credential(credential), log=StreamSink(sys.stderr))))
"""
FLOW = """
    from squall import URL, HTTPResponse, Headers, Workflow, step
    import os
    SENDER = {{"X-Squall-Attempt": os.environ["SQUALL_ATTEMPT"]}}
    class Flow(Workflow):
        @step()
        async def get(self, url: URL = "/", headers: Headers = SENDER) -> HTTPResponse:
            return await self.client.http.get(url, headers=headers)
"""


def key(share: int = 0, attempt: int = 1, workflow: str = "Flow") -> AttemptKey:
    return AttemptKey(JOB, workflow, share, Attempt(attempt))


@dataclass
class Wanted:
    """One attempt, and what the manager says of it."""

    preparation: Preparation
    go_at: float | None = None
    """The manager's clock at which its workflow's clock is zero."""
    granted: bool = True
    stop: StopOrder | None = None
    adjust: AdjustOrder | None = None


@dataclass
class FakeManager:
    """Takes the desired state; returns what the worker reported."""

    endpoint: Endpoint
    board: Switchboard
    blobs: MemoryBlobs
    lease_s: float = 30.0
    """Longer than a busy machine keeps a process waiting; a test of the lease shortens it."""
    interval_s: float = 0.1
    wanted: dict[AttemptKey, Wanted] = field(default_factory=dict)
    brief: JobBrief | None = None
    frees: bool = True
    answers: bool = True
    registrations: list[RegisterWorker] = field(default_factory=list)
    boots: set[str] = field(default_factory=set)
    statuses: dict[AttemptKey, AttemptStatus] = field(default_factory=dict)
    requests: int = 0
    records: dict[AttemptKey, AttemptRecord] = field(default_factory=dict)
    held: dict[str, bytes] = field(default_factory=dict)
    telemetry: dict[AttemptKey, int] = field(default_factory=dict)
    sent: dict[AttemptKey, int] = field(default_factory=dict)
    committed: int = 1
    channels: list[Any] = field(default_factory=list)

    @property
    def now(self) -> float:
        return self.board.runtime.clock.now()

    def on_register(self, message: RegisterWorker, incoming: Incoming) -> Registered:
        self.registrations.append(message)
        self.boots.add(message.boot)
        return Registered(lease_s=self.lease_s, interval_s=self.interval_s)

    async def on_session(self, message: SessionRequest, incoming: Incoming) -> SessionAnswer:
        while not self.answers:
            await asyncio.sleep(0.05)
        self.requests += 1
        self.channels = [incoming.channel]
        self.statuses = {status.key: status for status in message.attempts}
        for status in message.attempts:
            if status.phase == "ended" and status.record in self.held:
                self.records[status.key] = decode_record(self.held[status.record])
        prepare = [w.preparation for k, w in self.wanted.items() if k not in self.statuses]
        done = [k for k in self.records if k in self.statuses] if self.frees else []
        for k in done:
            self.wanted.pop(k, None)
        live = self.wanted.items()
        return SessionAnswer(
            epoch=1,
            view=1,
            committed=self.committed,
            sequence=message.sequence,
            register=message.boot not in self.boots,
            lease_s=self.lease_s,
            granted=[k for k, w in live if w.granted],
            jobs=[self.brief] if prepare and self.brief is not None else [],
            prepare=[p for p in prepare if p.key in self.wanted],
            go=[
                GoOrder(key=k, elapsed_s=self.now - w.go_at, run_elapsed_s=self.now - w.go_at)
                for k, w in live
                if w.go_at is not None and k in self.statuses and self.statuses[k].phase == "ready"
            ],
            stop=[w.stop for w in self.wanted.values() if w.stop is not None],
            adjust=[w.adjust for w in self.wanted.values() if w.adjust is not None],
            free=done,
            interval_s=self.interval_s,
            telemetry_interval_s=0.2,
        )

    async def on_offer(self, message: OfferBlob, incoming: Incoming) -> BlobHeld:
        if message.blob not in self.held:
            tasks = self.board.tasks
            fetcher = BlobFetcher(self.blobs, self.board.counters, tasks)
            await fetcher.fetch(message.blob, message.size, [incoming.channel])
            self.held[message.blob] = self.blobs.take(message.blob)
        return BlobHeld(message.blob)

    def on_telemetry(self, message: Telemetry, incoming: Incoming) -> TelemetryAck:
        acks: list[tuple[AttemptKey, int]] = []
        for part in message.parts:
            known = self.telemetry.get(part.key, 0)
            if part.after <= known < part.upto:
                new = decode_windows(map(bytes, part.reports[known - part.after :]))
                made = sum(report.requests.sent for report in new)
                self.sent[part.key] = self.sent.get(part.key, 0) + made
                self.telemetry[part.key] = part.upto
            acks.append((part.key, self.telemetry.get(part.key, 0)))
        return TelemetryAck(acks=acks, interval_s=0.2)

    def push(self) -> None:
        for channel in self.channels:
            channel.send(SessionPush())

    async def until(self, what: Callable[[], Any], within_s: float = WAITS_S) -> None:
        async with asyncio.timeout(within_s):
            while not what():
                await asyncio.sleep(0.02)

    def want(
        self,
        profile: Profile,
        target: str,
        *,
        attempt: int = 1,
        workflow: str = "Flow",
        **more: Any,
    ) -> AttemptKey:
        """One share that is all of its workflow; every attempt after the first is a refill."""
        manifest = WorkflowManifest(name=workflow, profile=profile)
        [spec] = share_specs(manifest, 1, seed=0, values={}, received={}, exports=[])
        spec.refill = attempt > 1
        wanted = key(attempt=attempt, workflow=workflow)
        preparation = Preparation(key=wanted, spec=spec, slot=0, process=0, **more)
        self.wanted[wanted] = Wanted(preparation)
        if self.brief is None:
            self.bundle(FLOW, target)
        return wanted

    def bundle(self, text: str, target: str, **more: Any) -> None:
        source = textwrap.dedent(text).replace("{{", "{").replace("}}", "}").encode()
        bundle = make_bundle({"flow.py": source}, entry="flow.py", python="3.11")
        digest = self.blobs.put(bundle.data)
        self.brief = JobBrief(
            job=JOB,
            bundle=digest,
            bundle_size=len(bundle.data),
            entry="flow.py",
            options=RunOptions(file="flow.py", host=target),
            **more,
        )

    def change(self, which: AttemptKey, **fields: Any) -> None:
        for name, value in fields.items():
            setattr(self.wanted[which], name, value)
        self.committed += 1
        self.push()

    async def run_to_ready(self, which: AttemptKey) -> None:
        await self.until(lambda: self.phase(which) == "ready")

    async def begin(self, which: AttemptKey) -> None:
        await self.run_to_ready(which)
        self.change(which, go_at=self.now)
        # A short share may be over before this process looks.
        await self.until(lambda: self.phase(which) != "ready")

    def phase(self, which: AttemptKey) -> str:
        status = self.statuses.get(which)
        return "" if status is None else status.phase


@contextlib.asynccontextmanager
async def fake_manager() -> AsyncIterator[FakeManager]:
    runtime = RealRuntime("m1")
    tasks = TaskRunner(runtime.clock, runtime.random)
    handlers = Handlers()
    board = Switchboard(
        runtime=cast("Runtime", runtime),
        keyring=make_keyring(cast("Runtime", runtime), Secrets.of_node(SECRET), CLUSTER),
        admit=admit_all,
        tasks=tasks,
        handlers=handlers,
    )
    blobs = MemoryBlobs()
    endpoint = Endpoint(board)
    manager = FakeManager(endpoint, board, blobs)
    serve_blobs(handlers, blobs)
    handlers.on(RegisterWorker, manager.on_register)
    handlers.on(SessionRequest, manager.on_session)
    handlers.on(OfferBlob, manager.on_offer)
    handlers.on(Telemetry, manager.on_telemetry)
    await endpoint.listen(("127.0.0.1", 0))
    try:
        yield manager
    finally:
        manager.answers = True
        await endpoint.close()
        await tasks.shutdown(2.0)
        await runtime.close()


class WorkerProcess:
    """`squall worker` with fast timers on one data directory, again and again."""

    def __init__(
        self, manager: FakeManager, folder: Path, cores: int = 1, others: Sequence[int] = ()
    ) -> None:
        """`others` are ports of managers that it is to try first."""
        self._manager = manager
        self._others = others
        self._cores = cores
        self.data = folder / "data"
        self.log = folder / "worker.log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        ports = [*self._others, self._manager.endpoint.address[1]]
        words = [sys.executable, "-c", SCRIPT, ",".join(map(str, ports))]
        words += [str(self.data), str(self._cores), worker_credential(SECRET), CLUSTER]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stderr=log)

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def mark(self) -> bytes:
        """What its core processes have in their environment, whatever their boot."""
        [(name, value)] = mark(self.data, "").items()
        return f"{name}={value}".encode()

    def send(self, number: int) -> None:
        os.kill(self.pid, number)

    def cores(self) -> list[int]:
        """Core processes of this worker, whatever their parent is by now."""
        found: list[int] = []
        for folder in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                is_process = folder.name.isdigit()
                if is_process and self.mark in (folder / "environ").read_bytes():
                    found.append(int(folder.name))
        return found

    def end(self, number: int = signal.SIGTERM, within_s: float = 60.0) -> int:
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(timeout=within_s)

    def said(self) -> str:
        return self.log.read_text(errors="replace")


@contextlib.asynccontextmanager
async def worker_under_manager(
    folder: Path, cores: int = 1, others: Sequence[int] = ()
) -> AsyncIterator[tuple[FakeManager, WorkerProcess]]:
    async with fake_manager() as manager:
        worker = WorkerProcess(manager, folder, cores, others)
        worker.start()
        try:
            await manager.until(lambda: manager.requests > 0)
            yield manager, worker
        except BaseException:
            sys.stderr.write(worker.said())
            raise
        finally:
            with contextlib.suppress(Exception):
                worker.send(signal.SIGCONT)
            await asyncio.to_thread(worker.end, signal.SIGKILL)


async def quiet(target: TargetHandle) -> bool:
    """Nothing arrives for a while."""
    before = target.counts()["total"]
    await asyncio.sleep(0.5)
    return target.counts()["total"] == before


def open_load(rate: float, duration_s: float) -> Profile:
    return Profile(model="open", rate_per_s=rate, duration_s=duration_s, vus=4, max_vus=20)


def closed_load(vus: int, duration_s: float) -> Profile:
    return Profile(model="closed", vus=vus, max_vus=vus, duration_s=duration_s, grace_s=1.0)


def sent(record: AttemptRecord) -> int:
    return sum(report.requests.sent for report in record.reports)


def replaced(record: Any, **fields: Any) -> Any:
    return msgspec.structs.replace(record, **fields)
