"""A log in a store, with several nodes that lead it at the same time.

The scenario hands out terms carelessly: they overlap, and epochs sometimes fall. So every promise
must hold by the slots alone. There is one history; a command answered `Committed` is in it, at
that place and once; a refused command is not; every lead has a higher fence; the group clock
never goes back, neither in the log nor from one lead to the next; a confirmed leader was not
superseded when it asked; a strong read sees everything committed before it; a leader that stepped
down writes nothing more; a named blob can be read. The store may lose all its data: then the old
log ends, a new one begins, and the promises hold for each.
"""

from __future__ import annotations

import asyncio
import itertools

from lab.mutants.store_log import MUTANTS, mutated
from lab.scenarios.coordination.store import (
    STORE,
    SimStore,
    StoreMachine,
    WorldClock,
    draw_ways,
)
from lab.scenarios.store_log.checks import SlotChecks, StoreLogPromises
from lab.scenarios.wal import Names, Rows
from lab.sim.checks import Probe, check
from lab.sim.faults import Faults
from lab.sim.run import Scenario
from lab.sim.swarm import CLOCK, NETWORK, PROCESS, Fault, draw_swarm
from lab.sim.world import World
from squall.cluster.ledger.interface import (
    Entry,
    LedgerFailed,
    NotPrimary,
    OutcomeUnknown,
    ReadLevel,
)
from squall.coordination.stores.guarded_store import GuardedStore, RetrySettings
from squall.coordination.stores.interface import Fence, Put, Write, kind_of
from squall.coordination.stores.memory.store import MemoryStore
from squall.runtime.backoff import Backoff
from squall.runtime.interfaces import Clock, Runtime
from squall.runtime.tasks import TaskRunner
from squall.store_mode.ledger.layout import StoreLogSettings
from squall.store_mode.ledger.open_store_ledger import open_store_ledger
from squall.store_mode.ledger.store_ledger import TERM_ENDED, StoreLedger
from squall.store_mode.ledger.tail import LogLost, Superseded

FAULTY_S = 30
CONVERGE_S = 60.0
WRITERS = 3
BLOB_SHARE = 0.05
FAULTS = (*PROCESS, *NETWORK, *CLOCK, Fault.SHUFFLE)
SETTINGS = StoreLogSettings(
    slot_bytes=2048,
    slot_entries=4,
    unknown_after_s=1.5,
    retry=Backoff(0.2, factor=1.0),
    head_check_interval_s=1.0,
    checkpoint_slots=8,
    checkpoint_interval_s=3.0,
    part_bytes=600,
    trust_s=1.2,
    retain_s=2.6,
    read_at_once=3,
    apply_slice=2,
    blob_keep_s=8.0,
    collect_every_s=2.0,
)


class CarelessTerm:
    """A right to lead for a while that does not exclude other leaders."""

    def __init__(self, epoch: int, clock: Clock, lasts_s: float) -> None:
        self.epoch = epoch
        self._clock = clock
        self._until = clock.boot_time() + lasts_s

    @property
    def valid(self) -> bool:
        return self._clock.boot_time() < self._until


class WatchedStore(SimStore):
    """Fails the run if a ledger that has ended still sends a slot."""

    def __init__(self, machine: StoreMachine, node: str) -> None:
        super().__init__(machine, node)
        self.ledger: StoreLedger | None = None

    async def write(self, *writes: Write, fence: Fence | None = None) -> tuple[str, ...]:
        ledger = self.ledger
        if ledger is not None and ledger.failure is not None:
            slots = [
                each for each in writes if isinstance(each, Put) and kind_of(each.key) == "log"
            ]
            check(not slots, "a slot was sent by a leader that is over")
        return await super().write(*writes, fence=fence)


