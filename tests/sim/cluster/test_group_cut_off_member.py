"""A member that is cut off, in whatever way, ends no view: neither meanwhile nor when it
comes back. The others are content with their primary, so the view stays."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.sim.cluster.lab.quiet_group import QuietGroup, play

Cut = Callable[[QuietGroup, str], None]


def _deaf(group: QuietGroup, name: str) -> None:
    """It receives nothing, and all others receive its messages."""
    for other in group.members:
        if other != name:
            group.world.cut(other, name)


def _mute(group: QuietGroup, name: str) -> None:
    """It receives everything, and no other member receives its messages."""
    for other in group.members:
        if other != name:
            group.world.cut(name, other)


def _away(group: QuietGroup, name: str) -> None:
    _deaf(group, name)
    _mute(group, name)


def _without_primary(group: QuietGroup, name: str) -> None:
    """Only the primary and it do not hear each other."""
    group.world.cut(group.primary, name)
    group.world.cut(name, group.primary)


def _primary_unheard(group: QuietGroup, name: str) -> None:
    group.world.cut(group.primary, name)


def _unheard_by_primary(group: QuietGroup, name: str) -> None:
    group.world.cut(name, group.primary)


CUTS: tuple[Cut, ...] = (
    _deaf, _mute, _away, _without_primary, _primary_unheard, _unheard_by_primary,
)  # fmt: skip


@pytest.mark.parametrize("size", [3, 5])
@pytest.mark.parametrize("cut", CUTS, ids=lambda cut: cut.__name__.strip("_"))
def test_a_follower_that_is_cut_off_raises_no_view(size: int, cut: Cut) -> None:
    async def story(group: QuietGroup) -> None:
        await group.passes(1.0)
        before = group.fences()
        for name in group.followers():
            cut(group, name)
            await group.passes(6.0)
            group.world.links.mend_all()
            await group.serves(3.0)
            await group.passes(2.0)
            assert group.fences() == before

    play(story, size=size)


@pytest.mark.parametrize("slow_s", [0.0, 0.4])
def test_a_follower_whose_links_come_and_go_raises_no_view(slow_s: float) -> None:
    async def story(group: QuietGroup) -> None:
        if slow_s:
            group.slow_disks(slow_s)
        await group.passes(1.0)
        before = group.fences()
        name = group.followers()[0]
        draw = group.world.random("links")
        for _ in range(25):
            draw.choice(CUTS)(group, name)
            await group.passes(draw.uniform(0.1, 1.2))
            group.world.links.mend_all()
            await group.passes(draw.uniform(0.05, 0.6))
        await group.passes(2.0)
        assert group.fences() == before

    for seed in range(1, 3):
        play(story, seed=seed)


def test_a_follower_that_is_killed_again_and_again_raises_no_view() -> None:
    async def story(group: QuietGroup) -> None:
        await group.passes(1.0)
        before = group.fences()
        name = group.followers()[0]
        for number in range(12):
            group.world.kill(name)
            await group.passes(0.2 * number)
            group.start(name)
            await group.passes(0.1 * number)
        await group.passes(2.0)
        assert group.fences() == before

    play(story)
