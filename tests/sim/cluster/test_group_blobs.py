"""A blob is on a quorum of disks before a command names it, whatever happened to it before."""

from __future__ import annotations

import asyncio

import pytest

from lab.scenarios.group.node import BLOB_KEEP_S
from squall.cluster.ledger.blobs.on_disk import digest_of
from squall.cluster.ledger.interface import Digest, TryLater
from squall.cluster.ledger.replica.types import Member
from tests.sim.cluster.lab.quiet_group import QuietGroup, play

CONTENT = b"a bundle of some size" * 5_000


def _holders(group: QuietGroup, digest: Digest) -> list[str]:
    path = f"ledger/blobs/{digest}"
    return [name for name in group.members if path in group.world.nodes[name].disk.tree.names.files]


async def _stored_alone(group: QuietGroup, name: str) -> Digest:
    """The member takes a blob while its links to the others are broken."""
    digest = await digest_of(CONTENT)
    reconnect = group.world.partition([name], [other for other in group.members if other != name])
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await group.nodes[name].ledger.blobs.store(digest, CONTENT)
    reconnect()
    assert _holders(group, digest) == [name]
    return digest


@pytest.mark.parametrize("restarts", [False, True])
def test_a_blob_that_one_member_took_alone_is_brought_to_a_quorum(restarts: bool) -> None:
    async def story(group: QuietGroup) -> None:
        name = group.primary
        digest = await _stored_alone(group, name)
        if restarts:
            group.world.crash(name)
            group.start(name)
            await group.serves(5.0)
        blobs = group.nodes[name].ledger.blobs
        assert await blobs.has(digest)
        assert await blobs.ensure(digest)
        assert len(_holders(group, digest)) >= 2

    play(story)


def test_a_member_is_asked_anew_and_not_remembered() -> None:
    async def story(group: QuietGroup) -> None:
        name = group.primary
        blobs = group.nodes[name].ledger.blobs
        digest = await blobs.put(CONTENT)
        await group.passes(1.0)
        for other in group.followers():
            group.world.crash(other)
            del group.world.nodes[other].disk.tree.names.files[f"ledger/blobs/{digest}"]
            group.start(other)
        await group.serves(5.0)
        assert _holders(group, digest) == [name]
        assert await group.nodes[name].ledger.blobs.ensure(digest)
        assert len(_holders(group, digest)) >= 2

    play(story)


def test_without_a_quorum_or_a_copy_nothing_is_promised() -> None:
    async def story(group: QuietGroup) -> None:
        name = group.primary
        blobs = group.nodes[name].ledger.blobs
        assert not await blobs.ensure(Digest("0" * 64))
        digest = await _stored_alone(group, name)
        for other in group.followers():
            group.world.crash(other)
        with pytest.raises(TryLater):
            await blobs.ensure(digest)

    play(story)


def test_a_member_that_is_cut_off_deletes_nothing() -> None:
    async def story(group: QuietGroup) -> None:
        digest = await group.nodes[group.primary].ledger.blobs.put(CONTENT)
        await group.passes(1.0)
        assert len(_holders(group, digest)) == 3
        away = group.followers()[0]
        rest = [name for name in group.world.nodes if name != away]
        reconnect = group.world.partition([away], rest)
        await group.passes(3.0 * BLOB_KEEP_S)
        # No command names it, so those that hear each other have deleted it.
        assert _holders(group, digest) == [away]
        reconnect()
        await group.passes(2.0 * BLOB_KEEP_S)
        assert _holders(group, digest) == []

    play(story)


def test_a_second_change_of_members_does_not_end_the_care_of_the_first() -> None:
    """While members change, new blobs go to the next members too."""

    async def story(group: QuietGroup) -> None:
        ledger = group.nodes[group.primary].ledger
        next_members = tuple(
            node.ledger.member for name, node in sorted(group.nodes.items()) if name != "m2"
        )
        spread, right = asyncio.Event(), ledger.blobs.missing_on

        async def after_spread(members: tuple[Member, ...]) -> int:
            await spread.wait()
            return await right(members)

        ledger.blobs.missing_on = after_spread  # type: ignore[method-assign]
        first = asyncio.ensure_future(ledger.change_members(next_members))
        await group.passes(0.01)
        with pytest.raises(TryLater, match="another change"):
            async with asyncio.timeout(1.0):
                await ledger.change_members(next_members)
        assert ledger.blobs.next_members == next_members
        spread.set()
        await first
        assert ledger.blobs.next_members == ()

    play(story)
