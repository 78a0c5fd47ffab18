"""A receiver of signals in a process of its own that stays at one point of a delivery, so that
it can be killed exactly there.

`halts` names the point: `before` the delivered step, `amid` it (the effect is written and the
signal is not marked; only where the store has no transactions), `after` it. Without one it goes
on. Run as `python -m tests.services.coordination.programs.receiver '{json options}'`.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from squall.coordination import Coordinator
from squall.coordination.signals.member_signals import Delivery
from squall.coordination.signals.receiver import Receiver
from squall.coordination.stores.interface import ABSENT, Put, make_key
from squall.coordination.stores.open import make_store
from squall.runtime.real.runtime import RealClock
from tests.services.coordination.programs.member import Journal, scaled

SECRET = "61f2c8d09ab7e354" * 4
TYPE = "job"


def effect_key(signal_id: str) -> str:
    return make_key("effect", signal_id)


class Halts:
    """Stays for ever at the point that is asked for."""

    def __init__(self, journal: Journal, point: str) -> None:
        self._journal = journal
        self._point = point

    def install(self, receiver: Receiver) -> None:
        receiver.deliver_once = self._around(  # type: ignore[method-assign]
            receiver.deliver_once, "before", "after"
        )
        receiver.writer.write_effects = self._around(  # type: ignore[method-assign]
            receiver.writer.write_effects, "", "amid"
        )

    def _around(
        self, call: Callable[..., Awaitable[Any]], before: str, after: str
    ) -> Callable[..., Awaitable[Any]]:
        async def halting(*arguments: Any) -> Any:
            await self._at(before)
            done = await call(*arguments)
            await self._at(after)
            return done

        return halting

    async def _at(self, point: str) -> None:
        if point and point == self._point:
            self._journal.note("halts", at=point)
            await asyncio.sleep(3600.0)


async def main(options: dict[str, str]) -> None:
    journal = Journal(options["journal"], options["member"])
    store = make_store(options["url"], RealClock(), random.Random(), prefix=options["prefix"])

    async def handle(delivery: Delivery) -> None:
        signal_id = delivery.signal.signal_id
        journal.note("handled", text=delivery.signal.payload, signal=signal_id)
        body = options["boot"].encode()
        delivery.also(Put(effect_key(signal_id), body, expect=ABSENT, ttl_s=3600.0))

    coordinator = Coordinator(
        store,
        member_id=options["member"],
        profile=scaled(float(options["scale"])),
        unsafe_timings=True,
        secret=SECRET,
        eligible=False,
    )
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with coordinator:
        Halts(journal, options["halts"]).install(coordinator.signals.receiver)
        coordinator.on_signal(TYPE, handle)
        journal.note("started")
        await stop.wait()
    await store.close()


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
