"""A group of members that has a leader, and all events that it emits."""

from __future__ import annotations

from typing import Any

from squall.coordination import events
from tests.unit.coordination.lab.world import Lab


class Heard:
    """All events of all members, as they come."""

    def __init__(self) -> None:
        self.all: list[events.Event] = []

    def of(self, kind: type[events.Event], member: str = "") -> list[Any]:
        return [
            event
            for event in self.all
            if isinstance(event, kind) and (not member or getattr(event, "member_id", "") == member)
        ]

    def listen(self, lab: Lab, *names: str) -> None:
        for name in names:
            lab.members[name].on("*", self.all.append)


async def group(lab: Lab, *names: str, **options: Any) -> tuple[Heard, str]:
    lab.start(*names, **options)
    await lab.ready(*names)
    heard = Heard()
    heard.listen(lab, *names)
    return heard, await lab.led()


async def one_dies(lab: Lab, **options: object) -> tuple[str, str]:
    """The leader and the dead."""
    heard, leader = await group(lab, "a", "b", "c", **options)
    victim = next(name for name in lab.members if name != leader)
    lab.world.kill(victim)
    await lab.world.eventually(
        lambda: heard.of(events.CoordinatorDead, victim), within_s=20.0, what="dead"
    )
    return leader, victim
