"""What a member logs and counts so that operators find the cause: records that do not verify,
changes of the coordinator, lost events, tight limits, slow starts, jumps of a sequence.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from squall.coordination import Coordinator, CoordinatorPlugin, MemoryStore, Ttl, events
from squall.coordination.events import QUEUE_MAX
from squall.coordination.member_stats import FLAPPING_ADVICE
from squall.coordination.metrics import CoordinationMetrics
from squall.coordination.records import keys
from squall.coordination.records.rejected_records import KEYS_MAX, RejectedRecords
from squall.coordination.records.schemas import Codec, MemberRecord
from squall.coordination.stores.interface import ANY, Put
from squall.runtime.log import Log, MemorySink
from squall.runtime.metrics import Registry
from squall.runtime.real.runtime import RealClock
from tests.unit.coordination.lab.groups import Heard
from tests.unit.coordination.lab.logs import log_of, warnings_of
from tests.unit.coordination.lab.world import FAST, Lab, play


def test_a_record_that_cannot_be_believed_is_logged_once_for_its_key_and_counted_each_time() -> (
    None
):
    sink, registry = MemorySink(), Registry()
    log = Log(sink, RealClock())
    refusals = RejectedRecords(CoordinationMetrics.of_registry(registry), lambda: log)
    codec = Codec(None, refusals)
    newer = msgspec.json.encode({"v": 9, "member_id": "a", "incarnation": 1})
    for _ in range(3):
        assert codec.read(MemberRecord, b"{", key="member/a") is None
        assert codec.read(MemberRecord, newer, key="member/b") is None
    assert codec.read(MemberRecord, b"{") is None, (
        "a member without a key reports it in another way"
    )
    shown = warnings_of(sink, "record_refused")
    assert [each["key"] for each in shown] == ["member/a", "member/b"]
    assert "schema 9" in shown[1]["reason"] and "knows up to 1" in shown[1]["reason"]
    assert (
        'coordination_records_refused_total{kind="MemberRecord",namespace="default"} 6'
        in registry.exposition()
    )
    for number in range(2 * KEYS_MAX):
        codec.read(MemberRecord, b"{", key=f"member/{number}")
    assert len(refusals._logged) == KEYS_MAX  # pyright: ignore[reportPrivateUsage]


def test_a_member_lives_with_a_spoilt_heartbeat_and_names_it_once() -> None:
    async def script(lab: Lab) -> None:
        sink = MemorySink()
        lab.start("a", log=log_of(lab, sink))
        await lab.led()
        bad = Put(keys.heartbeat("spoilt"), b"?", expect=ANY, ttl_s=600.0)
        await lab.store.write(bad)
        await asyncio.sleep(10.0 * FAST.monitor_interval)
        named = [each["key"] for each in warnings_of(sink, "record_refused")]
        assert named == [keys.heartbeat("spoilt")] and lab.leaders == ["a"]

    play(script)


def test_frequent_changes_of_the_coordinator_are_logged_with_advice() -> None:
    async def script(lab: Lab) -> None:
        sink, heard = MemorySink(), Heard()
        lab.start("a", "b")
        lab.start("c", eligible=False, log=log_of(lab, sink))
        await lab.ready("a", "b", "c")
        heard.listen(lab, "c")
        leader = await lab.led()
        for _ in range(6):
            await lab.run_on(leader, lab.members[leader].hand_over(allow_early=True))
            leader = await lab.led(but=leader)
            # It reads once per beat, and must see each of them.
            await asyncio.sleep(2.0 * FAST.heartbeat_interval)
        (shown,) = warnings_of(sink, "flapping")
        assert shown["changes"] == 6 and shown["advice"] == FLAPPING_ADVICE
        assert len(heard.of(events.Flapping)) == 1
        registry = lab.members["c"].parts.metrics.families.registry
        assert 'coordination_leader_changes_total{namespace="default"} 7' in registry.exposition()

    play(script)


@pytest.mark.asyncio
async def test_events_that_a_slow_listener_lost_are_counted_for_prometheus() -> None:
    async with Coordinator("memory:", profile="fast", unsafe_timings=True) as member:
        waits = asyncio.Event()
        member.on(events.Isolated, lambda event: waits.wait())
        for _ in range(QUEUE_MAX + 5):
            member.parts.bus.emit(events.Isolated(member_id="x", silent_s=1.0))
        assert 'coordination_events_dropped_total{namespace="default"} 5' in member.metrics_text()
        waits.set()


@pytest.mark.asyncio
async def test_a_limit_below_twice_the_expected_time_is_warned_about() -> None:
    sink = MemorySink()
    options: dict[str, Any] = {"profile": "fast", "unsafe_timings": True}
    log = Log(sink, RealClock())
    async with Coordinator("memory:", log=log, **options) as member:
        for limit_s in (0.15, 0.25):
            with pytest.raises(TimeoutError):
                await member.block_until_signal(timeout_s=limit_s, expected_duration=0.1)
    (shown,) = warnings_of(sink, "timeout_is_tight")
    assert (shown["timeout_s"], shown["expected_s"]) == (0.15, 0.1)


def test_a_start_that_takes_long_says_what_shortens_it() -> None:
    slow = msgspec.structs.replace(
        FAST, cold_start_observation_window=20.0, cold_start_preparation_delay=8.0
    )

    async def script(lab: Lab) -> None:
        sink = MemorySink()
        lab.start("a", profile=slow, log=log_of(lab, sink))
        await lab.led(60.0)
        (shown,) = warnings_of(sink, "slow_start")
        assert shown["took_s"] == 28 and "cold_start_observation_window" in shown["advice"]

    play(script)


def test_jumps_of_a_sequence_and_a_false_death_are_logged() -> None:
    async def script(lab: Lab) -> None:
        sinks = {name: MemorySink() for name in ("a", "b")}
        for name, sink in sinks.items():
            lab.start(name, log=log_of(lab, sink))
        await lab.ready("a", "b")
        leader = await lab.led()
        other = "b" if leader == "a" else "a"
        member = lab.members[leader]
        for sequence in (1, 2, 3, 6):
            await lab.run_on(leader, member.register_heartbeat("sensor", sequence))
        (shown,) = warnings_of(sinks[leader], "continuity_violation")
        assert (shown["member_id"], shown["expected"], shown["received"]) == ("sensor", 4, 6)
        lab.faults[other].down = True
        await asyncio.sleep(3.0 * FAST.dead_after)
        lab.faults[other].down = False
        await asyncio.sleep(2.0 * FAST.dead_after)
        (shown,) = warnings_of(sinks[other], "was_declared_dead")
        assert "heartbeat_ttl" in shown["advice"]

    play(script)


class Reports(CoordinatorPlugin):
    name = "reports daily"


@pytest.mark.asyncio
async def test_plugins_tell_of_elections_under_their_own_names() -> None:
    store = MemoryStore(RealClock())
    options: dict[str, Any] = {"profile": "fast", "unsafe_timings": True}
    async with (
        Coordinator(store, Ttl(), Reports(), member_id="a", **options) as a,
        Coordinator(store, Ttl(), member_id="b", eligible=False, **options) as b,
    ):
        got: list[tuple[str, str]] = []
        for name in ("plg:ttl:coordinator-elected", "plg:ttl:coordinator-promoted"):
            b.on(name, lambda event: got.append(("b", event.plugin)))
        a.on(events.PluginPromoted, lambda event: got.append(("a", event.plugin)))
        a.on("plg:reports:coordinator-promoted", lambda event: got.append((event.member_id, "r")))
        async with asyncio.timeout(20.0):
            while len(got) < 4:
                await asyncio.sleep(0.02)
        assert sorted(got) == [("a", "r"), ("a", "reports"), ("a", "ttl"), ("b", "ttl")]
