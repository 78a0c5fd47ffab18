"""Member processes that are killed and stopped, on each store that several processes can share."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.services.coordination.lab.places import Place
from tests.services.coordination.lab.processes import Lab

MEMBERS = ["a", "b", "c"]
MINUTES_APART = {"a": -600.0, "b": 0.0, "c": 600.0}


@pytest.fixture
def lab(place: Place, tmp_path: Path) -> Iterator[Lab]:
    if place.kind == "memory":
        pytest.skip("a memory store has one process")
    folder = tmp_path / "journals"
    folder.mkdir()
    # Each operation on S3 is several requests of some milliseconds.
    scale = 3.0 if place.kind == "s3" else 1.0
    made = Lab(place.url, place.prefix, folder, MEMBERS, scale)
    try:
        yield made
    finally:
        made.close()
    made.check()


def begin(lab: Lab, offsets: Mapping[str, float] | None = None) -> str:
    for member in MEMBERS:
        lab.start(member, offset=(offsets or {}).get(member, 0.0))
    lab.until(
        lambda: len(lab.lines("started")) == len(MEMBERS), 30.0 * lab.scale, "all have started"
    )
    lab.until_acts(0.0, within_s=20.0 * lab.scale)
    lab.until_acked(0.0)
    return lab.leader()


def test_a_killed_coordinator_and_a_killed_member_are_replaced(lab: Lab) -> None:
    leader = begin(lab)
    epoch = lab.lines("acts")[-1]["epoch"]
    lab.kill(leader)
    left = [member for member in MEMBERS if member != leader]
    lab.until_acts(time.monotonic(), by=left, within_s=lab.failover_s)
    assert lab.lines("acts")[-1]["epoch"] > epoch
    lab.until(
        lambda: any(line["dead"] == leader for line in lab.lines("dead")),
        lab.death_s,
        "the death of the coordinator is told",
    )
    lab.start(leader)
    lab.until(lambda: len(lab.lines("started")) == len(MEMBERS) + 1, 30.0 * lab.scale, "it is back")
    leader = lab.leader()
    member = next(each for each in MEMBERS if each != leader)
    lab.kill(leader)
    lab.kill(member)
    (alone,) = (each for each in MEMBERS if each in lab.processes)
    lab.until_acts(time.monotonic(), by=[alone], within_s=lab.failover_s)


def test_a_stopped_coordinator_does_not_act_after_it_wakes(lab: Lab) -> None:
    leader = begin(lab)
    lab.pause(leader)
    left = [member for member in MEMBERS if member != leader]
    lab.until_acts(time.monotonic(), by=left, within_s=lab.failover_s)
    epoch = lab.lines("acts")[-1]["epoch"]
    # Before it can report anything, it finds out.
    woken = time.monotonic()
    lab.resume(leader)
    lab.until_acts(woken + lab.timing.lease_ttl, within_s=lab.failover_s)
    # The answer to what it wrote before the pause may lie there when it wakes.
    new = [line for line in lab.lines("acts", "wrote") if line.get("begun", line["at"]) > woken]
    assert all(line["epoch"] >= epoch for line in new)
    asyncio.run(lab.check_written())
    lab.until(
        lambda: any(
            line["at"] > woken and line["member"] == leader for line in lab.lines("demoted")
        ),
        lab.failover_s,
        "it learns that it was replaced",
    )
    lab.until_acked(woken)


@pytest.mark.nightly
def test_a_clock_that_is_an_hour_off_changes_nothing(lab: Lab) -> None:
    begin(lab, {"a": 3600.0})
    since = time.monotonic()
    time.sleep(lab.timing.dead_after)
    lab.until_acts(since, within_s=lab.failover_s)
    assert lab.lines("dead") == []
    lab.until(
        lambda: MEMBERS[0] in {line["member"] for line in lab.lines("acked")},
        20.0 * lab.scale,
        "its own signals are believed",
    )
    assert lab.close() == [0] * len(MEMBERS)
    lab.processes.clear()


def test_clocks_that_are_minutes_apart_change_nothing(lab: Lab) -> None:
    """No member dies, all signals are accepted, and a killed coordinator is replaced as usual."""
    begin(lab, MINUTES_APART)
    since = time.monotonic()
    time.sleep(lab.timing.dead_after)
    lab.until_acts(since, within_s=lab.failover_s)
    lab.until(
        lambda: {line["member"] for line in lab.lines("acked")} == set(MEMBERS),
        20.0 * lab.scale,
        "the signals of all are believed",
    )
    assert lab.lines("dead") == []
    leader, epoch = lab.leader(), lab.lines("acts")[-1]["epoch"]
    lab.kill(leader)
    left = [member for member in MEMBERS if member != leader]
    lab.until_acts(time.monotonic(), by=left, within_s=lab.failover_s)
    assert lab.lines("acts")[-1]["epoch"] > epoch
    assert {line["dead"] for line in lab.lines("dead")} <= {leader}
    assert lab.close() == [0] * len(left)
    lab.processes.clear()
