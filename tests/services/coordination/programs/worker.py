"""A worker of a queue, of a schedule and of expiry in a process of its own, for tests that
kill it. With the option `only`, of the queue alone.

It writes down what it took, what the store accepted as done, and each run of the job. Run as
`python -m tests.services.coordination.programs.worker '{json options}'`.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import sys

from squall.coordination import (
    CoordinationError,
    Coordinator,
    Queue,
    RunRecord,
    Scheduler,
    Term,
    Ttl,
)
from squall.coordination.stores.open import make_store
from squall.runtime.real.runtime import RealClock
from tests.services.coordination.programs.member import LOOK_S, Journal, scaled

SECRET = "d02746e8fe001fc518d7ee0ec726c0a4fc469d42ee7aa55dddb1676f7baedc1f"
QUEUE = "work"
EVERY_S = 0.5
VISIBILITY_S = 1.5
SWEEP_S = 1.0


def expiry(scale: float) -> Ttl:
    """Records that say themselves until when they hold."""
    ttl = Ttl(ttl_interval=SWEEP_S * scale)
    ttl.register("session", expires_field="until")
    return ttl


async def note_epoch(journal: Journal, coordinator: Coordinator) -> None:
    """Once it knows of a leader."""
    while not coordinator.current_epoch:
        await asyncio.sleep(LOOK_S)
    journal.note("knows", epoch=coordinator.current_epoch)


async def main(options: dict[str, str]) -> None:
    scale = float(options["scale"])
    journal = Journal(options["journal"], options["member"])
    store = make_store(options["url"], RealClock(), random.Random(), prefix=options["prefix"])
    queue = Queue(QUEUE, visibility_timeout=VISIBILITY_S * scale, retry_base=0.1)
    scheduler = Scheduler()

    @scheduler.every(EVERY_S * scale, name="tick")
    async def tick(run: RunRecord) -> None:
        journal.note("ran", slot=run.slot, due=run.due, epoch=run.epoch)

    async def lead(term: Term) -> None:
        journal.note_acts(term)

    async def work() -> None:
        while True:
            try:
                await take_all()
            except CoordinationError as error:
                # The store is away; what was held is taken again, by this one or another.
                journal.note("interrupted", error=type(error).__name__)
                await asyncio.sleep(0.2)

    async def take_all() -> None:
        async for ticket in queue.claim():
            journal.note("took", ticket=ticket.ticket_id, attempt=ticket.attempt)
            await asyncio.sleep(random.uniform(0.0, 0.04))
            try:
                await ticket.complete(options["member"])
                journal.note("done", ticket=ticket.ticket_id, number=ticket.payload)
            except CoordinationError as error:
                journal.note("refused", ticket=ticket.ticket_id, error=type(error).__name__)

    others = () if options.get("only") == "queue" else (scheduler, expiry(scale))
    coordinator = Coordinator(
        store,
        queue,
        *others,
        member_id=options["member"],
        profile=scaled(scale),
        unsafe_timings=True,
        secret=SECRET,
        work=lead,
    )
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with coordinator:
        journal.note("started")
        coordinator.parts.tasks.start("knows", note_epoch(journal, coordinator))
        workers = [asyncio.ensure_future(work()) for _ in range(2)]
        await stop.wait()
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
    await store.close()


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
