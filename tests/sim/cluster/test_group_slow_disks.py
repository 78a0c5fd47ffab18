"""Disks that are slower than the timers cost time, never the group: it always elects again.

With the timers of tests a view change has less than half a second. A busy machine makes a
sync last longer than that, and a group that restarts its election before its disks are done never
elects a primary."""

from __future__ import annotations

import pytest

from lab.sim.node import State
from tests.sim.cluster.lab.quiet_group import QuietGroup, play

SEEDS = range(1, 4)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("size", [3, 5])
@pytest.mark.parametrize("sync_s", [0.25, 0.6])
def test_a_new_primary_is_found_while_every_sync_is_slow(
    seed: int, size: int, sync_s: float
) -> None:
    async def story(group: QuietGroup) -> None:
        group.slow_disks(sync_s, sync_s / 4)
        await group.passes(2.0)
        for _ in range(2):
            lost = group.primary
            group.world.kill(lost)
            await group.serves(12.0)
            group.start(lost)
            await group.passes(3.0)

    play(story, seed=seed, size=size)


@pytest.mark.parametrize("seed", SEEDS)
def test_all_members_start_at_once_on_slow_disks(seed: int) -> None:
    async def story(group: QuietGroup) -> None:
        group.slow_disks(0.4, 0.1)
        for name in group.members:
            group.world.crash(name)
        group.start(*group.members)
        await group.serves(15.0)

    play(story, seed=seed)


def test_a_group_forms_on_slow_disks() -> None:
    async def story(group: QuietGroup) -> None:
        for name in group.members:
            group.world.crash(name)
            group.world.nodes[name].disk.wipe()
        group.slow_disks(0.4, 0.1)
        group.checks.history.clear()
        group.checks.leaders.clear()
        group.checks.served.clear()
        group.checks.executed.clear()
        group.checks.acked.clear()
        group.checks.operations.clear()
        assert all(group.world.nodes[name].state is State.OFF for name in group.members)
        group.start(*group.members)
        await group.serves(15.0)

    play(story)


@pytest.mark.parametrize("seed", SEEDS)
def test_slow_disks_raise_the_view_no_more_than_the_deaths_of_primaries(seed: int) -> None:
    async def story(group: QuietGroup) -> None:
        group.slow_disks(0.4, 0.1)
        await group.passes(3.0)
        before = max(group.fences().values())
        lost = group.primary
        group.world.kill(lost)
        await group.serves(12.0)
        after = max(group.fences().values())
        # Two candidates that stand at the same moment may both promise a view.
        assert after.view - before.view <= 2 * len(group.members)

    play(story, seed=seed)
