"""Groups behind the facade, with real sockets, sealed links and real files in one process."""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import AsyncExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from squall.cluster.ledger.interface import LedgerFailed, NotPrimary, ReadLevel, TryLater
from squall.cluster.ledger.replica.types import Member
from squall.cluster.ledger.wal.errors import TooLarge
from squall.cluster.wire.blob_transfer import CHUNK_BYTES
from squall.runtime.metrics import Registry
from squall.runtime.real.runtime import RealClock
from tests.unit.cluster.ledger.lab.groups import Node, cluster_of, run


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


@pytest.mark.parametrize("names", [("a",), ("a", "b", "c")])
def test_wall_clocks_that_jump_while_all_managers_restart_move_no_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...]
) -> None:
    async def work() -> None:
        read_ms: list[int] = []
        for off_s in (0.0, 3600.0, -3600.0):
            wall_s = time.time() + off_s
            monkeypatch.setattr(RealClock, "wall", lambda clock, wall_s=wall_s: wall_s)
            async with AsyncExitStack() as stack:
                cluster = await cluster_of(stack, tmp_path, *names)
                ledger = await cluster.primary()
                read_ms.append(int((await ledger.submit(b"x")).group_ms))
        steps = [after - before for before, after in pairwise(read_ms)]
        # The time of a restart, far below the hour by which the clocks are off.
        assert all(0 < step < 60_000 for step in steps), steps

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
            assert follower.standing().stale_s < 5.0
            for version in (1, 2):
                with pytest.raises(NotPrimary) as refused:
                    await follower.submit(b"no", version=version)
                assert refused.value.primary == ledger.member.node
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
            cluster.nodes["a"].ledger.blobs.references = lambda: [digest]
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


def test_a_large_blob_is_read_once_by_each_member_that_pulls_it(tmp_path: Path) -> None:
    content = random.Random(1).randbytes(6_000_000)
    pieces: list[int] = []

    def count_reads(node: Node) -> None:
        disk: Any = node.runtime.disk
        right = disk.read

        async def read(path: str, offset: int = 0, size: int | None = None) -> bytes:
            data = await right(path, offset, size)
            if "/blobs/" in path:
                pieces.append(len(data))
            return data

        disk.read = read

    async def work() -> None:
        async with AsyncExitStack() as stack:
            cluster = await cluster_of(stack, tmp_path, "a", "b", "c")
            for node in cluster.nodes.values():
                count_reads(node)
            digest = await (await cluster.primary()).blobs.put(content)
            for node in cluster.nodes.values():
                while not await node.ledger.blobs.has(digest):
                    await asyncio.sleep(0.01)
            # Two members pull it: a piece may be asked for twice when an answer was late.
            assert 2 * len(content) <= sum(pieces) <= 3 * len(content)
            assert max(pieces) <= CHUNK_BYTES
            # A member that lost its file fetches it from another one when it is asked for it.
            lacks = cluster.nodes["c"]
            (tmp_path / "c" / "ledger/blobs" / digest).unlink()
            assert await lacks.ledger.blobs.size(digest) == len(content)
            assert await lacks.ledger.blobs.get(digest) == content
            assert await lacks.ledger.blobs.size("0" * 64) is None

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
            registry = Registry()
            hurt.ledger.add_metrics(registry)
            assert "squall_recovery_mending 1" in registry.exposition()
            await (await cluster.primary()).submit(b"after")
            await cluster.all_hold([*words, b"after"])
            while "repaired" not in hurt.alarms[-1]:
                await asyncio.sleep(0.01)
            assert "corruption" in hurt.alarms[0]
            assert "squall_recovery_mending 0" in registry.exposition()
            assert not hurt.ledger.replica.core.mending
            assert not (tmp_path / "b/ledger/mending").exists()
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
