"""Members start, restart and stop completely, in virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from squall.coordination import events
from squall.coordination.coordinator import Coordinator
from squall.coordination.election.term import Term
from squall.coordination.errors import (
    ConfigurationError,
    NotRunningError,
    StoreUnavailableError,
)
from squall.coordination.plugin import CoordinatorPlugin
from squall.coordination.stores.interface import Record
from squall.runtime.interfaces import Runtime
from tests.unit.coordination.lab.groups import group
from tests.unit.coordination.lab.world import FAST, SECRET, Lab, play


def beside(
    lab: Lab, host: str, member_id: str, *plugins: CoordinatorPlugin, **options: Any
) -> Coordinator:
    """Another member in the process of one that runs."""
    chosen: dict[str, Any] = {"profile": FAST, "unsafe_timings": True, "secret": SECRET}
    return Coordinator(
        lab.store,
        *plugins,
        member_id=member_id,
        runtime=lab.members[host].parts.runtime,
        **(chosen | options),
    )


@pytest.mark.parametrize("killed", [False, True])
def test_a_member_whose_id_was_taken_over_comes_back_when_the_other_is_gone(killed: bool) -> None:
    async def script(lab: Lab) -> None:
        heard, _ = await group(lab, "a", "b", "c")
        old = lab.members["c"]
        lab.faults["c"].down = True
        await lab.world.eventually(
            lambda: heard.of(events.CoordinatorDead, "c"), within_s=10.0, what="dead"
        )
        lab.world.add("twin", _never)
        lab.world.start("twin")
        twin = beside(lab, "c", "c")
        await lab.run_on("twin", twin.start())
        await asyncio.sleep(2.0)
        lab.faults["c"].down = False
        await asyncio.sleep(30.0)
        assert old.isolated and not twin.isolated, "the id is in use"
        if killed:
            lab.world.kill("twin")
        else:
            await lab.run_on("twin", twin.stop())
        await lab.world.eventually(
            lambda: not old.isolated, within_s=5.0 * FAST.heartbeat_interval, what="it is back"
        )
        assert old.boot > twin.boot
        assert "c" in await lab.members["a"].active_workers()

    play(script)


async def _never(runtime: Runtime) -> None:
    await runtime.clock.sleep(1e6)


@pytest.mark.parametrize("seed", range(20))
def test_a_stop_while_it_registers_again_leaves_no_registration(seed: int) -> None:
    async def script(lab: Lab) -> None:
        heard, _ = await group(lab, "a", "b")
        a, b, faults = lab.members["a"], lab.members["b"], lab.faults["a"]
        faults.down = True
        await lab.world.eventually(
            lambda: heard.of(events.CoordinatorDead, "a"), within_s=10.0, what="dead"
        )
        faults.down, faults.delay_s, faults.reply_delay_s = False, 0.05, 0.05
        await lab.world.eventually(
            lambda: a.isolated and a.leadership is not None, within_s=1.0, what="it knows"
        )
        await asyncio.sleep(seed * 0.03)
        await lab.run_on("a", a.stop())
        assert "a" not in await b.active_workers()
        await asyncio.sleep(10.0)
        assert len(heard.of(events.CoordinatorDead, "a")) == 1

    play(script, seed=seed)


def test_a_wait_for_the_lead_ends_when_the_member_stops() -> None:
    async def script(lab: Lab) -> None:
        _, leader = await group(lab, "a", "b")
        name = next(each for each in lab.members if each != leader)
        member = lab.members[name]

        async def lead() -> None:
            async with member.lead():
                pass

        waiting = lab.run_on(name, lead())
        ensuring = lab.run_on(
            name, member.ensure_coordinator(desired_coordinator=name, timeout_s=600.0)
        )
        await asyncio.sleep(0.3)
        await lab.run_on(name, member.stop())
        await asyncio.sleep(FAST.heartbeat_interval)
        for each in (waiting, ensuring):
            assert isinstance(each.exception(), NotRunningError)

    play(script)


class Noted(CoordinatorPlugin):
    """Notes what is called; `fails` makes its start fail."""

    def __init__(self, name: str, calls: list[str], *, fails: bool = False) -> None:
        super().__init__()
        self.name, self.calls, self.fails = name, calls, fails

    async def on_start(self) -> None:
        self.calls.append(f"{self.name} starts")
        if self.fails:
            raise ConfigurationError("an option is wrong")

    async def on_stop(self) -> None:
        self.calls.append(f"{self.name} stops")


def test_a_start_that_fails_late_leaves_nothing_behind() -> None:
    async def script(lab: Lab) -> None:
        heard, _ = await group(lab, "a")
        a, calls = lab.members["a"], list[str]()
        member = beside(
            lab, "a", "x", Noted("one", calls), Noted("two", calls, fails=True), Noted("three", [])
        )
        with pytest.raises(ConfigurationError):
            await lab.run_on("a", member.start())
        assert "x" not in await a.active_workers()
        assert calls == ["one starts", "two starts", "one stops"]
        await asyncio.sleep(10.0)
        assert heard.of(events.CoordinatorDead) == []

    play(script)


def test_a_start_after_one_that_failed_does_each_work_once() -> None:
    async def script(lab: Lab) -> None:
        lab.start("a", eligible=False)
        await asyncio.sleep(1.0)
        running, most = 0, 0

        async def work(term: Term) -> None:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(0.5)
            running -= 1

        member = beside(lab, "a", "x", work=work)
        get = lab.store.get

        async def away(*names: str) -> tuple[Record | None, ...]:
            raise StoreUnavailableError("away")

        lab.store.get = away  # type: ignore[method-assign]
        with pytest.raises(StoreUnavailableError):
            await lab.run_on("a", member.start())
        lab.store.get = get  # type: ignore[method-assign]
        await lab.run_on("a", member.start())
        await asyncio.sleep(10.0)
        assert member.is_coordinator and most == 1
        await lab.run_on("a", member.stop())

    play(script)


def test_a_member_that_stops_while_it_stands_delays_no_other() -> None:
    async def script(lab: Lab) -> None:
        _, leader = await group(lab, "a", "b", "c")
        others = [each for each in lab.members if each != leader]
        for each in others:
            lab.faults[each].reply_delay_s = 0.1
        lab.world.kill(leader)
        stood: list[str] = []

        def stands() -> bool:
            stood[:] = [
                each
                for each in others
                if (leadership := lab.members[each].leadership) is not None
                and leadership.election.role.value == "standing"
            ]
            return bool(stood)

        while not stands():
            await asyncio.sleep(0.001)
        (other,) = [each for each in others if each != stood[0]]
        lab.faults[other].reply_delay_s = 0.0
        begun = lab.world.now
        await lab.run_on(stood[0], lab.members[stood[0]].stop())
        await lab.world.eventually(
            lambda: lab.members[other].is_coordinator, within_s=10.0, what="the next one leads"
        )
        assert lab.world.now - begun < FAST.lease_ttl / 2.0

    play(script)


class Closing(CoordinatorPlugin):
    """Uses something that only `on_stop` closes."""

    name = "closing"
    work_interval = 0.05

    def __init__(self, calls: list[str]) -> None:
        super().__init__()
        self.calls = calls
        self.is_closed = False

    async def coordinator_work(self) -> None:
        for _ in range(10):
            await asyncio.sleep(0.02)
            assert not self.is_closed

    async def before_stop(self) -> None:
        self.calls.append(f"before_stop, leads: {self.coordinator.is_coordinator}")

    async def on_stop_being_coordinator(self) -> None:
        assert not self.is_closed
        self.calls.append("on_stop_being_coordinator")

    async def on_stop(self) -> None:
        self.is_closed = True
        self.calls.append(f"on_stop, leads: {self.coordinator.is_coordinator}")


@pytest.mark.parametrize("alone", [False, True])
def test_a_plugin_is_stopped_after_its_term_has_ended(alone: bool) -> None:
    async def script(lab: Lab) -> None:
        calls: list[str] = []
        lab.start("a", plugin=lambda name: Closing(calls), enable_coordinator=not alone)
        await lab.led()
        await asyncio.sleep(0.5)
        await lab.run_on("a", lab.members["a"].stop())
        assert calls == [
            "before_stop, leads: True",
            "on_stop_being_coordinator",
            "on_stop, leads: False",
        ]

    play(script)
