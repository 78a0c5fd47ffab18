"""Agents as real processes that meet in a real store, to be hurt: kill -9, SIGSTOP, a store
that goes away or loses everything.

It is the laboratory of the datacenter with another kind of node: everything is started as an
operator would start it, by `squall agent`, and what a test learns is what a person sees. A
Redis server of the laboratory's own can be stopped, paused and emptied.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import shutil
import signal
import sqlite3
import subprocess
import time
import uuid
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any, Protocol, cast

import pytest

import squall
from squall.api.errors import SquallError
from squall.cluster.client.access import AccessOptions
from squall.cluster.client.cluster_client import QUERY_TIMEOUT_S
from squall.cluster.client.connection import connected
from squall.cluster.protocol.messages import NodeView
from squall.coordination.store_errors import StoreError
from squall.coordination.stores.interface import Store
from squall.runtime.interfaces import Runtime
from squall.runtime.real.runtime import RealRuntime
from squall.store_mode.access import client_access
from squall.store_mode.find_coordinator import find_leader
from squall.store_mode.open_store import DEFAULT_PREFIX, opened_store
from tests.cluster.lab.nodes import SECRET, Cluster, Command, Node
from tests.cluster.lab.questions import Question
from tests.lab import atomic_moto
from tests.lab.ports import free_ports
from tests.lab.target import TargetHandle

KINDS = ("redis", "sqlite", "s3")
BUCKET = "agents"
ANSWERS_WITHIN_S = 60.0
AWS = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_DEFAULT_REGION": "us-east-1",
}


class Place(Protocol):
    """A store that can go away and come back."""

    url: str

    def start(self) -> None: ...
    def stop(self) -> None:
        """For good."""
        ...

    def leave(self) -> None:
        """Answers no request from now on."""
        ...

    def come_back(self) -> None: ...


class RedisPlace:
    """A server of its own. What it holds survives a pause, not a restart."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "redis"
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._port,) = free_ports(1)
        self._process: subprocess.Popen[bytes] | None = None
        self.url = f"redis://127.0.0.1:{self._port}/0"

    def start(self) -> None:
        server = shutil.which("redis-server")
        if server is None:
            _missing("no redis-server")
        self._process = subprocess.Popen(
            [
                str(server), "--port", str(self._port), "--bind", "127.0.0.1",
                "--save", "", "--appendonly", "no", "--dir", str(self._folder),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        _until(self._answers, "redis-server does not answer")

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
            self._process.kill()
            self._process.wait()

    def leave(self) -> None:
        self._signal(signal.SIGSTOP)

    def come_back(self) -> None:
        self._signal(signal.SIGCONT)

    def restart_empty(self) -> None:
        self.stop()
        self.start()

    def _signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def _answers(self) -> bool:
        import redis

        client = redis.Redis(port=self._port)
        try:
            return bool(client.ping())
        except redis.exceptions.ConnectionError:
            return False
        finally:
            client.close()


class SqlitePlace:
    """One file. It is unavailable while another process holds its lock."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "store.db"
        self._holder: sqlite3.Connection | None = None
        self.url = f"sqlite:///{self._path}"

    def start(self) -> None:
        pass

    def stop(self) -> None:
        self.come_back()

    def leave(self) -> None:
        self._holder = sqlite3.connect(self._path, isolation_level=None, timeout=60.0)
        self._holder.execute("BEGIN EXCLUSIVE")

    def come_back(self) -> None:
        if self._holder is not None:
            self._holder.rollback()
            self._holder.close()
            self._holder = None


class Moto:
    """A model of S3 in a process of its own; each laboratory has a prefix in its bucket."""

    def __init__(self, log: Path | None = None) -> None:
        """`log` gets a line for each request."""
        self._log = log
        (self.port,) = free_ports(1)
        self._process: subprocess.Popen[bytes] | None = None
        self.endpoint = f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        if importlib.util.find_spec("moto") is None:
            _missing("no moto")
        with open(self._log or os.devnull, "ab") as log:
            self._process = subprocess.Popen(
                [*atomic_moto.PROGRAM, "-p", str(self.port)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                env=os.environ | AWS,
            )
        _until(self._makes_bucket, "moto does not answer")

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
            self._process.kill()
            self._process.wait()

    def signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def _makes_bucket(self) -> bool:
        import urllib.error
        import urllib.request

        request = urllib.request.Request(f"{self.endpoint}/{BUCKET}", method="PUT")
        try:
            with urllib.request.urlopen(request, timeout=5.0) as answer:
                return answer.status == 200
        except (urllib.error.URLError, OSError):
            return False


class S3Place:
    def __init__(self, moto: Moto) -> None:
        self._moto = moto
        prefix = uuid.uuid4().hex[:8]
        self.url = f"s3://{BUCKET}/{prefix}?endpoint={moto.endpoint}&region=us-east-1"

    def start(self) -> None:
        pass

    def stop(self) -> None:
        self.come_back()

    def leave(self) -> None:
        self._moto.signal(signal.SIGSTOP)

    def come_back(self) -> None:
        self._moto.signal(signal.SIGCONT)


@contextlib.contextmanager
def moto_running(log: Path | None = None) -> Generator[Moto]:
    server = Moto(log)
    try:
        server.start()
        yield server
    finally:
        server.stop()


class StoreLab(Cluster):
    """`agents` agents on one store, and one target."""

    def __init__(
        self,
        folder: Path,
        target: TargetHandle,
        place: Place,
        *,
        agents: int = 3,
        cores: int = 1,
        timers: str = "fast",
        launcher: bool = False,
    ) -> None:
        self.place = place
        super().__init__(
            folder, target, managers=0, workers=0, cores=cores, timers=timers, launcher=launcher
        )
        for number in range(agents):
            self.add_agent(f"a{number + 1}")

    @property
    def reach(self) -> tuple[str, ...]:
        return ("--store", self.place.url)

    @property
    def environment(self) -> dict[str, str]:
        return super().environment | AWS

    def __enter__(self) -> StoreLab:
        try:
            self.place.start()
            for name in self.nodes:
                self.start(name)
            self.wait_ready()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.place.come_back()
        for node in self.nodes.values():
            if node.process is not None and node.process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    self.thaw(node.name)
        super().__exit__()
        self.place.stop()

    def add_agent(self, name: str, *words: str) -> None:
        self.nodes[name] = Node(
            name,
            [
                "agent", *self.reach, "--name", name, "--cores", str(self.cores),
                "--timers", self.timers, "--data", str(self.folder / name), *words,
            ],
            self.folder / f"{name}.log",
        )  # fmt: skip

    def run(self, file: str, *words: str) -> Command:
        """`squall run FILE --store` this one."""
        results = self.folder / f"results-{self._count + 1}.json"
        return self.begin(
            "run", file, *self.reach, "--host", self.target.url, "--json", str(results), *words
        )

    def asked(self, question: Question, *, of: Sequence[str] = ()) -> Any:
        assert not of, "a store is asked, and not one of its agents"
        os.environ.update(AWS, XDG_STATE_HOME=str(self.folder / "state"))
        return asyncio.run(self._answer(question))

    async def _answer(self, question: Question) -> Any:
        options = AccessOptions(store=self.place.url, secret=SECRET, cluster="lab")
        async with connected(client_access(options), QUERY_TIMEOUT_S) as connection:
            await connection.ready(within_s=QUERY_TIMEOUT_S)
            return await question(connection.client)

    def leader(self, within_s: float = 40.0) -> str:
        """The agent that coordinates now, by the lease in the store."""
        os.environ.update(AWS)
        mailbox = asyncio.run(_coordinator(self.place.url, within_s))
        return mailbox.rpartition("-")[0]

    def others(self) -> list[str]:
        """Agents that run and do not coordinate."""
        leader = self.leader()
        return [name for name in self.running() if name != leader]

    def running(self) -> list[str]:
        return [
            name
            for name, node in self.nodes.items()
            if node.process is not None and node.process.poll() is None
        ]

    def wait_ready(self, within_s: float = 90.0) -> None:
        """All running agents registered. Asked in this process: commands take a core of the
        machine for a second each, which the agents need to start."""
        os.environ.update(AWS, XDG_STATE_HOME=str(self.folder / "state"))
        try:
            asyncio.run(self._registered(len(self.running()), within_s))
        except TimeoutError:
            raise AssertionError(f"the agents are not ready\n{self.logs()}") from None

    async def _registered(self, wanted: int, within_s: float) -> None:
        async with asyncio.timeout(within_s):
            await _coordinator(self.place.url, within_s)
            async with squall.Client(store=self.place.url, secret=SECRET, cluster="lab") as client:
                while True:
                    nodes: list[NodeView] = []
                    with contextlib.suppress(SquallError):
                        nodes = await client.nodes()
                    workers = [node for node in nodes if node.role == "worker"]
                    if sum(node.state in ("idle", "busy") for node in workers) >= wanted:
                        return
                    await asyncio.sleep(0.1)

    def logs(self) -> str:
        return "\n".join(f"--- {node.name}\n{node.said()[-3000:]}" for node in self.nodes.values())


async def _coordinator(url: str, within_s: float) -> str:
    """A store that answers too slowly, because the machine is busy, is asked again."""
    runtime = cast("Runtime", RealRuntime("lab"))
    until = time.monotonic() + within_s
    while True:
        try:
            async with opened_store(url, DEFAULT_PREFIX, runtime) as store:
                return await _leads_by(store, until)
        except StoreError as error:
            if time.monotonic() > until:
                raise AssertionError(f"nobody coordinates: {error}") from None


async def _leads_by(store: Store, until: float) -> str:
    while True:
        try:
            return await find_leader(store)
        except ConnectionError as error:
            if time.monotonic() > until:
                raise AssertionError(f"nobody coordinates: {error}") from None
        await asyncio.sleep(0.05)


def place_of(kind: str, folder: Path, moto: Moto | None = None) -> Place:
    if kind == "redis":
        return RedisPlace(folder)
    if kind == "sqlite":
        return SqlitePlace(folder)
    assert moto is not None, "S3 needs its server"
    return S3Place(moto)


def listening_ports(pid: int) -> list[str]:
    """Sockets on which a process accepts connections, as the kernel lists them."""
    inodes: set[str] = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            link = os.readlink(descriptor)
            if link.startswith("socket:["):
                inodes.add(link[8:-1])
    found: list[str] = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                found.append(fields[1])
    return found


def _until(condition: Any, otherwise: str) -> None:
    until = time.monotonic() + ANSWERS_WITHIN_S
    while not condition():
        if time.monotonic() > until:
            raise AssertionError(otherwise)
        time.sleep(0.05)


def _missing(what: str) -> None:
    if os.environ.get("CI"):
        pytest.fail(what)
    pytest.skip(what)
