"""A member process that sends signals at an even pace while its signing secret changes.

SIGHUP makes it read the secret again, SIGUSR1 makes it stop sending. It records what it sent,
handled and refused. Run as
`python -m tests.services.coordination.programs.talker '{json options}'`.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
from pathlib import Path

from squall.coordination import CoordinationError, Coordinator
from squall.coordination.events import SignalRejected
from squall.coordination.members import housekeeping as housekeeping
from squall.coordination.signals.member_signals import Delivery
from squall.coordination.stores.open import make_store
from squall.runtime.real.runtime import RealClock
from tests.services.coordination.programs.member import Journal, scaled

LOOK_S = 0.02


class Talker:
    def __init__(self, coordinator: Coordinator, journal: Journal, others: list[str]) -> None:
        self._coordinator = coordinator
        self._journal = journal
        self._others = others
        self._number = 0
        self.quiet = asyncio.Event()
        self._sending: set[asyncio.Task[None]] = set()

    async def talk(self, per_s: float) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while not self.quiet.is_set():
            task = asyncio.ensure_future(self._send())
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)
            due += 1.0 / per_s
            await asyncio.sleep(max(0.0, due - loop.time()))
        await asyncio.gather(*self._sending)
        self._journal.note("quiet")

    async def _send(self) -> None:
        self._number += 1
        text = f"{self._coordinator.member_id}.{os.getpid()}.{self._number}"
        try:
            await self._coordinator.send_signal(random.choice(self._others), "note", payload=text)
            self._journal.note("sent", text=text)
        except CoordinationError as error:
            self._journal.note("not_sent", text=text, error=type(error).__name__)

    def handle(self, delivery: Delivery) -> None:
        self._journal.note("handled", text=delivery.signal.payload)

    async def reread(self) -> None:
        await self._coordinator.reread_secrets()


async def main(options: dict[str, str]) -> None:
    journal = Journal(options["journal"], options["member"])
    if options["look_s"]:
        housekeeping.METRICS_INTERVAL_S = housekeeping.METRICS_INTERVAL_POLLED_S = float(
            options["look_s"]
        )
    store = make_store(options["url"], RealClock(), random.Random(), prefix=options["prefix"])
    coordinator = Coordinator(
        store,
        member_id=options["member"],
        profile=scaled(float(options["scale"])),
        unsafe_timings=True,
        secret_source=f"file:{options['secret']}",
        max_inbox=100_000,
    )
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    async with coordinator:
        talker = Talker(coordinator, journal, options["others"].split(","))
        tasks = coordinator.parts.tasks
        loop.add_signal_handler(signal.SIGHUP, lambda: tasks.start("reread", talker.reread()))
        loop.add_signal_handler(signal.SIGUSR1, talker.quiet.set)
        coordinator.on(SignalRejected, lambda event: journal.note("rejected", reason=event.reason))
        coordinator.on_signal("note", talker.handle)
        journal.note("started")
        while not Path(options["begins"]).exists():
            await asyncio.sleep(LOOK_S)
        tasks.start("talk", talker.talk(float(options["per_s"])))
        await stop.wait()
    await store.close()


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
