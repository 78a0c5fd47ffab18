"""A process is stopped until it is declared dead, and resumed: the store refuses every write of
that boot, and the member continues as a new boot.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from squall.coordination import Coordinator, Queue, events
from squall.coordination.records import keys
from tests.services.coordination.lab.places import Place
from tests.services.coordination.lab.processes import Lab
from tests.services.coordination.programs.sleeper import HELD, QUEUE, SECRET, order

pytestmark = pytest.mark.asyncio
SLEEPER, KEEPER = "sleeper", "keeper"
TICKETS = HELD + 1
"""One more than the sleeper holds, for the taking."""


class SleeperLab(Lab):
    def __init__(self, place: Place, folder: Path, holds: str) -> None:
        # It must not lose its lead before it is stopped.
        scale = 3.0 if place.kind == "s3" else 1.5
        super().__init__(place.url, place.prefix, folder, [SLEEPER], scale)
        self.holds = holds

    def start(self, member: str, *, offset: float = 0.0) -> None:
        self.launch("sleeper", member, other=KEEPER, holds=self.holds)

    def order(self, what: str) -> None:
        order(self.folder / f"{SLEEPER}.jsonl", what).touch()


@pytest.fixture(params=["aware", "unaware"])
def holds(request: pytest.FixtureRequest) -> str:
    """Whether its clock shows how long it was stopped."""
    return request.param


@pytest_asyncio.fixture
async def lab(place: Place, tmp_path: Path, holds: str) -> AsyncIterator[SleeperLab]:
    async with SleeperLab(place, tmp_path / "journals", holds) as made:
        yield made


class Keeper:
    """The other member: it follows, declares the sleeper dead, and takes no tickets."""

    def __init__(self, coordinator: Coordinator, queue: Queue) -> None:
        self.coordinator = coordinator
        self.queue = queue
        self.dead: list[events.CoordinatorDead] = []
        self.heard: list[Any] = []
        coordinator.on(events.CoordinatorDead, self.dead.append)
        coordinator.on_signal("note", lambda delivery: self.heard.append(delivery.signal.payload))

    async def until_dead(self, within_s: float) -> events.CoordinatorDead:
        async with asyncio.timeout(within_s):
            while not self.dead:
                await asyncio.sleep(0.05)
        return self.dead[0]

    async def orders(self) -> list[str]:
        return [item.id for item in await self.coordinator.store.read("orders")]


def check_refused(lab: SleeperLab) -> None:
    answers = {line["call"]: line["answer"] for line in lab.lines("tried")}
    fenced = ("heartbeat", "signal", "signal with retry", "claim renewal")
    assert {call: answers[call] for call in fenced} == dict.fromkeys(fenced, "MemberFencedError")
    # The queue renews claims by itself; once that was refused, the ticket knows that it is lost.
    assert answers["completion"] in {"MemberFencedError", "StaleClaimError"}
    assert answers["lease renewal"] in {"VersionConflict", "StaleEpochError"}
    assert answers["order"] == "StaleEpochError"
    assert [line["isolated"] for line in lab.lines("isolated")] == [True]
    for call in ("claim at once", "new claim"):
        assert answers[call] == "TimeoutError", "the dead take no work, whatever they know"


@pytest.mark.parametrize("place", ["sqlite", "redis", "s3"], indirect=True)
async def test_whatever_the_dead_want_is_refused_until_they_are_new(
    place: Place, lab: SleeperLab
) -> None:
    lab.start(SLEEPER)
    await lab.told("started")
    queue = Queue(QUEUE, visibility_timeout=lab.timing.dead_after / 2.0)
    options: dict[str, Any] = {"profile": lab.timing, "unsafe_timings": True, "secret": SECRET}
    async with Coordinator(await place.open(), queue, member_id=KEEPER, **options) as coordinator:
        secret_reloader = Keeper(coordinator, queue)
        made = [await queue.enqueue(number) for number in range(TICKETS)]
        (holding,) = await lab.told("holds")
        assert holding["leads"], "the one that led is stopped"
        (started,) = lab.lines("started")
        lab.order("sleep")
        death = await secret_reloader.until_dead(2.0 * lab.death_s)
        assert (death.member_id, death.boot) == (SLEEPER, started["boot"])
        lab.resume(SLEEPER)
        await lab.told("tried all")
        check_refused(lab)
        assert [await queue.final(each) for each in made] == [None] * TICKETS
        (beat,) = await coordinator.store.get(keys.heartbeat(SLEEPER))
        assert beat is None or b'"alive"' not in beat.value
        assert secret_reloader.heard == [] and await secret_reloader.orders() == []
        lab.order("rebirth")
        (reborn,) = await lab.told("reborn")
        assert reborn["boot"] > started["boot"]
        await lab.told("done", TICKETS)
        ends = [await queue.result(each, timeout_s=60.0) for each in made]
        assert [(each.state, each.result) for each in ends] == [("done", "alive")] * TICKETS
        assert secret_reloader.heard == ["alive"]
        assert len(secret_reloader.dead) == 1, "one death, told once"