class Leader:
    """One boot of a node, which leads now and then."""

    def __init__(
        self, runtime: Runtime, machine: StoreMachine, probe: Probe, epochs: itertools.count[int]
    ) -> None:
        self._runtime = runtime
        self._machine = machine
        self._probe = probe
        self._epochs = epochs
        self._count = itertools.count()

    async def run(self) -> None:
        draw = self._runtime.random
        while True:
            await self._runtime.clock.sleep(draw.uniform(0.0, 5.0))
            await self._lead()

    async def _lead(self) -> None:
        runtime, draw = self._runtime, self._runtime.random
        epoch = max(1, next(self._epochs) - (draw.randrange(3) if draw.random() < 0.1 else 0))
        lasts_s = draw.uniform(1.0, 12.0) if draw.random() < 0.7 else 40.0
        term = CarelessTerm(epoch, runtime.clock, lasts_s)
        watched = WatchedStore(self._machine, runtime.node)
        retry = RetrySettings(attempts=draw.choice((1, 3)), first_delay_s=0.2)
        store = GuardedStore(watched, runtime.clock, draw, retry=retry)
        tasks = TaskRunner(runtime.clock, draw)
        names = Names()
        try:
            ledger = await open_store_ledger(
                runtime,
                tasks,
                names,
                store,
                term=term,
                settings=SETTINGS,
                references=names.blobs,
            )
        except LedgerFailed as error:
            await tasks.shutdown(1.0)
            check(str(error) == TERM_ENDED, f"a sound log is refused: {error}")
            return
        watched.ledger = ledger
        try:
            await self._serve(ledger, names)
        finally:
            await ledger.close()
            await tasks.shutdown(1.0)

    async def _serve(self, ledger: StoreLedger, names: Names) -> None:
        over = asyncio.Event()
        log, slot = ledger.group, ledger.parts.tail.next - 1
        self._probe(
            "serves",
            log=log,
            slot=slot,
            state=Rows(names.rows),
            applied=int(ledger.applied),
            fence=(ledger.fence.epoch, ledger.fence.view),
            group_ms=int(ledger.group_ms()),
        )
        ledger.on_role(lambda fence: over.set() if fence is None else None)
        ledger.on_applied(lambda entry, result: self._applied(ledger, entry))
        async with asyncio.TaskGroup() as group:
            for number in range(WRITERS):
                group.create_task(self._write(ledger, f"{number}"))
            group.create_task(self._ask(ledger, slot))
            group.create_task(self._read_blobs(ledger, names))
            await over.wait()
        failure = ledger.failure
        if isinstance(failure, LogLost):
            self._probe("lost", log=log)
        elif isinstance(failure, Superseded):
            self._probe("superseded", log=log)
        else:
            check(str(failure) == TERM_ENDED, f"a leader ends without cause: {failure}")

    def _applied(self, ledger: StoreLedger, entry: Entry) -> None:
        name = entry.body.decode().rstrip(".")
        self._probe(
            "applied",
            log=ledger.group,
            op=int(entry.op),
            name=name,
            group_ms=int(entry.group_ms),
            over=ledger.failure is not None,
        )

    async def _write(self, ledger: StoreLedger, writer: str) -> None:
        draw = self._runtime.random
        while ledger.failure is None:
            name = f"{self._runtime.boot}#{next(self._count)}"
            try:
                if draw.random() < BLOB_SHARE:
                    name += "=" + await ledger.blobs.put(draw.randbytes(draw.randrange(2000)))
                done = await ledger.submit(name.encode().ljust(draw.randrange(1, 600), b"."))
            except OutcomeUnknown:
                self._probe("unknown", log=ledger.group, name=name)
            except NotPrimary:
                self._probe("refused", log=ledger.group, name=name)
                await asyncio.sleep(0.2)
            except (LedgerFailed, OSError):
                await asyncio.sleep(0.2)
            else:
                self._probe(
                    "acked",
                    log=ledger.group,
                    op=int(done.op),
                    name=name,
                    group_ms=int(done.group_ms),
                )
            if draw.random() < 0.7:
                await asyncio.sleep(draw.uniform(0.0, 0.3))

    async def _ask(self, ledger: StoreLedger, slot: int) -> None:
        draw = self._runtime.random
        while ledger.failure is None:
            await asyncio.sleep(draw.uniform(0.0, 0.4))
            key = f"{self._runtime.boot}?{next(self._count)}"
            self._probe("asks", key=key, log=ledger.group)
            try:
                if draw.random() < 0.5:
                    await ledger.confirm()
                    self._probe("confirmed", key=key, log=ledger.group, slot=slot)
                else:
                    op = await ledger.read(ReadLevel.STRONG)
                    self._probe("reads", key=key, log=ledger.group, op=int(op))
            except (NotPrimary, LedgerFailed):
                continue

    async def _read_blobs(self, ledger: StoreLedger, names: Names) -> None:
        """Reads the blobs that the state names; they must exist unless the store lost its
        data."""
        digests = names.blobs()[-5:]
        for digest in digests:
            try:
                await ledger.blobs.get(digest)
            except OSError:
                continue
            except KeyError:
                self._probe("blob_missing", log=ledger.group, digest=str(digest))


