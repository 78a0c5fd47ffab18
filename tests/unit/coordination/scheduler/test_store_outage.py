"""The scheduler's store does not answer for longer than its retries, but not until another member
leads: a run that was begun runs once, and its end is reported as it was. In virtual time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from squall.coordination import RunRecord, Scheduler
from squall.coordination.scheduler.records import run_key
from squall.coordination.store_errors import StoreUnavailableError
from squall.coordination.stores.interface import Fence, Put, Write
from tests.unit.coordination.lab.world import NORMAL, Lab, play

AWAY_S = 9.0
"""Above the seven seconds of four tries, below a lease."""


class Loses:
    """No answer comes to writes of a kind, for a while; the first one takes effect, or none."""

    def __init__(self, lab: Lab, prefix: str, outcome: bytes, *, takes_effect: bool) -> None:
        self.lab = lab
        self.prefix, self.outcome, self.takes_effect = prefix, outcome, takes_effect
        self.until = 0.0
        self.lost = 0
        self._write = lab.store.write
        lab.store.write = self.write

    async def write(self, *writes: Write, fence: Fence | None = None) -> tuple[str, ...]:
        if self._meets(writes):
            if not self.until:
                self.until = self.lab.world.now + AWAY_S
            if self.lab.world.now < self.until:
                self.lost += 1
                if self.takes_effect and self.lost == 1:
                    await self._write(*writes, fence=fence)
                raise StoreUnavailableError("no answer")
        return await self._write(*writes, fence=fence)

    def _meets(self, writes: Sequence[Write]) -> bool:
        return any(
            isinstance(each, Put)
            and each.key.startswith(self.prefix)
            and self.outcome in each.value
            for each in writes
        )


class Ticking:
    """One member with a job every 20 s, and the due times that ran."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.ran: list[str] = []
        self.scheduler = Scheduler()
        self.scheduler.every(20.0, name="tick")(self._run)
        lab.member("a", plugin=lambda name: self.scheduler, profile=NORMAL)
        lab.world.start("a")

    async def _run(self, run: RunRecord) -> None:
        self.ran.append(run.slot)
        await asyncio.sleep(0.5)

    async def end(self) -> None:
        await self.lab.run_on("a", self.scheduler.pause("tick"))
        await asyncio.sleep(5.0)

    async def outcomes(self) -> dict[str, str]:
        """As the history and the records show them."""
        found: dict[str, str] = {}
        for run in await self.lab.run_on("a", self.scheduler.history("tick")):
            assert run.slot not in found, "once each"
            found[run.slot] = run.outcome
            (record,) = await self.lab.store.get(run_key("tick", run.slot))
            assert record is not None
            assert f'"outcome":"{run.outcome}"'.encode() in record.value
        return found


@pytest.mark.parametrize("takes_effect", [True, False])
def test_a_run_whose_end_got_no_answer_is_reported_as_ended(takes_effect: bool) -> None:
    async def script(lab: Lab) -> None:
        ticking = Ticking(lab)
        await lab.led(60.0)
        loses = Loses(lab, "run/", b'"outcome":"ok"', takes_effect=takes_effect)
        await asyncio.sleep(100.0)
        await ticking.end()
        assert loses.lost >= 4, "it has to happen"
        assert len(set(ticking.ran)) == len(ticking.ran) >= 3
        assert await ticking.outcomes() == dict.fromkeys(ticking.ran, "ok")

    play(script)


@pytest.mark.parametrize("takes_effect", [True, False])
def test_a_due_time_whose_record_got_no_answer_is_run_once(takes_effect: bool) -> None:
    async def script(lab: Lab) -> None:
        ticking = Ticking(lab)
        await lab.led(60.0)
        loses = Loses(lab, "run/", b'"slot"', takes_effect=takes_effect)
        await asyncio.sleep(100.0)
        await ticking.end()
        assert loses.lost >= 4, "it has to happen"
        assert len(set(ticking.ran)) == len(ticking.ran)
        assert await ticking.outcomes() == dict.fromkeys(ticking.ran, "ok")
        due = [int(slot) for slot in ticking.ran]
        assert due == list(range(due[0], due[-1] + 1, 20_000)), "none is left out"

    play(script)


@pytest.mark.parametrize("takes_effect", [True, False])
def test_an_order_whose_record_got_no_answer_is_obeyed_once(takes_effect: bool) -> None:
    async def script(lab: Lab) -> None:
        ticking = Ticking(lab)
        await lab.led(60.0)
        await lab.run_on("a", ticking.scheduler.pause("tick"))
        before = len(ticking.ran)
        loses = Loses(lab, "run/tick/now-", b"", takes_effect=takes_effect)
        slot = await lab.run_on("a", ticking.scheduler.run_now("tick"))
        await asyncio.sleep(30.0)
        assert loses.lost >= 4, "it has to happen"
        assert ticking.ran[before:] == [slot]
        assert (await ticking.outcomes())[slot] == "ok"

    play(script)
