"""Registrations are refreshed daily, and callers may request extra beats: neither is mistaken for
a death. A day is some seconds here.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from squall.coordination import Queue, events
from squall.coordination.errors import StoreUnavailableError, VersionConflict
from squall.coordination.members import registration
from squall.coordination.records import keys
from squall.coordination.records.schemas import MemberRecord
from squall.coordination.stores.interface import ANY, Delete, Put, Write
from tests.unit.coordination.lab.groups import group
from tests.unit.coordination.lab.world import FAST, FIRST_EPOCH, Lab, play

DEVICE = "sensor-7"


@pytest.fixture
def short_days(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registration, "REFRESH_REGISTRATION_S", 1.0)
    monkeypatch.setattr(keys, "MEMBER_TTL_S", 10.0)


def slow(lab: Lab, name: str) -> None:
    """Answers take a while, so that much is under way at each moment."""
    lab.faults[name].delay_s = lab.faults[name].reply_delay_s = 0.08


@pytest.mark.usefixtures("short_days")
def test_what_is_sent_while_the_registration_is_refreshed_is_not_refused() -> None:
    async def script(lab: Lab) -> None:
        await group(lab, "a", "b")
        a, boot = lab.members["a"], lab.members["a"].boot
        lab.members["b"].on_signal("s", lambda delivery: None)
        slow(lab, "a")
        versions = set[str]()

        async def send() -> None:
            for _ in range(100):
                await a.send_signal("b", "s")
                assert a.alive_check is not None
                versions.add(str(a.alive_check.expect))

        await asyncio.gather(*(lab.run_on("a", send()) for _ in range(5)))
        assert len(versions) >= 3, "it has to happen"
        assert a.boot == boot

    play(script)


@pytest.mark.usefixtures("short_days")
def test_tickets_that_are_worked_on_while_the_registration_is_refreshed_are_done_once() -> None:
    async def script(lab: Lab) -> None:
        queues: dict[str, Queue] = {}
        done: list[int] = []

        def plugin(name: str) -> Queue:
            queues[name] = Queue("mail", visibility_timeout=2.0)
            return queues[name]

        lab.start("a", plugin=plugin)
        await lab.ready("a")
        for number in range(200):
            await lab.run_on("a", queues["a"].enqueue(number))
        slow(lab, "a")

        async def work() -> None:
            async for ticket in queues["a"].claim():
                async with ticket:
                    done.append(ticket.payload)

        workers = [lab.run_on("a", work()) for _ in range(3)]
        await lab.world.eventually(lambda: len(done) >= 200, within_s=60.0, what="all are done")
        await asyncio.sleep(10.0)
        assert sorted(done) == list(range(200))
        assert not any(worker.done() for worker in workers)

    play(script)


@pytest.mark.usefixtures("short_days")
def test_a_refresh_whose_reply_is_lost_fences_no_member() -> None:
    async def script(lab: Lab) -> None:
        await group(lab, "a", "b")
        a = lab.members["a"]
        lab.members["b"].on_signal("s", lambda delivery: None)
        write, lost = lab.store.write, 0

        async def loses(*writes: Write, **options: Any) -> tuple[str, ...]:
            nonlocal lost
            answer = await write(*writes, **options)
            if any(isinstance(each, Put) and each.key == keys.member("a") for each in writes):
                lost += 1
                raise StoreUnavailableError("the reply was lost")
            return answer

        lab.store.write = loses  # type: ignore[method-assign]
        for _ in range(200):
            await lab.run_on("a", a.send_signal("b", "s"))
            await asyncio.sleep(0.05)
        lab.store.write = write  # type: ignore[method-assign]
        assert lost > 1, "it has to happen"

    play(script)


@pytest.mark.usefixtures("short_days")
def test_what_a_dead_incarnation_wrote_under_is_not_bound_to_the_next_one() -> None:
    async def script(lab: Lab) -> None:
        heard, _ = await group(lab, "a", "b")
        a = lab.members["a"]
        await asyncio.sleep(10.0)
        before, boot = a.alive_check, a.boot
        assert before is not None
        lab.faults["a"].down = True
        await lab.world.eventually(
            lambda: heard.of(events.CoordinatorDead, "a"), within_s=10.0, what="dead"
        )
        lab.faults["a"].down = False
        await lab.world.eventually(
            lambda: a.boot > boot and not a.isolated, within_s=10.0, what="alive"
        )
        store = a.store
        with pytest.raises(VersionConflict):
            await store.write(before, Put("x", b"late", expect=ANY, ttl_s=1.0))
        assert await lab.store.get("x") == (None,)

    play(script)


@pytest.mark.parametrize("tasks", [1, 10])
def test_beats_that_are_asked_for_beside_those_of_the_heart_end_no_incarnation(tasks: int) -> None:
    async def script(lab: Lab) -> None:
        _, leader = await group(lab, "a", "b")
        member, boot = lab.members[leader], lab.members[leader].boot
        slow(lab, leader)

        async def beats() -> None:
            for _ in range(200):
                # One that waits behind others on a slow store may be given up.
                with contextlib.suppress(StoreUnavailableError):
                    await member.send_signal(leader, "heartbeat")

        await asyncio.gather(*(lab.run_on(leader, beats()) for _ in range(tasks)))
        assert member.is_coordinator
        assert (member.boot, member.current_epoch) == (boot, FIRST_EPOCH)

    play(script)


async def member_of(lab: Lab, member_id: str) -> MemberRecord | None:
    (found,) = await lab.store.get(keys.member(member_id))
    codec = lab.members["a"].parts.codec
    return None if found is None else codec.read(MemberRecord, found.value, key=found.key)


@pytest.mark.usefixtures("short_days")
def test_the_registration_of_a_driven_member_lasts_as_long_as_it_is_driven() -> None:
    async def script(lab: Lab) -> None:
        heard, _ = await group(lab, "a", "b")
        a, b = lab.members["a"], lab.members["b"]
        first = await lab.run_on("a", a.register_heartbeat(DEVICE, 1))
        for number in range(2, 60):
            # Now and then another process goes on with it.
            name, member = ("b", b) if number // 10 % 2 else ("a", a)
            again = await lab.run_on(name, member.register_heartbeat(DEVICE, number))
            assert again == first
            await asyncio.sleep(0.5)
        known = await member_of(lab, DEVICE)
        assert known is not None and known.status == "alive"
        await lab.run_on("a", a.send_signal(DEVICE, "x"))
        await lab.run_on("a", a.unregister_heartbeat(DEVICE))
        known = await member_of(lab, DEVICE)
        assert known is not None and known.status == "left"
        await asyncio.sleep(2.0 * FAST.dead_after)
        assert heard.of(events.CoordinatorDead) == []

    play(script)


def test_a_driven_member_whose_registration_is_gone_leaves_all_the_same() -> None:
    async def script(lab: Lab) -> None:
        heard, _ = await group(lab, "a")
        a = lab.members["a"]
        await lab.run_on("a", a.register_heartbeat(DEVICE, 1))
        await lab.store.write(Delete(keys.member(DEVICE), ANY))
        await lab.run_on("a", a.unregister_heartbeat(DEVICE))
        await asyncio.sleep(3.0 * FAST.dead_after)
        assert heard.of(events.CoordinatorDead) == []
        assert heard.of(events.HeartbeatWarning) == []

    play(script)
