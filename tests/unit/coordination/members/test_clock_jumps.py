"""Members whose wall clocks are off or jump: no member dies, signals are accepted, and no due
time runs twice. In virtual time.
"""

from __future__ import annotations

import asyncio
from collections import Counter

from squall.coordination import RunRecord, Scheduler, events
from tests.unit.coordination.lab.groups import group
from tests.unit.coordination.lab.world import Lab, play

JUMP_S = 600.0
EVERY_S = 5.0


def test_no_due_time_runs_twice_when_the_clock_jumps_back() -> None:
    """Not on the coordinator whose clock it was, and not on its successor."""

    async def script(lab: Lab) -> None:
        ran: list[tuple[str, str]] = []

        def plugin(name: str) -> Scheduler:
            made = Scheduler()

            async def note(run: RunRecord) -> None:
                ran.append((name, run.slot))

            made.every(EVERY_S, name="tick")(note)
            return made

        lab.start("a", "b", plugin=plugin)
        await lab.ready("a", "b")
        first = await lab.led()
        await lab.world.eventually(lambda: len(ran) >= 3, within_s=60.0, what="it runs")
        for name in ("a", "b"):
            lab.world.jump_wall_clock(name, -JUMP_S)
        before = len(ran)
        await asyncio.sleep(JUMP_S / 2.0)
        assert len(ran) == before, "these due times have been run"
        lab.world.kill(first)
        second = await lab.led(within_s=30.0, but=first)
        await lab.world.eventually(
            lambda: len(ran) >= before + 3, within_s=JUMP_S, what="it runs again"
        )
        slots = Counter(slot for _, slot in ran)
        assert set(slots.values()) == {1}
        assert [name for name, _ in ran] == [first] * before + [second] * (len(ran) - before)

    play(script)


def test_clocks_that_are_minutes_apart_change_nothing() -> None:
    async def script(lab: Lab) -> None:
        names = ("a", "b", "c")
        heard, leader = await group(lab, *names)
        for name, offset_s in zip(names, (-JUMP_S, 0.0, JUMP_S), strict=True):
            lab.world.jump_wall_clock(name, offset_s)
            lab.members[name].on_signal("note", lambda delivery: None)
        for name in names:
            for other in names:
                if other != name:
                    member = lab.members[name]
                    await lab.run_on(name, member.send_signal_with_retry(other, "note"))
        await asyncio.sleep(60.0)
        assert lab.leaders == [leader]
        assert heard.of(events.SignalRejected) == []
        assert heard.of(events.HeartbeatWarning) == heard.of(events.CoordinatorDead) == []
        lab.world.kill(leader)
        assert await lab.led(within_s=30.0, but=leader) in names

    play(script)
