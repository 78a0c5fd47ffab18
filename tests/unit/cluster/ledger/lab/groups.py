"""Groups behind the facade, with real sockets, sealed links and real files in one process."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from squall.cluster.ledger.group_member.group_ledger import GroupLedger
from squall.cluster.ledger.group_member.open_group_ledger import open_group_ledger
from squall.cluster.ledger.group_member.wire_transport import WireTransport
from squall.cluster.ledger.interface import Entry
from squall.cluster.ledger.replica.types import FAST, GroupId
from squall.cluster.ledger.settings import LedgerSettings
from squall.cluster.wire.blob_transfer import serve_blobs
from squall.cluster.wire.links.dispatch import Handlers
from squall.cluster.wire.links.endpoint import Endpoint
from squall.cluster.wire.links.switchboard import Switchboard, make_keyring
from squall.cluster.wire.roles import Role
from squall.cluster.wire.seal.secrets import Secrets
from squall.runtime.interfaces import Address, NodeId
from squall.runtime.real.runtime import RealRuntime
from squall.runtime.tasks import TaskRunner
from tests.fakes.wire import SECRET, Gate

SETTINGS = LedgerSettings(checkpoint_entries=20)


class Words:
    """Keeps every command in order."""

    def __init__(self, *, lies: bool = False) -> None:
        self.version = 1
        self.words: list[bytes] = []
        self._lies = lies

    def apply(self, entry: Entry) -> bytes:
        self.words.append(b"lie" if self._lies and len(self.words) == 3 else entry.body)
        return b"%d" % len(self.words)

    def capture(self) -> Words:
        copy = Words()
        copy.words = list(self.words)
        return copy

    def slices(self) -> Iterator[bytes]:
        return iter(self.words)

    def load(self, slices: Iterable[bytes]) -> None:
        self.words = list(slices)


@dataclass
class Node:
    runtime: RealRuntime
    tasks: TaskRunner
    machine: Words
    endpoint: Endpoint
    transport: WireTransport
    ledger: GroupLedger
    alarms: list[str]


class Cluster:
    def __init__(self, folder: Path, *names: str) -> None:
        self._folder = folder
        self.names = names
        self.boards: dict[str, tuple[RealRuntime, Switchboard, Endpoint]] = {}
        self.addresses: dict[NodeId, Address] = {}
        self.nodes: dict[str, Node] = {}

    async def start(
        self, *, formed: tuple[str, ...] = (), lies: str = "", every: int = 4096
    ) -> None:
        for name in self.names:
            folder = self._folder / name
            folder.mkdir(exist_ok=True)
            runtime = RealRuntime(name, data_dir=folder)
            tasks = TaskRunner(runtime.clock, runtime.random, on_failure=lambda failure: None)
            board = Switchboard(
                runtime=runtime,
                keyring=make_keyring(runtime, Secrets.of_node(SECRET), "test"),
                admit=Gate(),
                tasks=tasks,
                handlers=Handlers(),
            )
            endpoint = Endpoint(board, accepts=(Role.NODE,))
            await endpoint.listen(("127.0.0.1", 0))
            self.boards[name] = (runtime, board, endpoint)
            self.addresses[NodeId(name)] = endpoint.address
        for name, (runtime, board, endpoint) in self.boards.items():
            transport = WireTransport(board, self.addresses)
            machine = Words(lies=name == lies)
            alarms: list[str] = []
            ledger = await open_group_ledger(
                runtime,
                board.tasks,
                machine,
                transport,
                peers=tuple(NodeId(peer) for peer in (formed or self.names)),
                timers=FAST,
                settings=SETTINGS,
                form_group=GroupId("g") if name in (formed or self.names) else GroupId(""),
                on_alarm=alarms.append,
                digest_every=every,
            )
            serve_blobs(board.handlers, ledger.blobs, ledger.blobs.own)
            node = Node(runtime, board.tasks, machine, endpoint, transport, ledger, alarms)
            self.nodes[name] = node

    async def stop(self, name: str) -> None:
        node = self.nodes.pop(name)
        await node.ledger.close()
        await node.transport.close()
        await node.endpoint.close()
        await node.tasks.shutdown(5.0)
        await node.runtime.close()

    async def close(self) -> None:
        for name in list(self.nodes):
            await self.stop(name)

    async def primary(self) -> GroupLedger:
        while True:
            for node in self.nodes.values():
                if node.ledger.is_primary:
                    return node.ledger
            await asyncio.sleep(0.01)

    async def all_hold(self, words: list[bytes]) -> None:
        while any(node.machine.words != words for node in self.nodes.values()):
            await asyncio.sleep(0.01)


def run(work: Coroutine[Any, Any, None]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(60.0):
            await work

    asyncio.run(limited())


async def cluster_of(stack: AsyncExitStack, folder: Path, *names: str, **options: Any) -> Cluster:
    cluster = Cluster(folder, *names)
    stack.push_async_callback(cluster.close)
    await cluster.start(**options)
    return cluster
