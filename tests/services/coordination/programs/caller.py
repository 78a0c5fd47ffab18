"""A process that blocks for one signal, for tests that kill it.

After a restart it reads from the store what its id waited for, and continues that wait. Run as
`python -m tests.services.coordination.programs.caller '{json options}'`.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys

import msgspec

from squall.coordination import CoordinationError, Coordinator, Timing
from squall.coordination.stores.open import make_store
from squall.runtime.real.runtime import RealClock
from tests.services.coordination.programs.member import Journal, scaled

SECRET = "0123456789abcdef" * 4
WAITS_S = 1800.0


def caller_timing(scale: float, *, dies: bool) -> Timing:
    """A caller that is started again must be back before it is declared dead, also where a
    process takes seconds to start: its waits are cleaned up with it."""
    timing = scaled(scale)
    if dies:
        return timing
    dead_after = 60.0 + timing.max_warnings * timing.monitor_interval
    return msgspec.structs.replace(
        timing, heartbeat_ttl=60.0, dead_after=dead_after, retention=900.0
    )


async def main(options: dict[str, str]) -> None:
    journal = Journal(options["journal"], options["member"])
    store = make_store(options["url"], RealClock(), random.Random(), prefix=options["prefix"])
    caller = Coordinator(
        store,
        member_id=options["member"],
        profile=caller_timing(float(options["scale"]), dies=options["dies"] == "yes"),
        unsafe_timings=True,
        secret=SECRET,
        eligible=False,
    )
    async with caller:
        found = [each.correlation_id for each in await caller.signals.open_waits()]
        journal.note("started", open=found)
        (job,) = found or [options["job"]]
        waiting = asyncio.ensure_future(
            caller.block_until_signal(
                correlation_id=job, from_=options["sender"], timeout_s=WAITS_S, task_type="job"
            )
        )
        while not await caller.signals.open_waits():
            await asyncio.sleep(0.02)
        journal.note("waits", job=job)
        try:
            signal = await waiting
            journal.note("got", job=signal.correlation_id, payload=signal.payload)
        except CoordinationError as error:
            journal.note("ended", job=job, error=type(error).__name__)
    await store.close()


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
