"""The wire through a simulated store: nodes ask a leader while everything breaks.

Safety: a handler sees a request at most once, an answer belongs to its request, and no byte
stream is ever repeated, reordered or mixed up (the wire's seals would tell). Liveness: after
the faults everybody reaches the leader, whatever its mailbox is called now.
"""

from __future__ import annotations

import asyncio
from typing import cast

import msgspec
import pytest

from lab.scenarios.coordination.store import STORE, StoreMachine, connect, draw_ways
from lab.sim.checks import Event, check
from lab.sim.faults import Faults
from lab.sim.run import Scenario, run_seed
from lab.sim.swarm import CLOCK, NETWORK, PROCESS, Fault, draw_swarm
from lab.sim.world import World
from squall.cluster.wire.counters import WireCounters
from squall.cluster.wire.errors import NotSent, OutcomeUnknown, RemoteError
from squall.cluster.wire.links.dispatch import Handlers
from squall.cluster.wire.links.endpoint import Endpoint
from squall.cluster.wire.links.peer import Peer
from squall.cluster.wire.links.switchboard import Switchboard, make_keyring
from squall.cluster.wire.seal.secrets import Secrets
from squall.runtime.interfaces import Runtime
from squall.runtime.tasks import TaskRunner
from squall.store_mode.runtime_over_store import StoreRuntime
from squall.store_mode.transport.network import LEADER, StoreNetwork, mailbox_name
from squall.store_mode.transport.tuning import REDIS_TUNING, TransportTuning
from tests.fakes.wire import SECRET, TEST_CATALOGUE, Echo, Gate

BOSS = "boss"
ASKERS = ("a", "b", "c")
FAULTS = (*PROCESS, *NETWORK, *CLOCK, Fault.SHUFFLE)
PACE = msgspec.structs.replace(
    REDIS_TUNING,
    poll_s=1.0,
    busy_poll_s=0.1,
    busy_s=1.0,
    remove_s=0.3,
    give_up_s=8.0,
    envelope_bytes=3000,
)


class AtMostOnce:
    def __init__(self) -> None:
        self.handled: set[str] = set()
        self.answered: dict[str, float] = {}

    def observe(self, event: Event) -> None:
        text = event.fields["text"]
        if event.name == "handled":
            check(text not in self.handled, f"{text} was handled twice")
            self.handled.add(text)
        elif event.name == "answered":
            check(event.fields["answer"] == text, "an answer of another request")
            check(text in self.handled, "an answer to what was never handled")
            self.answered[event.node] = event.time


class Company:
    """A boss that listens, and those who ask it; all through one store."""

    def __init__(self, world: World, machine: StoreMachine) -> None:
        self._world = world
        self._machine = machine
        self._mailbox = ""
        self.counters: list[WireCounters] = []

    async def program(self, runtime: Runtime) -> None:
        probe = self._world.probe(runtime.node)
        handlers = Handlers(TEST_CATALOGUE)

        def echo(message: Echo, incoming: object) -> Echo:
            probe("handled", text=message.text.partition(" ")[0])
            return message

        handlers.on(Echo, echo)
        board = self._board(runtime, handlers)
        if runtime.node == BOSS:
            network = cast("StoreNetwork", board.runtime.network)
            await Endpoint(board).listen((network.own, 0))
            self._mailbox = network.own
            await asyncio.get_running_loop().create_future()
        peer = Peer(board, (LEADER, 0))
        peer.start()
        number = 0
        while True:
            number += 1
            text = f"{runtime.boot}-{number}"
            padding = "x" * runtime.random.choice((0, 100, 20_000))
            try:
                answer = await peer.request(Echo(f"{text} {padding}"), 3.0)
            except (NotSent, OutcomeUnknown, RemoteError) as error:
                probe("failed", text=text, how=type(error).__name__)
            else:
                probe("answered", text=text, answer=answer.text.partition(" ")[0])
            await runtime.clock.sleep(runtime.random.uniform(0.05, 0.5))

    def _board(self, runtime: Runtime, handlers: Handlers) -> Switchboard:
        tasks = TaskRunner(runtime.clock, runtime.random)
        network = StoreNetwork(
            connect(self._machine, runtime.node),
            own=mailbox_name(runtime.node, runtime.boot),
            clock=runtime.clock,
            random=runtime.random,
            tasks=tasks,
            tuning=self._pace(),
            resolve=self._resolve,
        )
        world = cast("Runtime", StoreRuntime(runtime, network))
        board = Switchboard(
            runtime=world,
            keyring=make_keyring(world, Secrets.of_node(SECRET), "sim"),
            admit=Gate(),
            tasks=tasks,
            handlers=handlers,
            limits=PACE.wire,
        )
        self.counters.append(board.counters)
        return board

    def _pace(self) -> TransportTuning:
        if not self._machine.ways.transactions:
            return PACE
        return msgspec.structs.replace(PACE, busy_poll_s=0.0)

    async def _resolve(self, name: str) -> str:
        if not self._mailbox:
            raise ConnectionError("nobody leads")
        return self._mailbox


async def asking(world: World) -> None:
    checks = AtMostOnce()
    world.watch(checks)
    machine = StoreMachine(world, draw_ways(world.random("ways")), lambda writes, fence: None)
    company = Company(world, machine)
    world.add(STORE, machine.program)
    for name in (BOSS, *ASKERS):
        world.add(name, company.program, exits_on=(OSError,))
    everybody = (STORE, BOSS, *ASKERS)
    faults = Faults(world, draw_swarm(world.random("swarm"), FAULTS), everybody, most_down=2)
    world.start()
    await faults.run(40.0)
    faults.end()
    machine.heal([BOSS, *ASKERS])
    healed = world.now
    await world.eventually(
        lambda: all(checks.answered.get(name, 0.0) > healed for name in ASKERS),
        within_s=60.0,
        what="everybody is answered",
    )
    for counters in company.counters:
        check(not counters.bad_seal, "bytes of a stream were changed or mixed up")
        check(not counters.replay, "bytes of a stream came twice")
        check(not counters.oversized, "bytes of a stream were shifted")
    world.tally["answered"] = len(checks.handled)


SCENARIO = Scenario("store-network", "nodes that ask through a store", asking, limit_s=400.0)


@pytest.mark.parametrize("seed", range(1, 13))
def test_streams_through_a_store_stay_streams(seed: int) -> None:
    outcome = run_seed(SCENARIO, seed)
    assert outcome.clean, "\n".join((outcome.failure, outcome.details, *outcome.tail[-20:]))


def test_the_same_seed_asks_the_same() -> None:
    assert run_seed(SCENARIO, 3).digest == run_seed(SCENARIO, 3).digest
