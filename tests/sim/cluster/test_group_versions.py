"""A member that is older than the group's commands stops instead of diverging."""

from __future__ import annotations

import pytest

from lab.sim.node import State
from tests.sim.cluster.lab.quiet_group import QuietGroup, play


@pytest.mark.parametrize("away_s", [0.5, 8.0], ids=["by entries", "by a checkpoint"])
def test_a_rolled_back_member_that_missed_the_activation_stops(away_s: float) -> None:
    async def story(group: QuietGroup) -> None:
        group.group.upgrades = True
        for name in group.members:
            group.world.kill(name)
            group.start(name)
            await group.serves(5.0)
        await group.passes(1.0)
        back = group.followers()[0]
        primary = group.primary
        group.world.kill(back)
        group.nodes[primary].ledger.activate(2)
        await group.passes(away_s)
        assert group.nodes[primary].ledger.active_version == 2
        group.group.upgrades = False
        group.start(back)
        await group.world.eventually(
            lambda: group.world.nodes[back].state is State.ENDED, within_s=5.0, what="it stopped"
        )
        group.group.upgrades = True
        group.start(back)
        await group.passes(2.0)
        assert group.nodes[back].ledger.active_version == 2
        await group.serves(3.0)

    play(story, clients=6)
