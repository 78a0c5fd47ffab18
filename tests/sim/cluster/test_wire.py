"""The wire on the simulated network: nodes that ask each other while everything breaks.

Safety: an answer belongs to its request; a handler sees a request at most once; sequences
of one-way messages arrive in order per link. Liveness: after the faults all reach all.
The same seed gives the same trace.
"""

from __future__ import annotations

import asyncio

import pytest

from lab.sim.checks import Event, check
from lab.sim.faults import Faults
from lab.sim.run import Scenario, run_seed
from lab.sim.swarm import SURVIVABLE, draw_swarm
from lab.sim.world import World
from squall.cluster.wire.errors import NotSent, OutcomeUnknown, RemoteError
from squall.cluster.wire.links.dispatch import Handlers
from squall.cluster.wire.links.endpoint import Endpoint
from squall.cluster.wire.links.peer import Peer
from squall.cluster.wire.links.switchboard import Switchboard, make_keyring
from squall.cluster.wire.seal.secrets import Secrets
from squall.runtime.interfaces import Runtime
from squall.runtime.tasks import TaskRunner
from tests.fakes.wire import SECRET, TEST_CATALOGUE, Echo, Gate

NODES = ("a", "b", "c")
PORT = 700


class AtMostOnce:
    def __init__(self) -> None:
        self.handled: set[tuple[str, str]] = set()
        self.answered: dict[tuple[str, str], float] = {}

    def observe(self, event: Event) -> None:
        fields = event.fields
        if event.name == "handled":
            key = (event.node, fields["text"])
            check(key not in self.handled, f"{event.node} handled {fields['text']} twice")
            self.handled.add(key)
        elif event.name == "answered":
            check(fields["answer"] == fields["text"], "an answer of another request")
            check(
                (fields["by"], fields["text"]) in self.handled,
                "an answer to what was never handled",
            )
            self.answered[event.node, fields["by"]] = event.time


async def node(world: World, runtime: Runtime) -> None:
    probe = world.probe(runtime.node)
    handlers = Handlers(TEST_CATALOGUE)

    def echo(message: Echo, incoming: object) -> Echo:
        probe("handled", text=message.text)
        return message

    handlers.on(Echo, echo)
    board = Switchboard(
        runtime=runtime,
        keyring=make_keyring(runtime, Secrets.of_node(SECRET), "sim"),
        admit=Gate(),
        tasks=TaskRunner(runtime.clock, runtime.random),
        handlers=handlers,
    )
    await Endpoint(board).listen((runtime.node, PORT))
    peers = [Peer(board, (name, PORT)) for name in NODES if name != runtime.node]
    for peer in peers:
        peer.start()

    async def ask(peer: Peer) -> None:
        number = 0
        while True:
            number += 1
            text = f"{runtime.boot} {number}"
            try:
                answer = await peer.request(Echo(text), 2.0)
            except (NotSent, OutcomeUnknown, RemoteError) as error:
                probe("failed", text=text, how=type(error).__name__)
            else:
                probe("answered", text=text, answer=answer.text, by=peer.address[0])
            await runtime.clock.sleep(runtime.random.uniform(0.05, 0.5))

    await asyncio.gather(*(ask(peer) for peer in peers))


async def asking(world: World) -> None:
    checks = AtMostOnce()
    world.watch(checks)

    async def program(runtime: Runtime) -> None:
        await node(world, runtime)

    for name in NODES:
        world.add(name, program, exits_on=(OSError,))
    faults = Faults(world, draw_swarm(world.random("swarm"), SURVIVABLE), NODES, most_down=1)
    world.start()
    await faults.run(30.0)
    faults.end()
    healed = world.now
    await world.eventually(
        lambda: all(
            checks.answered.get((one, other), 0.0) > healed
            for one in NODES
            for other in NODES
            if one != other
        ),
        within_s=30.0,
        what="every node answers every other",
    )


SCENARIO = Scenario("wire", "nodes that ask each other", asking, limit_s=300.0)


@pytest.mark.parametrize("seed", range(1, 21))
def test_requests_are_handled_at_most_once_and_all_are_reached_after_the_faults(seed: int) -> None:
    outcome = run_seed(SCENARIO, seed)
    assert outcome.clean, "\n".join((outcome.failure, outcome.details, *outcome.tail[-20:]))


def test_the_same_seed_gives_the_same_trace() -> None:
    assert run_seed(SCENARIO, 5).digest == run_seed(SCENARIO, 5).digest
