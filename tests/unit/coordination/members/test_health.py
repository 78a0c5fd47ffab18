"""One vocabulary of health: gauges, `status`, `members` and `doctor` say the same of a member."""

from __future__ import annotations

import asyncio
import random
from typing import get_args

import msgspec
import pytest

from lab.scenarios.coordination.store import WorldClock
from squall.coordination.members.health_rules import HEALTHS, Health, judge
from squall.coordination.operations.doctor import examine
from squall.coordination.operations.inspect import Member, list_members, read_status
from squall.coordination.records.schemas import HeartbeatRecord, MemberRecord, WarningRecord
from squall.coordination.stores.guarded_store import GuardedStore
from tests.unit.coordination.lab.world import FAST, Lab, play

# Room between the first warning and the death, to look in between.
SLOW_DEATH = msgspec.structs.replace(
    FAST, heartbeat_ttl=4.0, monitor_interval=4.0, dead_after=16.0, max_epoch_duration=100.0
)


def seen(lab: Lab) -> GuardedStore:
    return GuardedStore(lab.store, WorldClock(lab.world, 1.0), random.Random(1))


async def members(lab: Lab) -> dict[str, Member]:
    return {each.member_id: each for each in await list_members(seen(lab))}


def gauges(lab: Lab, leader: str) -> dict[str, float]:
    metrics = lab.members[leader].parts.metrics
    values = {each: metrics.gauge(metrics.families.members, each).value for each in HEALTHS}
    return {health: value for health, value in values.items() if value}


def test_the_gauges_count_each_member_once_from_its_last_beat_to_its_death() -> None:
    async def script(lab: Lab) -> None:
        lab.start("a", "b", "c", profile=SLOW_DEATH)
        await lab.ready("a", "b", "c")
        leader = await lab.led()
        victim = next(name for name in "abc" if name != leader)
        await asyncio.sleep(SLOW_DEATH.monitor_interval * 4.0)
        assert gauges(lab, leader) == {"healthy": 3}
        lab.world.kill(victim)
        words: list[str] = []
        for _ in range(30):
            await asyncio.sleep(SLOW_DEATH.monitor_interval * 0.3)
            counted, shown = gauges(lab, leader), (await members(lab)).get(victim)
            if shown is None:
                break
            if shown.health not in words:
                words.append(shown.health)
            if counted.get(shown.health):
                # At most a cycle later the gauges agree, and no member is counted twice.
                assert sum(counted.values()) == 3, counted
                assert counted["healthy"] == (3 if shown.health == "healthy" else 2)
        assert words == ["healthy", "stale", "warning", "critical"]
        assert gauges(lab, leader) == {"healthy": 2, "dead": 1}
        await asyncio.sleep(SLOW_DEATH.monitor_interval)
        assert gauges(lab, leader) == {"healthy": 2}

    play(script)


def test_members_are_stale_if_they_are_silent_and_no_member_leads() -> None:
    async def script(lab: Lab) -> None:
        lab.start("a", "b")
        lab.start("c", eligible=False)
        await lab.ready("a", "b", "c")
        await lab.led()
        lab.world.kill("a")
        lab.world.kill("b")
        await asyncio.sleep(FAST.heartbeat_ttl + 1.0)
        shown = await members(lab)
        assert {name: each.health for name, each in shown.items()} == {
            "a": "stale",
            "b": "stale",
            "c": "healthy",
        }
        assert (await read_status(seen(lab))).members == {"healthy": 1, "stale": 2}
        found = {each.about: each for each in await examine(seen(lab), 0.0)}
        assert found["members"].text == "1 healthy, 2 stale"
        assert found["detection"].verdict == "bad" and "a, b" in found["detection"].text
        assert "none of the 1 live members may lead" in found["coordinator"].text
        assert found["coordinator"].advice == "start a member with eligible=True"

    play(script)


def test_a_killed_leader_is_not_shown_beside_its_successor() -> None:
    async def script(lab: Lab) -> None:
        lab.start("a", "b", profile=SLOW_DEATH)
        await lab.ready("a", "b")
        first = await lab.led()
        await asyncio.sleep(1.0)
        lab.world.kill(first)
        second = await lab.led(but=first)
        await asyncio.sleep(1.0)
        shown = await members(lab)
        assert [name for name, each in shown.items() if each.is_coordinator] == [second]
        assert shown[first].says_leads

    play(script)


def test_a_member_whose_heartbeat_expired_is_stale() -> None:
    async def script(lab: Lab) -> None:
        brief = msgspec.structs.replace(FAST, retention=10.0)
        lab.start("a", profile=brief, eligible=False)
        await lab.world.eventually(lambda: "a" in lab.members, within_s=5.0, what="it runs")
        await asyncio.sleep(1.0)
        lab.world.kill("a")
        await asyncio.sleep(brief.retention + 1.0)
        assert {name: each.health for name, each in (await members(lab)).items()} == {"a": "stale"}

    play(script)


def beat(boot: int = 1, status: str = "alive") -> HeartbeatRecord:
    return HeartbeatRecord(member_id="a", boot=boot, sequence=1, timestamp=0.0, status=status)


def registered(boot: int = 1, status: str = "alive") -> MemberRecord:
    return MemberRecord(member_id="a", boot=boot, status=status)


def warned(health: str, boot: int = 1) -> WarningRecord:
    return WarningRecord(
        member_id="a",
        boot=boot,
        consecutive_warnings=1,
        health=health,
        first_at=0.0,
        last_at=0.0,
        last_sequence=1,
        reason="",
    )


@pytest.mark.parametrize(
    ("member", "last", "warning", "heard_s", "expected"),
    [
        (None, None, None, 0.0, "unknown"),
        (registered(), beat(), None, 1.0, "healthy"),
        (registered(), None, None, 1.0, "healthy"),
        # It beats again, and the leader has not removed the warning yet.
        (registered(), beat(), warned("critical"), 1.0, "healthy"),
        (registered(), beat(), None, 99.0, "stale"),
        (registered(boot=2), beat(boot=2), warned("critical", boot=1), 99.0, "stale"),
        (registered(), beat(), warned("warning"), 99.0, "warning"),
        (registered(), beat(), warned("critical"), 99.0, "critical"),
        # The third warning precedes the decision.
        (registered(), beat(), warned("dead"), 99.0, "critical"),
        (registered(), beat(status="dead"), warned("dead"), 1.0, "dead"),
        (registered(status="dead"), beat(), None, 1.0, "dead"),
        (registered(status="dead"), None, None, 1.0, "dead"),
        (registered(status="left"), None, None, 1.0, "left"),
        (registered(boot=2), beat(boot=1, status="dead"), None, 1.0, "healthy"),
    ],
)
def test_one_rule_finds_the_word(
    member: MemberRecord | None,
    last: HeartbeatRecord | None,
    warning: WarningRecord | None,
    heard_s: float,
    expected: str,
) -> None:
    assert judge(member, last, warning, heard_s, 10.0) == expected


def test_every_word_is_explained() -> None:
    assert set(get_args(Health)) == set(HEALTHS)
