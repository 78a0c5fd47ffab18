"""The program of a member in the coordination scenario.

While it leads, it reports that it acts, appends to a fenced journal and sends orders. All the time
it sends signals that must be acknowledged; its handler writes an effect in the same step that marks
a signal as delivered. It enqueues tickets and takes those of all members. A scheduled job is due
every second.
"""

from __future__ import annotations

import asyncio

from lab.scenarios.coordination.store import StoreMachine, connect
from lab.sim.checks import Probe
from squall.coordination.coordinator import Coordinator
from squall.coordination.election.term import Term
from squall.coordination.errors import CoordinationError, SignalError
from squall.coordination.queue.plugin import Queue
from squall.coordination.scheduler.plugin import Scheduler
from squall.coordination.scheduler.records import RunRecord
from squall.coordination.signals.member_signals import Delivery
from squall.coordination.stores.guarded_store import GuardedStore, RetrySettings
from squall.coordination.stores.interface import ABSENT, Append, Put, make_key
from squall.coordination.timing import Timing
from squall.runtime.interfaces import Runtime
from squall.runtime.log import Log, MemorySink

TIMING = Timing(
    heartbeat_interval=0.5,
    heartbeat_ttl=3.0,
    dead_after=4.5,
    monitor_interval=0.5,
    lease_ttl=2.0,
    min_epoch_duration=0.0,
    max_epoch_duration=10.0,
    cold_start_observation_window=0.5,
    cold_start_preparation_delay=0.2,
    rank_delay=0.05,
    rank_delay_cap=0.3,
    retention=60.0,
    work_interval=0.1,
)
SECRET = "0123456789abcdef" * 4
QUEUE = "work"
# Shorter than most outages, or longer.
VISIBILITY_S = (1.5, TIMING.dead_after)
# High enough that no ticket becomes a dead letter: each must be done.
ATTEMPTS = 100
TICKET_SHARE = 0.5
JOB = "tick"
JOB_EVERY_S = 1.0
ORDER_KEYS = ("", "", "ada", "bob")
LINES_KEPT = 100
STORE_TRIES = (1, 2, 4)
# In proportion to the times above: an outage is as often longer as shorter than all retries.
STORE_PAUSE_S = 0.1


class MemberProgram:
    """Runs one member until its process ends."""

    def __init__(self, runtime: Runtime, machine: StoreMachine, probe: Probe) -> None:
        self._runtime = runtime
        self._machine = machine
        self._probe = probe
        self._sent = 0
        draw, clock = runtime.random, runtime.clock
        self._queue = Queue(
            QUEUE, visibility_timeout=draw.choice(VISIBILITY_S), max_attempts=ATTEMPTS
        )
        scheduler = Scheduler()
        scheduler.every(JOB_EVERY_S, name=JOB, misfire="run_all", overlap="queue")(self._tick)
        retry = RetrySettings(attempts=draw.choice(STORE_TRIES), first_delay_s=STORE_PAUSE_S)
        self._coordinator = Coordinator(
            GuardedStore(connect(machine, runtime.node), clock, draw, retry=retry),
            self._queue,
            scheduler,
            member_id=runtime.node,
            runtime=runtime,
            profile=TIMING,
            unsafe_timings=True,
            secret=SECRET,
            log=Log(MemorySink(LINES_KEPT), runtime.clock),
            ack_timeout=1.0,
            retry_base=0.2,
            work=self._work,
        )

    async def run(self) -> None:
        async with self._coordinator:
            self._coordinator.on_signal("note", self._handle)
            self._coordinator.on_signal("order", self._obey)
            self._probe("registered", boot=self._coordinator.boot)
            self._coordinator.parts.tasks.start("tickets", self._take_tickets())
            while True:
                await self._runtime.clock.sleep(self._runtime.random.uniform(0.2, 1.0))
                if self._machine.takes_tickets and self._runtime.random.random() < TICKET_SHARE:
                    await self._enqueue()
                await self._send()

    async def _work(self, term: Term) -> None:
        self._act(term)
        await term.write(Append("journal", self._name("journal"), b"", ttl_s=3600.0, limit=10**6))
        self._act(term)
        receiver = self._other()
        try:
            await self._coordinator.send_signal(
                receiver, "order", epoch=term.epoch, allow_unknown=True
            )
        except SignalError:
            return

    def _act(self, term: Term) -> None:
        if term.valid:
            coordinator = self._coordinator
            self._probe("acts", epoch=term.epoch, boot=coordinator.boot)

    async def _send(self) -> None:
        text = self._name("note")
        self._probe("sends", text=text)
        try:
            await self._coordinator.send_signal_with_retry(
                self._other(), "note", payload={"text": text}, allow_unknown=True
            )
        except CoordinationError:
            return
        self._probe("acked", text=text)

    async def _enqueue(self) -> None:
        key = self._runtime.random.choice(ORDER_KEYS)
        try:
            ticket_id = await self._queue.enqueue(order_key=key)
        except CoordinationError:
            return
        self._probe("enqueued", ticket=ticket_id)

    async def _take_tickets(self) -> None:
        clock, draw = self._runtime.clock, self._runtime.random
        while True:
            try:
                async for ticket in self._queue.claim():
                    self._probe("takes", ticket=ticket.ticket_id, attempt=ticket.attempt)
                    # Now and then longer than a claim without renewals lasts.
                    await clock.sleep(draw.uniform(0.0, 0.2 if draw.random() < 0.9 else 3.0))
                    await ticket.complete()
                    self._probe("done", ticket=ticket.ticket_id)
            except CoordinationError:
                await clock.sleep(draw.uniform(0.1, 0.5))

    async def _tick(self, run: RunRecord) -> None:
        self._probe("runs", slot=run.slot)
        clock, draw = self._runtime.clock, self._runtime.random
        await clock.sleep(draw.uniform(0.0, 0.2 if draw.random() < 0.9 else 2.0))

    async def _handle(self, delivery: Delivery) -> None:
        signal = delivery.signal
        text = signal.payload["text"]
        await asyncio.sleep(0)
        self._probe("handles", text=text, boot=self._runtime.boot)
        key = make_key("effect", signal.signal_id)
        delivery.also(Put(key, text.encode(), expect=ABSENT, ttl_s=3600.0))

    def _obey(self, delivery: Delivery) -> None:
        known = self._coordinator.current_epoch
        boot = self._runtime.boot
        self._probe("obeys", epoch=delivery.signal.epoch, known=known, boot=boot)

    def _other(self) -> str:
        others = [each for each in self._machine.members if each != self._runtime.node]
        return self._runtime.random.choice(others)

    def _name(self, kind: str) -> str:
        self._sent += 1
        return f"{kind}.{self._runtime.boot}.{self._sent}"
