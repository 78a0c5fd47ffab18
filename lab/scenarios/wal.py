"""One member's ledger on a faulty disk: power cuts, kills, failed syncs, a full disk.

Writers submit commands without a pause, some of which name a blob. The promises: a command
answered `Committed`, or seen by a reader that follows the log, survives every restart; a refused
command never appears; later starts serve everything that an earlier start served; each lead has a
higher fence; the group clock never goes back; a named blob can be read; a start refuses only a
damaged log.

At the end the log is closed cleanly and one bit in its files is flipped: the next start either
refuses or has everything. A start that finds a damaged checkpoint uses the one before.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable, Iterator

from lab.mutants.wal import MUTANTS, bug, with_bug
from lab.sim.checks import Event, Probe, check
from lab.sim.faults import Faults, supervise
from lab.sim.node import State
from lab.sim.run import Scenario
from lab.sim.swarm import CLOCK, DISK, PROCESS, Fault, draw_swarm
from lab.sim.world import World
from squall.cluster.ledger.files.history_records import entries_of
from squall.cluster.ledger.group_member.group_ledger import GroupLedger
from squall.cluster.ledger.group_member.open_group_ledger import open_group_ledger
from squall.cluster.ledger.interface import (
    Digest,
    Entry,
    Fence,
    LedgerDamaged,
    LedgerFailed,
    NotPrimary,
    OutcomeUnknown,
)
from squall.cluster.ledger.replica.types import LAN, GroupId, Kind
from squall.cluster.ledger.settings import LedgerSettings, WalSettings
from squall.cluster.ledger.wal.errors import WalDamaged, WalError
from squall.cluster.ledger.wal.reader import WalReader
from squall.runtime.interfaces import Runtime
from squall.runtime.tasks import TaskRunner

NODE = "m1"
WRITERS = 5
FAULTY_S = 20
CONVERGE_S = 20.0
BLOB_SHARE = 0.05
SETTINGS = LedgerSettings(
    wal=WalSettings(segment_bytes=4096, read_bytes=4096, max_batch_bytes=2048),
    checkpoint_entries=60,
    checkpoint_interval_s=4.0,
    checkpoints_kept=2,
    apply_slice=8,
)


class Names:
    """The state machine of the scenario: stores the names of all commands by op number."""

    version = 1

    def __init__(self) -> None:
        self.rows: list[tuple[int, str]] = []

    def apply(self, entry: Entry) -> bytes:
        self.rows.append((entry.op, entry.body.decode().rstrip(".")))
        return b"%d" % len(self.rows)

    def capture(self) -> NamesAt:
        return NamesAt(list(self.rows))

    def load(self, slices: Iterable[bytes]) -> None:
        self.rows = []
        for line in b"".join(slices).decode().splitlines():
            op, _, name = line.partition(" ")
            self.rows.append((int(op), name))

    def blobs(self) -> list[Digest]:
        return [Digest(name.split("=")[1]) for _, name in self.rows if "=" in name]


class Rows(tuple[tuple[int, str], ...]):
    """A whole state; the trace shows only its last row."""

    __slots__ = ()

    def __str__(self) -> str:
        return f"{self[-1][1]} at op {self[-1][0]}" if self else "nothing"


class NamesAt:
    """A snapshot of the state for a checkpoint."""

    def __init__(self, rows: list[tuple[int, str]]) -> None:
        self._rows = rows

    def slices(self) -> Iterator[bytes]:
        for start in range(0, len(self._rows), 10):
            rows = self._rows[start : start + 10]
            yield "".join(f"{op} {name}\n" for op, name in rows).encode()


class Member:
    """One boot of the node: opens the ledger, submits commands and follows the log."""

    def __init__(self, runtime: Runtime, probe: Probe) -> None:
        self._runtime = runtime
        self._probe = probe
        self._count = itertools.count()
        self._ended = asyncio.Event()

    async def run(self) -> None:
        machine = Names()
        try:
            ledger = await open_group_ledger(
                self._runtime,
                TaskRunner(self._runtime.clock, self._runtime.random),
                machine,
                None,
                peers=(self._runtime.node,),
                timers=LAN,
                settings=SETTINGS,
                form_group=GroupId("wal"),
            )
        except LedgerDamaged as error:
            self._probe("refuses", why=str(error))
            raise
        ledger.blobs.references = machine.blobs
        try:
            await self._report_served(ledger, machine)
            ledger.on_role(self._role(ledger))
            async with asyncio.TaskGroup() as group:
                for _ in range(WRITERS):
                    group.create_task(self._write(ledger))
                group.create_task(self._follow(ledger))
                await self._ended.wait()
                raise ledger.failure or LedgerFailed("ended")
        except (Exception, asyncio.CancelledError):
            await ledger.close()
            raise

    async def _report_served(self, ledger: GroupLedger, machine: Names) -> None:
        for digest in machine.blobs()[-20:]:
            await ledger.blobs.get(digest)
        self._probe(
            "serves",
            rows=len(machine.rows),
            state=Rows(machine.rows),
            fence=tuple(_pair(ledger.fence)),
            group_ms=ledger.group_ms(),
        )

    def _role(self, ledger: GroupLedger):
        def changed(fence: Fence | None) -> None:
            if fence is not None:
                self._probe("leads", fence=tuple(_pair(fence)))
            elif ledger.failure is not None:
                self._ended.set()

        return changed

    async def _follow(self, ledger: GroupLedger) -> None:
        """Reads the log while it is written, as a ledger does to feed a lagging peer."""
        wal = ledger.durable_state.wal
        try:
            async with WalReader(wal, wal.next_lsn, follow=True) as reader:
                async for records in reader:
                    for entry in entries_of(records):
                        if entry.kind == Kind.COMMAND:
                            name = entry.body.decode().rstrip(".")
                            self._probe("followed", op=int(entry.op), name=name)
                    await asyncio.sleep(self._runtime.random.uniform(0.0, 0.05))
        except WalDamaged:
            raise
        except WalError:
            return

    async def _write(self, ledger: GroupLedger) -> None:
        draw = self._runtime.random
        while True:
            name = f"{self._runtime.boot}#{next(self._count)}"
            try:
                if draw.random() < BLOB_SHARE:
                    name += "=" + await ledger.blobs.put(draw.randbytes(draw.randrange(2000)))
                body = name.encode().ljust(draw.randrange(1, 400), b".")
                done = await ledger.submit(body)
            except OutcomeUnknown:
                self._probe("unknown", name=name)
            except (NotPrimary, OSError):
                # `put` of a blob raises the disk's own error; no command names the blob then.
                self._probe("refused", name=name)
                await asyncio.sleep(0.2)
            except LedgerFailed:
                # A log that fails while its member does not lead causes no change of role.
                self._ended.set()
                return
            else:
                self._probe("acked", op=done.op, name=name, group_ms=done.group_ms)
            if draw.random() < 0.7:
                await asyncio.sleep(draw.uniform(0.0, 0.1))


class Promises:
    """Checks that every start serves what was answered before it."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._acked: dict[int, str] = {}
        self._refused: set[str] = set()
        self._served: tuple[tuple[int, str], ...] = ()
        self._fence = (0, -1)
        self._served_ms = self._highest_ms = 0
        self.may_refuse = False
        self.refused_start = False
        self.serves = 0

    @property
    def acked(self) -> int:
        return len(self._acked)

    def observe(self, event: Event) -> None:
        fields = event.fields
        match event.name:
            case "acked":
                first = self._acked.setdefault(fields["op"], fields["name"])
                check(first == fields["name"], f"op {fields['op']} was acknowledged twice")
                check(fields["group_ms"] >= self._served_ms, "the group clock fell")
                self._highest_ms = max(self._highest_ms, fields["group_ms"])
            case "followed":
                first = self._acked.setdefault(fields["op"], fields["name"])
                check(first == fields["name"], f"op {fields['op']} was read as {fields['name']}")
            case "refused":
                self._refused.add(fields["name"])
            case "leads":
                check(fields["fence"] >= self._fence, f"leads in {fields['fence']} again")
            case "refuses":
                self.refused_start = True
                check(self.may_refuse, f"refuses to start on a sound disk: {fields['why']}")
            case "serves":
                self._serve(event)
            case _:
                pass

    def _serve(self, event: Event) -> None:
        self.serves += 1
        state: tuple[tuple[int, str], ...] = event.fields["state"]
        rows = dict(state)
        self._world.count("starts")
        for op, name in self._acked.items():
            check(rows.get(op) == name, f"op {op} was acknowledged as {name}, is {rows.get(op)}")
        check(state[: len(self._served)] == self._served, "a start serves less than one before it")
        leftovers = self._refused.intersection(rows.values())
        check(not leftovers, f"refused and still present: {sorted(leftovers)[:3]}")
        check(event.fields["fence"] > self._fence, f"serves in {event.fields['fence']} again")
        self._fence = event.fields["fence"]
        self._served = state
        self._served_ms = event.fields["group_ms"]
        check(self._served_ms >= self._highest_ms, "the group clock fell over a restart")


