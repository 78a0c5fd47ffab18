"""A member process that is stopped until it is declared dead, and that tries every kind of write
when it resumes, before it may come back as a new boot.

Its journal records each attempt and the answer. Files next to the journal control it: `.sleep`
makes it stop itself, `.rebirth` lets it register again. Run as
`python -m tests.services.coordination.programs.sleeper '{json options}'`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import sys
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

from squall.coordination import CoordinationError, Coordinator, Queue
from squall.coordination.events import CoordinatorRecovered
from squall.coordination.members.registration import Registration
from squall.coordination.queue.claims import ClaimedTicket
from squall.coordination.records import keys
from squall.coordination.stores.interface import Append, Fence, Put, Write
from squall.coordination.stores.open import make_store
from squall.runtime.real.runtime import RealClock, RealRuntime
from tests.services.coordination.programs.member import Journal, WrongClock, scaled

SECRET = "9b3d05c1e7f24a68" * 4
QUEUE = "terminal"
HELD = 2
LOOK_S = 0.02


def order(journal: Path | str, what: str) -> Path:
    return Path(f"{journal}.{what}")


async def ordered(journal: Journal, what: str) -> None:
    while not order(journal.path, what).exists():
        await asyncio.sleep(LOOK_S)


class Sleeper:
    def __init__(self, coordinator: Coordinator, queue: Queue, journal: Journal) -> None:
        self._coordinator = coordinator
        self._queue = queue
        self._journal = journal
        self._renewal: tuple[tuple[Write, ...], Fence | None] = ((), None)
        self._reborn = asyncio.Event()
        coordinator.on(CoordinatorRecovered, self._recovered)

    def _recovered(self, event: CoordinatorRecovered) -> None:
        if event.was_dead and event.member_id == self._coordinator.member_id:
            self._reborn.set()

    def remember_renewals(self) -> None:
        """The last write of the lease, to be sent once more as one that was on its way."""
        urgent = self._coordinator.parts.urgent
        write = urgent.write

        async def noted(*writes: Write, fence: Fence | None = None) -> tuple[str, ...]:
            if any(isinstance(each, Put) and each.key == keys.LEADER for each in writes):
                self._renewal = (writes, fence)
            return await write(*writes, fence=fence)

        urgent.write = noted  # type: ignore[method-assign]

    def wait_with_rebirth(self) -> None:
        register = Registration.register

        async def late(registration: Registration) -> None:
            await ordered(self._journal, "rebirth")
            await register(registration)

        Registration.register = late  # type: ignore[method-assign]

    async def hold_tickets(self) -> list[ClaimedTicket]:
        held: list[ClaimedTicket] = []
        async with contextlib.aclosing(self._queue.claim()) as claims:
            async for ticket in claims:
                held.append(ticket)
                if len(held) == HELD:
                    return held
        raise AssertionError("there were no tickets")

    async def try_all(self, held: list[ClaimedTicket], other: str) -> None:
        member, store = self._coordinator, self._coordinator.parts.patient
        await self._try("heartbeat", member.send_signal(member.member_id, "heartbeat"))
        await self._try("signal", member.send_signal(other, "note", payload="dead"))
        await self._try(
            "signal with retry", member.send_signal_with_retry(other, "note", payload="dead")
        )
        await self._try("claim renewal", held[0].extend())
        await self._try("completion", held[1].complete("dead"))
        writes, fence = self._renewal
        await self._try("lease renewal", store.write(*writes, fence=fence))
        effect = Append("orders", "dead", b"", ttl_s=60.0)
        await self._try("order", store.write(effect, fence=fence))
        await self._try("claim at once", self._claim_one())
        await self._until_isolated()
        await self._try("new claim", self._claim_one())

    async def _until_isolated(self) -> None:
        """It knows by itself that it may not take work."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2.0 * self._coordinator.timing.heartbeat_ttl):
                while not self._coordinator.isolated:
                    await asyncio.sleep(LOOK_S)
        self._journal.note("isolated", isolated=self._coordinator.isolated)

    async def _claim_one(self) -> None:
        """Long enough for a claim that would be given; the timeout says that none was."""
        async with asyncio.timeout(3.0 * self._coordinator.timing.heartbeat_interval):
            async with contextlib.aclosing(self._queue.claim()) as claims:
                await anext(claims)

    async def _try(self, what: str, call: Awaitable[Any]) -> None:
        answer = "taken"
        try:
            await call
        except (CoordinationError, TimeoutError) as error:
            answer = type(error).__name__
        self._journal.note("tried", call=what, answer=answer)

    async def work_again(self, other: str) -> None:
        try:
            await self._work_again(other)
        except CoordinationError as error:
            self._journal.note("failed", error=repr(error))

    async def _work_again(self, other: str) -> None:
        await self._reborn.wait()
        self._journal.note("reborn", boot=self._coordinator.boot)
        await self._coordinator.send_signal_with_retry(other, "note", payload="alive")
        async for ticket in self._queue.claim():
            await ticket.complete("alive")
            self._journal.note("done", ticket=ticket.ticket_id, attempt=ticket.attempt)


def sleep_until_woken(journal: Journal, clock: WrongClock, holds: str) -> None:
    """Nothing of this process runs between the two lines."""
    journal.note("sleeps")
    begun = time.monotonic()
    os.kill(os.getpid(), signal.SIGSTOP)
    if holds == "unaware":
        clock.missed_s += time.monotonic() - begun
    journal.note("wakes")


async def main(options: dict[str, str]) -> None:
    journal = Journal(options["journal"], options["member"])
    runtime = RealRuntime(options["member"])
    runtime.clock = clock = WrongClock(0.0)
    store = make_store(options["url"], RealClock(), random.Random(), prefix=options["prefix"])
    timing = scaled(float(options["scale"]))
    queue = Queue(QUEUE, visibility_timeout=timing.dead_after / 2.0)
    coordinator = Coordinator(
        store,
        queue,
        member_id=options["member"],
        runtime=runtime,
        profile=timing,
        unsafe_timings=True,
        secret=SECRET,
    )
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with coordinator:
        sleeper = Sleeper(coordinator, queue, journal)
        sleeper.remember_renewals()
        await coordinator.ensure_coordinator(timeout_s=60.0)
        journal.note("started", boot=coordinator.boot)
        held = await sleeper.hold_tickets()
        journal.note("holds", leads=coordinator.is_coordinator)
        await ordered(journal, "sleep")
        sleeper.wait_with_rebirth()
        sleep_until_woken(journal, clock, options["holds"])
        await sleeper.try_all(held, options["other"])
        journal.note("tried all")
        again = asyncio.ensure_future(sleeper.work_again(options["other"]))
        await stop.wait()
        again.cancel()
        await asyncio.gather(again, return_exceptions=True)
    await store.close()
    await runtime.close()


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
