"""A flipped bit on one member's disk is found, never used, and mended from the others."""

from __future__ import annotations

import errno

import pytest

from lab.scenarios.group.bit_rot import rot_checkpoint, rot_log
from lab.sim.node import State
from squall.cluster.ledger.group_member.durable_state import MENDING
from squall.cluster.ledger.replica.types import Status
from squall.cluster.ledger.wal.salvage import DAMAGED_SUFFIX
from tests.sim.cluster.lab.quiet_group import QuietGroup, play

SEEDS = range(1, 6)
MARK = f"ledger/{MENDING}"


def _files(group: QuietGroup, name: str) -> list[str]:
    return sorted(group.world.nodes[name].disk.tree.names.files)


async def _rot(group: QuietGroup, name: str, *, fell: bool = True) -> None:
    """The member is down, and a bit of its log changes meanwhile."""
    if fell:
        group.world.crash(name)
    assert rot_log(group.world.nodes[name].disk, group.world.random("rot"))


async def _mended(group: QuietGroup, name: str) -> None:
    await group.world.eventually(
        lambda: (
            name in group.nodes
            and not group.nodes[name].ledger.replica.core.mending
            and group.nodes[name].ledger.replica.core.status is Status.NORMAL
            and MARK not in _files(group, name)
        ),
        within_s=10.0,
        what="mended",
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_a_damaged_record_is_mended_at_the_start_from_the_others(seed: int) -> None:
    async def story(group: QuietGroup) -> None:
        await group.passes(2.0 + seed)
        name = group.followers()[seed % 2]
        await _rot(group, name)
        group.start(name)
        await _mended(group, name)
        core = group.nodes[name].ledger.replica.core
        await group.serves(2.0)
        await group.passes(1.0)
        primary = group.nodes[group.primary].ledger
        assert core.fence == primary.fence
        assert int(group.nodes[name].ledger.applied) >= core.commit > 0
        # The next start finds a log that is whole.
        group.world.kill(name)
        group.start(name)
        await _mended(group, name)
        assert not group.nodes[name].ledger.durable_state.recovered.mending
        await group.serves(2.0)

    play(story, seed=seed)


def _counts(group: QuietGroup) -> tuple[int, int]:
    return len(group.checks.acked), max(group.checks.history, default=0)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_hole_never_votes_and_the_group_waits_for_the_copy(seed: int) -> None:
    """One has an op that only it and the damaged one acknowledged; while it is away the
    two others are a majority, and must not go on without it."""

    async def story(group: QuietGroup) -> None:
        await group.passes(2.0)
        holder = group.primary
        hurt, late = group.followers()
        group.world.crash(late)
        # From here on everything is acknowledged by the primary and the one to be hurt.
        await group.serves(3.0)
        await group.passes(2.0)
        newest = max(group.checks.history)
        await _rot(group, hurt)
        group.world.crash(holder)
        group.start(hurt, late)
        acked = len(group.checks.acked)
        await group.passes(10.0)
        for name in (hurt, late):
            node = group.nodes.get(name)
            assert node is None or not node.ledger.is_primary
        assert len(group.checks.acked) == acked, "no member may go on without the copy"
        group.start(holder)
        await group.serves(10.0)
        assert max(group.checks.history) > newest
        if group.world.nodes[hurt].state is State.ENDED:
            group.start(hurt)
        await _mended(group, hurt)

    # Few enough commands that no checkpoint stands for them yet.
    play(story, seed=seed, clients=1)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_lost_checkpoint_of_a_peer_is_a_hole_and_does_not_vote(seed: int) -> None:
    """A member was away until it needed a checkpoint of a peer. That file rots, and the older one
    before it has no entries that lead on: the member must wait for the copy of the others."""

    async def story(group: QuietGroup) -> None:
        await group.passes(4.0)
        holder = group.primary
        hurt, late = group.followers()
        rest = [name for name in group.world.nodes if name != hurt]
        reconnect = group.world.partition([hurt], rest)
        await group.passes(6.0)
        reconnect()
        await group.passes(1.0)
        assert group.checks.installed[0] == hurt
        group.world.crash(late)
        # From here on everything is acknowledged by the primary and the one to be hurt.
        await group.serves(3.0)
        await group.passes(0.5)
        newest = max(group.checks.history)
        group.world.crash(hurt)
        assert rot_checkpoint(group.world.nodes[hurt].disk, group.world.random("rot"), newest=True)
        group.world.crash(holder)
        group.start(hurt, late)
        acked = len(group.checks.acked)
        await group.passes(5.0)
        assert len(group.checks.acked) == acked, "no member may go on without the copy"
        # The hole outlives another start, and so does what was mended.
        group.world.crash(hurt)
        group.start(hurt, holder)
        await group.serves(10.0)
        assert max(group.checks.history) > newest
        await _mended(group, hurt)
        group.world.crash(hurt)
        group.start(hurt)
        await _mended(group, hurt)
        group.world.kill(late)
        await group.serves(5.0)

    play(story, seed=seed, clients=6)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("what", ["log", "checkpoint"])
def test_a_running_member_finds_and_replaces_what_rotted(seed: int, what: str) -> None:
    async def story(group: QuietGroup) -> None:
        await group.passes(8.0 + seed)
        name = group.primary if seed % 2 else group.followers()[0]
        node = group.nodes[name]
        disk = group.world.nodes[name].disk
        rot = rot_log if what == "log" else rot_checkpoint
        assert await node.ledger.scrub.once()
        assert rot(disk, group.world.random("rot")), _files(group, name)
        assert not await node.ledger.scrub.once()
        assert node.ledger.scrub.found == 1
        assert await node.ledger.scrub.once(), "it was written anew"
        await group.serves(3.0)
        before = int(node.ledger.applied)
        for end in (group.world.kill, group.world.crash):
            end(name)
            group.start(name)
            await _mended(group, name)
            durable_state = group.nodes[name].ledger.durable_state
            assert not durable_state.recovered.mending
            assert not durable_state.checkpoints.skipped
        await group.serves(5.0)
        await group.passes(1.0)
        assert int(group.nodes[name].ledger.applied) >= before

    play(story, seed=seed, clients=6)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_start_skips_a_damaged_checkpoint_and_replaces_it(seed: int) -> None:
    async def story(group: QuietGroup) -> None:
        await group.passes(12.0)
        name = group.followers()[0]
        group.world.crash(name)
        disk = group.world.nodes[name].disk
        assert rot_checkpoint(disk, group.world.random("rot"), newest=True)
        group.start(name)
        await _mended(group, name)
        assert group.nodes[name].ledger.durable_state.checkpoints.skipped
        await group.passes(2.0)
        assert await group.nodes[name].ledger.scrub.once(), "it was written anew"
        group.world.kill(name)
        group.start(name)
        await _mended(group, name)
        assert not group.nodes[name].ledger.durable_state.checkpoints.skipped

    play(story, seed=seed, clients=6)


def test_a_file_that_the_disk_does_not_give_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(group: QuietGroup) -> None:
        await group.passes(4.0)
        name = group.followers()[0]
        ledger = group.nodes[name].ledger
        disk, read = ledger.durable_state.wal.disk, ledger.durable_state.wal.disk.read
        bad = ledger.durable_state.wal.table.segments[0].path

        async def broken(path: str, offset: int = 0, size: int | None = None) -> bytes:
            if path == bad and offset:
                raise OSError(errno.EIO, "unreadable sector", path)
            return await read(path, offset, size)

        monkeypatch.setattr(disk, "read", broken)
        assert not await ledger.scrub.once()
        assert bad not in _files(group, name)
        assert await ledger.scrub.once()
        await group.serves(3.0)

    play(story)


def test_a_blob_that_rotted_is_taken_from_another_member() -> None:
    async def story(group: QuietGroup) -> None:
        blobs = group.nodes[group.primary].ledger.blobs
        digest = await blobs.put(b"a blob that all hold" * 100)
        await group.passes(1.0)
        for name in group.followers():
            files = group.world.nodes[name].disk.tree.names.files
            inode = files[f"ledger/blobs/{digest}"]
            inode.content[77] ^= 8
            assert not await group.nodes[name].ledger.scrub.once()
            assert await group.nodes[name].ledger.scrub.once()
            assert bytes(files[f"ledger/blobs/{digest}"].content) == b"a blob that all hold" * 100

    play(story)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_loss_of_power_at_any_moment_of_the_mending_costs_nothing(seed: int) -> None:
    async def story(group: QuietGroup) -> None:
        await group.passes(3.0)
        name = group.followers()[seed % 2]
        await _rot(group, name)
        draw = group.world.random("moments")
        for _ in range(12):
            group.start(name)
            await group.passes(draw.uniform(0.0, 0.12))
            group.world.crash(name)
        group.start(name)
        await _mended(group, name)
        # And it may lead again: the others need it for everything.
        lost = next(other for other in group.followers() if other != name)
        group.world.kill(lost)
        await group.serves(5.0)

    play(story, seed=seed)


def test_the_damaged_file_is_put_aside() -> None:
    async def story(group: QuietGroup) -> None:
        await group.passes(3.0)
        name = group.followers()[0]
        await _rot(group, name)
        group.start(name)
        await _mended(group, name)
        assert [path for path in _files(group, name) if path.endswith(DAMAGED_SUFFIX)]

    play(story)