async def scenario(world: World) -> None:
    async def program(runtime: Runtime) -> None:
        member = Member(with_bug(runtime, world.mutant), world.probe(NODE))
        await member.run()

    promises = Promises(world)
    world.watch(promises)
    node = world.add(NODE, program, exits_on=(OSError, LedgerFailed, asyncio.CancelledError))
    allowed = (*PROCESS, *CLOCK, *DISK, Fault.SHUFFLE)
    swarm = draw_swarm(world.random("swarm"), allowed, longest_s=(0.5, 4.0), pace=3.0)
    faults = Faults(world, swarm, [NODE])
    with bug(world.mutant):
        world.start()
        await faults.run(world.parameter("seconds", FAULTY_S))
        faults.end()
        supervising = asyncio.ensure_future(supervise(world, [NODE]))
        before = promises.acked
        await world.eventually(
            lambda: promises.acked > before, within_s=CONVERGE_S, what="commands commit"
        )
        # The disk is full for a while: refused commands must leave no trace.
        node.disk.profile.capacity_bytes = node.disk.tree.used_bytes + 1000
        await asyncio.sleep(1.0)
        node.disk.profile.capacity_bytes = None
        before = promises.acked
        # A log that could not undo an append ends its node, once its pending disk calls return;
        # the next boot goes on.
        await world.eventually(
            lambda: promises.acked > before, within_s=CONVERGE_S, what="there is room again"
        )
        supervising.cancel()
        serves = promises.serves
        world.crash(NODE)
        world.start(NODE)
        await world.eventually(
            lambda: promises.serves > serves, within_s=CONVERGE_S, what="it starts again"
        )
        await world.stop(NODE)
        await world.eventually(
            lambda: node.state is State.ENDED, within_s=CONVERGE_S, what="the node ends"
        )
        draw = world.random("scenario")
        kind = draw.choice((".wal", ".wal", ".ckpt"))
        checkpoints = [path for path in node.disk.tree.names.files if path.endswith(".ckpt")]
        rotten = node.disk.rot(kind)
        promises.may_refuse = rotten is not None and (kind == ".wal" or len(checkpoints) < 2)
        serves = promises.serves
        world.start(NODE)
        await world.eventually(
            lambda: promises.serves > serves or promises.refused_start,
            within_s=CONVERGE_S,
            what="the node starts or refuses",
        )


def _pair(fence: Fence) -> tuple[int, int]:
    return fence.epoch, fence.view


SCENARIO = Scenario(
    "wal",
    "one member keeps its log on a disk that tears writes, loses data, fails and fills up",
    scenario,
    mutants=MUTANTS,
    limit_s=600.0,
)