async def lose_all(world: World, machine: StoreMachine, slot_checks: SlotChecks) -> None:
    """Empties the store once, in some seeds."""
    draw = world.random("loss")
    if draw.random() < 0.7:
        return
    await asyncio.sleep(draw.uniform(5.0, FAULTY_S))
    world.trace.note(STORE, "loses everything")
    world.count("losses")
    machine.memory = MemoryStore(WorldClock(world, 1.0))
    slot_checks.lost()


async def hunt(world: World, promises: StoreLogPromises) -> None:
    """Pauses a leader, whose term continues, until others have written far beyond its last slot.
    Random faults rarely do this."""
    draw = world.random("hunt")
    pause_s = draw.choice((3.0, 6.0, 1000.0))
    while True:
        await asyncio.sleep(draw.expovariate(1.0 / pause_s))
        name = promises.last_leader
        if name and world.nodes[name].runs:
            world.pause(name)
            await asyncio.sleep(draw.uniform(1.0, 15.0))
            world.resume(name)


async def outages(world: World) -> None:
    draw = world.random("outages")
    while True:
        await asyncio.sleep(draw.expovariate(1.0 / 12.0))
        if world.nodes[STORE].runs:
            world.pause(STORE)
            await asyncio.sleep(draw.uniform(0.1, 4.0))
            world.resume(STORE)


async def scenario(world: World) -> None:
    with mutated(world.mutant):
        await _scenario(world)


async def _scenario(world: World) -> None:
    draw = world.random("scenario")
    names = [f"a{number}" for number in range(draw.choice((2, 3, 3, 4)))]
    promises = StoreLogPromises(world)
    slot_checks = SlotChecks(world, promises)
    machine = StoreMachine(world, draw_ways(world.random("ways")), slot_checks.wrote)
    slot_checks.transactions = machine.ways.transactions
    epochs = itertools.count(1)
    world.watch(promises)

    async def program(runtime: Runtime) -> None:
        await Leader(runtime, machine, world.probe(runtime.node), epochs).run()

    world.add(STORE, machine.program)
    for name in names:
        world.add(name, program)
    swarm = draw_swarm(world.random("swarm"), FAULTS, longest_s=(2.0, 12.0))
    faults = Faults(world, swarm, names)
    world.start()
    trouble = [
        asyncio.ensure_future(outages(world)),
        asyncio.ensure_future(hunt(world, promises)),
        asyncio.ensure_future(lose_all(world, machine, slot_checks)),
    ]
    await faults.run(world.parameter("seconds", FAULTY_S))
    for each in trouble:
        each.cancel()
    for name in names:
        world.resume(name)
    machine.heal(names)
    world.resume(STORE)
    faults.end()
    serves, acked = promises.serves, promises.acked
    await world.eventually(
        lambda: promises.serves > serves + 2 and promises.acked > acked + 10,
        within_s=CONVERGE_S,
        what="leaders commit again",
    )


SCENARIO = Scenario(
    "store-log",
    "several leaders at once write one log in a store that loses replies and data",
    scenario,
    mutants=MUTANTS,
    limit_s=600.0,
)
