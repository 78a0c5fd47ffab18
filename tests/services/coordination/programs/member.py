"""A member in a process of its own, for tests that kill, stop and cut it off.

It writes what it does to a file, one JSON line each, stamped with the machine's monotonic
clock: acts (only while its term is valid), fenced writes, signals sent, handled and
acknowledged, elections and deaths that it told. With the option `watched` also until when it
led, and each time that it stood for election; with `profile` it has the timing of a member that
is given none, with `cold` a longer cold start; with `holds` it can be stopped between a decision
and its write; with `quiet` it sends no signals. Run as
`python -m tests.services.coordination.programs.member '{json options}'`.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import time
from typing import Any

import msgspec

from squall.coordination import CoordinationError, Coordinator, Term, Timing
from squall.coordination.election.leadership import Leadership
from squall.coordination.election.messages import Purpose, WriteLease
from squall.coordination.events import (
    ColdStartPhaseChanged,
    CoordinatorDead,
    CoordinatorDemoted,
    CoordinatorElected,
    CoordinatorPromoted,
    CoordinatorRecovered,
)
from squall.coordination.signals.member_signals import Delivery
from squall.coordination.stores.interface import ABSENT, Append, Put, make_key
from squall.coordination.stores.open import make_store
from squall.runtime.real.runtime import RealClock, RealRuntime
from tests.services.coordination.lab.held_write import EFFECTS, Effects, HeldWrites

TIMING = Timing(
    heartbeat_interval=0.4,
    heartbeat_ttl=2.4,
    dead_after=3.9,
    monitor_interval=0.5,
    lease_ttl=2.0,
    min_epoch_duration=0.0,
    max_epoch_duration=30.0,
    cold_start_observation_window=0.2,
    cold_start_preparation_delay=0.0,
    rank_delay=0.05,
    rank_delay_cap=0.3,
    retention=60.0,
    work_interval=0.1,
)
LOOK_S = 0.005


def scaled(factor: float) -> Timing:
    """For a store whose operations take long."""
    short = {
        name: getattr(TIMING, name) * factor
        for name in (
            *("heartbeat_interval", "heartbeat_ttl", "dead_after", "monitor_interval"),
            *("lease_ttl", "max_epoch_duration", "work_interval"),
        )
    }
    return msgspec.structs.replace(TIMING, **short)


def observing(timing: Timing) -> Timing:
    """With a cold start that can be seen."""
    return msgspec.structs.replace(
        timing, cold_start_observation_window=2.0, cold_start_preparation_delay=0.5
    )


class WrongClock(RealClock):
    """Off by so much; only people look at it. Its other clocks can miss a pause, as those of a
    virtual machine do that was stopped."""

    def __init__(self, offset_s: float) -> None:
        self._offset_s = offset_s
        self.missed_s = 0.0

    def now(self) -> float:
        return super().now() - self.missed_s

    def boot_time(self) -> float:
        return super().boot_time() - self.missed_s

    def kernel_boot(self) -> str:
        return ""

    def wall(self) -> float:
        return super().wall() + self._offset_s


class Journal:
    def __init__(self, path: str, member: str) -> None:
        self.path = path
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._member = member
        self._boot = f"{member}.{os.getpid()}"

    def note_acts(self, term: Term) -> None:
        """Stamped before the check: the process may stand still after it."""
        at = time.monotonic()
        if term.valid:
            self.note("acts", at=at, epoch=term.epoch)

    def note(self, what: str, **fields: object) -> None:
        line = {"at": time.monotonic(), "what": what, "member": self._member, "boot": self._boot}
        os.write(self._file, json.dumps(line | fields).encode() + b"\n")


def note_standing(journal: Journal) -> None:
    """Before the request leaves: the lease that it may get does not exist yet."""
    write = Leadership._write  # pyright: ignore[reportPrivateUsage]

    async def noted(self: Leadership, request: WriteLease) -> None:
        if request.purpose is Purpose.STAND:
            journal.note("stands", epoch=request.lease.epoch)
        await write(self, request)

    Leadership._write = noted  # pyright: ignore[reportPrivateUsage]


async def note_leading(journal: Journal, coordinator: Coordinator) -> None:
    """Each time that it led, with the last moment at which it said so."""
    while True:
        led_at, epoch = 0.0, 0
        # The clock is read first: the process may stand still between the two.
        while (now := time.monotonic()) and coordinator.is_coordinator:
            led_at, epoch = now, coordinator.current_epoch
            await asyncio.sleep(LOOK_S)
        if led_at:
            journal.note("led", until=led_at, epoch=epoch)
        await asyncio.sleep(LOOK_S)


def note_events(journal: Journal, coordinator: Coordinator) -> None:
    coordinator.on(
        CoordinatorDead,
        lambda event: journal.note("dead", death=event.death_id, dead=event.member_id),
    )
    coordinator.on(
        CoordinatorElected,
        lambda event: journal.note("elected", worker=event.member_id, epoch=event.epoch),
    )
    coordinator.on(CoordinatorPromoted, lambda event: journal.note("promoted", epoch=event.epoch))
    coordinator.on(
        CoordinatorDemoted,
        lambda event: journal.note("demoted", epoch=event.epoch, reason=event.reason),
    )
    coordinator.on(
        ColdStartPhaseChanged,
        lambda event: journal.note("phase", phase=event.phase, took=event.duration),
    )
    coordinator.on(
        CoordinatorRecovered,
        lambda event: journal.note(
            "recovered",
            who=event.member_id,
            was_dead=event.was_dead,
            boot=coordinator.boot,
        ),
    )


async def note_ready(journal: Journal, coordinator: Coordinator) -> None:
    while coordinator.phase != "ready":
        await asyncio.sleep(LOOK_S)
    journal.note("ready")


def pace(options: dict[str, str]) -> dict[str, Any]:
    if options.get("profile") == "default":
        return {}
    timing = scaled(float(options["scale"]))
    if options.get("cold"):
        timing = observing(timing)
    return {"profile": timing, "unsafe_timings": True}


async def main(options: dict[str, str]) -> None:
    member, others = options["member"], options["others"].split(",")
    journal = Journal(options["journal"], member)
    runtime = RealRuntime(member)
    runtime.clock = clock = WrongClock(float(options.get("offset", "0")))
    store = make_store(options["url"], RealClock(), random.Random(), prefix=options["prefix"])
    holds = options.get("holds", "")
    if holds:
        HeldWrites(journal, clock if holds == "unaware" else None).install(store)
    effects = Effects(store)
    number = 0

    def name() -> str:
        nonlocal number
        number += 1
        return f"{member}.{os.getpid()}.{number}"

    async def work(term: Term) -> None:
        journal.note_acts(term)
        stream, effect = "journal", term.epoch
        if holds:
            stream, effect = EFFECTS, await effects.next()
        body, begun = str(effect).encode(), time.monotonic()
        await term.write(Append(stream, name(), body, ttl_s=3600.0, limit=100_000))
        journal.note("wrote", epoch=term.epoch, begun=begun)

    async def handle(delivery: Delivery) -> None:
        journal.note("handled", text=delivery.signal.payload)
        key = make_key("effect", delivery.signal.signal_id)
        delivery.also(Put(key, b"1", expect=ABSENT, ttl_s=3600.0))

    coordinator = Coordinator(
        store,
        member_id=member,
        runtime=runtime,
        secret="0123456789abcdef" * 4,
        ack_timeout=1.0,
        retry_base=0.2,
        work=work,
        **pace(options),
    )
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    if options.get("watched"):
        note_standing(journal)
    async with coordinator:
        journal.note("started", boot=coordinator.boot)
        if options.get("watched"):
            coordinator.parts.tasks.start("watched", note_leading(journal, coordinator))
        coordinator.on_signal("note", handle)
        note_events(journal, coordinator)
        coordinator.parts.tasks.start("ready", note_ready(journal, coordinator))
        if options.get("quiet"):
            await stop.wait()
        while not stop.is_set():
            text = name()
            try:
                await coordinator.send_signal_with_retry(
                    random.choice(others), "note", payload=text, allow_unknown=True
                )
                journal.note("acked", text=text)
            except CoordinationError as error:
                journal.note("not_acked", text=text, error=type(error).__name__)
            await asyncio.sleep(0.2)
    await store.close()
    await runtime.close()
    journal.note("left")


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
