"""What a coordinator's monitor reports and keeps when its predecessor began it, when the store
does not answer, and when cleanup is off.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from squall.coordination import events
from squall.coordination.errors import StoreUnavailableError
from squall.coordination.members.cleanup import STALE_S
from squall.coordination.members.housekeeping import CLEANUP_S
from squall.coordination.members.monitor import Monitor
from squall.coordination.records import keys
from tests.unit.coordination.lab.groups import group, one_dies
from tests.unit.coordination.lab.world import FAST, Lab, play


@contextmanager
def deaths_are_not_finished(lab: Lab, leader: str) -> Iterator[None]:
    """As if the coordinator stopped right after it had decided one."""
    monitor = lab.members[leader]._monitor
    finish = monitor._finish

    async def stops(*_: object) -> None:
        await asyncio.sleep(1000.0)

    monitor._finish = stops  # type: ignore[method-assign]
    yield
    monitor._finish = finish  # type: ignore[method-assign]


async def warned(lab: Lab, name: str) -> bool:
    (found,) = await lab.store.get(keys.warning(name))
    return found is not None


async def buried(lab: Lab, name: str) -> bool:
    (found,) = await lab.store.get(keys.tombstone(name))
    return found is not None


async def until(condition: object, within_s: float = 20.0) -> None:
    async with asyncio.timeout(within_s):
        while not await condition():  # type: ignore[operator]
            await asyncio.sleep(0.1)


def test_a_death_that_a_predecessor_decided_is_no_recovery() -> None:
    async def script(lab: Lab) -> None:
        heard, leader = await group(lab, "a", "b", "c")
        victim, successor = (name for name in ("a", "b", "c") if name != leader)
        with deaths_are_not_finished(lab, leader):
            lab.world.kill(victim)
            await until(lambda: buried(lab, victim))
            lab.world.kill(leader)
        assert heard.of(events.CoordinatorDead) == []
        await lab.world.eventually(
            lambda: heard.of(events.CoordinatorDead, victim), within_s=20.0, what="told"
        )
        await asyncio.sleep(5.0)
        assert heard.of(events.CoordinatorRecovered, victim) == []
        assert len(heard.of(events.CoordinatorDead, victim)) == 1
        assert lab.members[successor].is_coordinator

    play(script)


def test_a_successor_knows_how_bad_it_was_before_a_member_beat_again() -> None:
    async def script(lab: Lab) -> None:
        heard, leader = await group(lab, "a", "b", "c")
        late, _ = (name for name in ("a", "b", "c") if name != leader)
        lab.faults[late].down = True
        await lab.world.eventually(
            lambda: (
                [each.health for each in heard.of(events.HeartbeatWarning, late)][-1:]
                == ["critical"]
            ),
            within_s=FAST.dead_after + 1.0,
            what="it is critical",
        )
        lab.faults[late].down = False
        await lab.members[leader].hand_over(allow_early=True)
        await lab.led(but=leader)
        await asyncio.sleep(2.0)
        (told,) = heard.of(events.CoordinatorRecovered, late)
        assert (told.previous_health, told.was_dead) == ("critical", False)
        assert not await warned(lab, late)

    play(script)


def test_without_auto_cleanup_nothing_of_the_dead_is_removed_by_anybody() -> None:
    async def script(lab: Lab) -> None:
        leader, victim = await one_dies(lab, auto_cleanup=False)
        cleaned: list[events.Event] = []
        lab.members[leader].on(events.CleanupComplete, cleaned.append)
        await asyncio.sleep(5.0 * FAST.monitor_interval)
        assert await warned(lab, victim) and await buried(lab, victim)
        entries = (await lab.store.list(keys.HEARTBEAT)).entries
        assert keys.heartbeat(victim) in [entry.key for entry in entries]
        await asyncio.sleep(STALE_S + 2.0 * CLEANUP_S)
        entries = (await lab.store.list(keys.HEARTBEAT)).entries
        assert keys.heartbeat(victim) in [entry.key for entry in entries], "its place is kept"
        assert cleaned == []

    play(script)


def test_a_cleanup_without_an_answer_is_reported_and_retried() -> None:
    async def script(lab: Lab) -> None:
        heard, leader = await group(lab, "a", "b", "c")
        victim = next(name for name in ("a", "b", "c") if name != leader)
        delete, failed = Monitor._delete_all, list[str]()

        async def once(self: Monitor, *arguments: object) -> int:
            if not failed:
                failed.append(victim)
                raise StoreUnavailableError("no answer")
            return await delete(self, *arguments)  # type: ignore[arg-type]

        Monitor._delete_all = once  # type: ignore[method-assign,assignment]
        try:
            lab.world.kill(victim)
            await lab.world.eventually(
                lambda: heard.of(events.CleanupComplete, victim), within_s=20.0, what="clean"
            )
        finally:
            Monitor._delete_all = delete  # type: ignore[method-assign]
        (told,) = heard.of(events.CleanupFailed, victim)
        assert "no answer" in told.error
        assert _cleanups(lab, leader) == {"done": 1.0, "failed": 1.0}
        # A member that was cleaned up is not cleaned up again.
        assert not await lab.members[leader].cleanup_dead_coordinator(victim)
        assert lab.members[leader].get_statistics().cleanups_performed == 1

    play(script)


def _cleanups(lab: Lab, name: str) -> dict[str, float]:
    metrics = lab.members[name].parts.metrics
    return {
        result: metrics.counter(metrics.families.cleanups, result).value
        for result in ("done", "failed")
    }
