"""Processes that block for a signal: killed and restarted, blocked for long, and waiting for a
sender that died.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from squall.coordination import Coordinator, events
from tests.services.coordination.lab.places import Place
from tests.services.coordination.lab.processes import Lab
from tests.services.coordination.programs.caller import SECRET, WAITS_S, caller_timing

pytestmark = pytest.mark.asyncio


class CallerLab(Lab):
    """Each process is one caller, which waits for the sender."""

    def __init__(self, place: Place, folder: Path) -> None:
        # A caller that stands still for two seconds must not be called silent.
        scale = 2.0 if place.kind == "s3" else 1.25
        super().__init__(place.url, place.prefix, folder, [], scale)
        self.patience_s = 40.0 * scale
        self.sender = "sender"
        self.dies = False

    def start(self, member: str, *, offset: float = 0.0) -> None:
        self.launch(
            "caller",
            member,
            sender=self.sender,
            dies="yes" if self.dies else "no",
            job=f"job-of-{member}",
        )


@pytest_asyncio.fixture
async def lab(place: Place, tmp_path: Path) -> AsyncIterator[CallerLab]:
    async with CallerLab(place, tmp_path / "journals") as made:
        yield made


async def member(lab: CallerLab, place: Place, name: str) -> Coordinator:
    return Coordinator(
        await place.open(),
        member_id=name,
        profile=caller_timing(lab.scale, dies=lab.dies),
        unsafe_timings=True,
        secret=SECRET,
        ack_timeout=2.0 * lab.scale,
    )


@pytest.mark.parametrize("place", ["sqlite", "redis", "s3"], indirect=True)
async def test_a_killed_caller_goes_on_with_its_wait(place: Place, lab: CallerLab) -> None:
    async with await member(lab, place, lab.sender) as sender:
        for name in ("early", "late"):
            lab.start(name)
        await lab.told("waits", 2)
        lab.kill("early")
        lab.kill("late")
        # One signal comes while its caller is not there, one when it waits again.
        await sender.send_signal("early", "completion", correlation_id="job-of-early", payload=1)
        lab.start("early")
        lab.start("late")
        await lab.told("waits", 4)
        await sender.send_signal("late", "completion", correlation_id="job-of-late", payload=2)
        got = await lab.told("got", 2)
    assert {(each["job"], each["payload"]) for each in got} == {
        ("job-of-early", 1),
        ("job-of-late", 2),
    }
    again = [each["open"] for each in lab.lines("started") if each["open"]]
    assert sorted(again) == [["job-of-early"], ["job-of-late"]]


@pytest.mark.parametrize("place", ["sqlite", "redis", "s3"], indirect=True)
async def test_a_blocked_caller_stays_healthy_and_hears_of_the_death_of_its_sender(
    place: Place, lab: CallerLab
) -> None:
    """Until it does it is blocked for three times as long as a heartbeat lasts."""
    lab.dies = True
    async with await member(lab, place, "watch") as watch:
        await watch.ensure_coordinator(timeout_s=30.0 * lab.scale)
        told: list[events.HeartbeatWarning | events.CoordinatorDead] = []
        watch.on(events.HeartbeatWarning, told.append)
        watch.on(events.CoordinatorDead, told.append)
        lab.start("caller")
        # A caller, too, whom nobody answers: it is there to be killed.
        lab.sender = "nobody"
        lab.start("sender")
        await lab.told("waits", 2)
        # A last beat that came late makes it dead sooner.
        await asyncio.sleep(lab.timing.heartbeat_ttl)
        lab.kill("sender")
        (ended,) = await lab.told("ended")
        assert (ended["job"], ended["error"]) == ("job-of-caller", "DeadCoordinatorError")
        (begun,) = (each["at"] for each in lab.lines("waits") if each["member"] == "caller")
        assert 3.0 * lab.timing.heartbeat_ttl < ended["at"] - begun < WAITS_S / 10.0
        assert {each.member_id for each in told} == {"sender"}, "who is blocked beats on"
        dead = [each for each in told if isinstance(each, events.CoordinatorDead)]
        assert [each.member_id for each in dead] == ["sender"]
