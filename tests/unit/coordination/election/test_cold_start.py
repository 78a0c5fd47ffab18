"""Members of a new group with the default timing. In virtual time."""

from __future__ import annotations

import asyncio
from itertools import pairwise

from squall.coordination import Term
from squall.coordination.events import ColdStartPhaseChanged
from tests.unit.coordination.lab.world import NORMAL, Lab, play

NAMES = ("a", "b", "c")


class Notes:
    """When members changed their phase, and when one of them worked."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self.phases: dict[str, list[tuple[str, float]]] = {}
        self.worked: list[tuple[str, float]] = []
        self.led_at: dict[str, list[str]] = {}
        """The leader at each change of phase."""

    async def start(self, *names: str) -> None:
        for name in names:
            self.phases[name] = []

            async def work(term: Term, name: str = name) -> None:
                self.worked.append((name, self._lab.world.now))

            self._lab.start(name, profile=NORMAL, unsafe_timings=False, work=work)
        await self._lab.world.eventually(
            lambda: all(name in self._lab.members for name in names), within_s=1.0, what="begun"
        )
        for name in names:
            self._lab.members[name].on(
                ColdStartPhaseChanged, lambda event, name=name: self._note(name, event.phase)
            )

    def _note(self, name: str, phase: str) -> None:
        self.phases[name].append((phase, self._lab.world.now))
        self.led_at.setdefault(phase, []).extend(self._lab.leaders)

    def is_ready(self, *names: str) -> bool:
        return all(self._lab.members[name].phase == "ready" for name in names)


def test_a_fresh_group_observes_elects_prepares_and_only_then_works() -> None:
    async def script(lab: Lab) -> None:
        notes, begun = Notes(lab), lab.world.now
        await notes.start(*NAMES)
        await asyncio.sleep(1.0)
        assert {lab.members[name].phase for name in NAMES} == {"observing"}
        leader = await lab.led(within_s=60.0)
        await lab.world.eventually(
            lambda: notes.worked and notes.is_ready(*NAMES),
            within_s=2.0 * NORMAL.heartbeat_interval,
            what="all are ready and one works",
        )
        phases = notes.phases[leader]
        assert [phase for phase, _ in phases] == ["election", "preparation", "ready"]
        (_, election), (_, preparation), (_, ready) = phases
        interval = NORMAL.heartbeat_interval
        assert 0.0 <= election - begun - NORMAL.cold_start_observation_window <= interval
        assert 0.0 <= ready - preparation - NORMAL.cold_start_preparation_delay <= interval
        assert notes.led_at["election"] == notes.led_at["preparation"] == []
        assert {name for name, _ in notes.worked} == {leader}
        assert min(at for _, at in notes.worked) >= ready
        for name in NAMES:
            told = [phase for phase, _ in notes.phases[name]]
            assert told[-1] == "ready" and told.count("ready") == 1
            assert all(first <= then for (_, first), (_, then) in pairwise(notes.phases[name]))
            assert name == leader or "preparation" not in told, "one prepares"

    play(script)


def test_a_member_that_joins_a_group_that_is_led_is_ready_at_once() -> None:
    async def script(lab: Lab) -> None:
        notes = Notes(lab)
        await notes.start(*NAMES)
        leader = await lab.led(within_s=60.0)
        begun = lab.world.now
        await notes.start("late")
        await lab.world.eventually(
            lambda: notes.is_ready("late"),
            within_s=NORMAL.cold_start_observation_window / 5.0,
            what="the late one is ready",
        )
        assert lab.world.now - begun < NORMAL.cold_start_observation_window / 5.0
        assert lab.members["late"].current_coordinator == leader
        assert [phase for phase, _ in notes.phases["late"]] in ([], ["ready"])

    play(script)
