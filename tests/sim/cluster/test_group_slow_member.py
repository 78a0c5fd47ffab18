"""One member that is far away or far behind does not slow the others, takes no more memory than the
limits allow, and catches up by itself."""

from __future__ import annotations

import errno
from typing import Any
from unittest.mock import patch

import msgspec

from lab.scenarios.group.machine import Write
from lab.sim.network.links import LinkProfile
from squall.cluster.ledger.group_member.snapshots import Snapshots
from squall.cluster.ledger.interface import LedgerFailed, NotPrimary, OutcomeUnknown
from squall.cluster.ledger.replica.normal_operation import IN_FLIGHT_OPS
from squall.cluster.ledger.replica.types import LAN
from tests.sim.cluster.lab.quiet_group import QuietGroup, play

NEAR_S = 0.08
FAR_S = 5.0


def _shape(group: QuietGroup, one: str, other: str, round_trip_s: float) -> None:
    profile = LinkProfile(delay_s=round_trip_s / 2, jitter_s=0.0)
    group.world.links.shape(profile, one, other)
    group.world.links.shape(profile, other, one)


def _write(number: int) -> bytes:
    return msgspec.msgpack.encode(Write("slow", number, "far", f"v{number}", None, ""))


def test_commits_take_as_long_as_the_faster_of_two_followers() -> None:
    async def story(group: QuietGroup) -> None:
        primary = group.primary
        near, far = group.followers()
        _shape(group, primary, near, NEAR_S)
        _shape(group, primary, far, FAR_S)
        _shape(group, near, far, FAR_S)
        ledger = group.nodes[primary].ledger
        before = group.fences()[primary]
        sync_s = group.world.nodes[primary].disk.profile
        took: list[float] = []
        for number in range(1, 201):
            began = group.world.now
            await ledger.submit(_write(number))
            took.append(group.world.now - began)
        took.sort()
        allowed_s = 1.5 * NEAR_S + 4 * (sync_s.sync_s + sync_s.sync_jitter_s)
        assert took[int(len(took) * 0.99)] < allowed_s, took[-5:]
        core = ledger.replica.core
        assert core.log.last - core.commit < IN_FLIGHT_OPS
        newest = int(ledger.applied)
        await group.world.eventually(
            lambda: int(group.nodes[far].ledger.applied) >= newest,
            within_s=3 * FAR_S,
            what="the far member has it all",
        )
        assert group.fences()[primary] == before

    play(story, timers=LAN, clients=1)


async def _away_for_long(group: QuietGroup) -> None:
    """A member returns after the log that it would need is gone."""
    primary = group.primary
    away, _ = group.followers()
    group.world.kill(away)
    ledger = group.nodes[primary].ledger
    for number in range(1, 400):
        await ledger.submit(_write(number))
    await group.passes(1.0)
    core = ledger.replica.core
    assert core.log.base_op > 100, "the log that it would need is gone"
    assert core.log.last - core.log.base_op < 300, "no member stores it for the absent one"
    group.start(away)
    await group.world.eventually(
        lambda: away in group.nodes and int(group.nodes[away].ledger.applied) >= core.commit,
        within_s=10.0,
        what="it has it all",
    )


def test_a_member_that_was_away_for_long_catches_up_by_a_checkpoint() -> None:
    play(_away_for_long, clients=1)


def test_a_checkpoint_that_could_not_be_installed_is_fetched_again() -> None:
    right, failures = Snapshots._load, [1, 2]  # pyright: ignore[reportPrivateUsage]

    async def load(self: Snapshots, base: Any, data: bytes) -> None:
        if failures:
            failures.pop()
            raise OSError(errno.EIO, "directory sync failed")
        await right(self, base, data)

    with patch.object(Snapshots, "_load", load):
        play(_away_for_long, clients=1)
    assert not failures


def test_without_a_quorum_the_log_does_not_grow() -> None:
    async def story(group: QuietGroup) -> None:
        primary = group.primary
        for name in group.followers():
            group.world.kill(name)
        ledger = group.nodes[primary].ledger
        size, records = ledger.durable_state.wal.bytes_on_disk, ledger.durable_state.wal.next_lsn
        refused = 0
        for number in range(1, 300):
            try:
                await ledger.submit(_write(number))
            except (NotPrimary, OutcomeUnknown, LedgerFailed):
                refused += 1
            await group.passes(0.05)
        assert refused > 280
        assert ledger.durable_state.wal.next_lsn - records < 40
        assert ledger.durable_state.wal.bytes_on_disk - size < 40_000
        for name in group.followers():
            if name != primary:
                group.start(name)
        await group.serves(10.0)

    play(story, clients=1)
