"""Groups behind the facade, with real sockets, sealed links and real files in one process."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from squall.ledger.interface import Entry, LedgerFailed, NotPrimary, ReadLevel, TryLater
from squall.ledger.replica.ledger import GroupLedger
from squall.ledger.replica.open_group import open_group_ledger
from squall.ledger.replica.types import FAST, GroupId, Member
from squall.ledger.replica.wire_transport import WireTransport
from squall.ledger.settings import LedgerSettings
from squall.ledger.wal.errors import TooLarge
from squall.runtime.interfaces import Address, NodeId
from squall.runtime.real import RealRuntime
from squall.runtime.tasks import TaskRunner
from squall.wire.dispatch import Handlers
from squall.wire.endpoint import Endpoint
from squall.wire.roles import Role
from squall.wire.secrets import Secrets
from squall.wire.switchboard import Switchboard, make_keyring
from wire_fakes import SECRET, Gate

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


def test_a_group_of_one_keeps_its_log_over_a_restart(tmp_path: Path) -> None:
    async def work() -> None:
        for turn in (1, 2):
            async with AsyncExitStack() as stack:
                cluster = await cluster_of(stack, tmp_path, "a")
                ledger = await cluster.primary()
                for number in range(30):
                    done = await ledger.submit(b"%d.%d" % (turn, number))
                assert done.result == b"%d" % (30 * turn)
                assert await ledger.confirm() == ledger.fence
                assert await ledger.read(ReadLevel.STRONG) >= done.op

    run(work())


def test_three_members_commit_and_followers_read_their_session(tmp_path: Path) -> None:
    async def work() -> None:
        async with AsyncExitStack() as stack:
            cluster = await cluster_of(stack, tmp_path, "a", "b", "c")
            ledger = await cluster.primary()
            answers = await asyncio.gather(*(ledger.submit(b"%d" % n) for n in range(50)))
            assert sorted(int(answer.result) for answer in answers) == list(range(1, 51))
            follower = next(n.ledger for n in cluster.nodes.values() if not n.ledger.is_primary)
            last = max(answer.op for answer in answers)
            assert await follower.read(ReadLevel.SESSION, last) >= last
            assert follower.primary == ledger.member.node
            assert follower.staleness_s() < 5.0
            with pytest.raises(NotPrimary):
                await follower.submit(b"no")
            with pytest.raises(NotPrimary):
                await follower.read(ReadLevel.STRONG)
            with pytest.raises(TooLarge):
                await ledger.submit(bytes(300 * 1024))
            with pytest.raises(TryLater):
                await ledger.submit(b"newer", version=2)

    run(work())


def test_the_group_goes_on_without_its_primary_and_after_a_hand_over(tmp_path: Path) -> None:
    async def work() -> None:
        async with AsyncExitStack() as stack:
            cluster = await cluster_of(stack, tmp_path, "a", "b", "c")
            first = await cluster.primary()
            await first.submit(b"one")
            assert first.hand_over()
            while first.is_primary:
                await asyncio.sleep(0.005)
            second = await cluster.primary()
            assert second is not first
            await second.submit(b"two")
            await cluster.stop(second.member.node)
            third = await cluster.primary()
            await third.submit(b"three")
            await cluster.all_hold([b"one", b"two", b"three"])

    run(work())


def test_one_member_becomes_three_and_brings_its_blobs(tmp_path: Path) -> None:
    async def work() -> None:
        async with AsyncExitStack() as stack:
            cluster = await cluster_of(stack, tmp_path, "a", "b", "c", formed=("a",))
            ledger = await cluster.primary()
            digest = await ledger.blobs.put(b"blob" * 30_000)
            cluster.nodes["a"].ledger.group_blobs.references = lambda: [digest]
            words = [b"%d" % number for number in range(45)]
            for word in words:
                await ledger.submit(word)
            members: tuple[Member, ...] = tuple(n.ledger.member for n in cluster.nodes.values())
            while True:
                try:
                    await (await cluster.primary()).change_members(members)
                    break
                except TryLater:
                    await asyncio.sleep(0.05)
            await (await cluster.primary()).submit(b"after")
            await cluster.all_hold([*words, b"after"])
            for node in cluster.nodes.values():
                assert await node.ledger.blobs.get(digest) == b"blob" * 30_000

    run(work())


def test_a_damaged_log_is_mended_from_the_others(tmp_path: Path) -> None:
    words = [b"word %02d" % number for number in range(15)]

    async def write() -> None:
        async with AsyncExitStack() as stack:
            cluster = await cluster_of(stack, tmp_path, "a", "b", "c")
            ledger = await cluster.primary()
            for word in words:
                await ledger.submit(word)
            await cluster.all_hold(words)

    async def read() -> None:
        async with AsyncExitStack() as stack:
            cluster = await cluster_of(stack, tmp_path, "a", "b", "c")
            hurt = cluster.nodes["b"]
            await (await cluster.primary()).submit(b"after")
            await cluster.all_hold([*words, b"after"])
            while hurt.ledger.replica.core.mending or (tmp_path / "b/ledger/mending").exists():
                await asyncio.sleep(0.01)
            assert "corruption" in hurt.alarms[0] and "mended" in hurt.alarms[-1]
            assert not cluster.nodes["a"].alarms and not cluster.nodes["c"].alarms

    run(write())
    hits = 0
    for path in sorted((tmp_path / "b/ledger/wal").glob("*.wal")):
        content = bytearray(path.read_bytes())
        place = content.find(words[14])
        if place >= 0:
            content[place] ^= 4
            path.write_bytes(content)
            hits += 1
    assert hits
    run(read())
    assert list((tmp_path / "b/ledger/wal").glob("*.damaged"))


def test_a_member_whose_state_differs_from_the_others_stops(tmp_path: Path) -> None:
    async def work() -> None:
        async with AsyncExitStack() as stack:
            cluster = await cluster_of(stack, tmp_path, "a", "b", "c", lies="b", every=8)
            ledger = await cluster.primary()
            liar = cluster.nodes["b"]
            for number in range(200):
                if liar.ledger.failure is not None:
                    break
                await ledger.submit(b"%d" % number)
                await asyncio.sleep(0.01)
            assert isinstance(liar.ledger.failure, LedgerFailed)
            assert liar.alarms
            assert cluster.nodes["a"].ledger.failure is None
            await ledger.submit(b"the others go on")

    run(work())
