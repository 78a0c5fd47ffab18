"""The side of a client: the agents behind a store, and whether there are any.

A client has a mailbox of its own for the time of one command. It may come before any agent:
then it waits and says so. While it is there it looks who coordinates, because a link with a
coordinator that died is otherwise only given up by its keep-alive.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from squall.coordination.stores.interface import Store
from squall.nodes.agent.leader import find_leader
from squall.nodes.agent.network import StoreNetwork, mailbox_name
from squall.nodes.agent.opening import opened_store
from squall.nodes.agent.pace import Pace, pace_of
from squall.nodes.agent.secret_check import WrongSecret, check_secret
from squall.nodes.agent.world import World
from squall.nodes.client.errors import Unreachable
from squall.runtime.interfaces import Runtime
from squall.runtime.tasks import TaskRunner
from squall.wire.errors import WRONG_SECRET

SAY_EVERY_S = 5.0
LOOK_S = 0.25
LOOKS_PER_ROUND_TRIP = 0.4
"""On a store where each look costs, they are as far apart as its round trips ask for."""


@dataclass(frozen=True)
class StorePlace:
    """Where the agents are, and what proves that a client has their secret."""

    url: str
    prefix: str
    proofs: tuple[str, ...] = field(default=(), repr=False)
    """None for a credential, from which the cluster's secret cannot be made."""


@dataclass(frozen=True)
class Agents:
    """What a client needs of them, while `reached` lasts."""

    store: Store
    network: StoreNetwork
    world: Runtime
    pace: Pace

    @property
    def shown(self) -> str:
        return self.store.url

    async def ready(
        self, say: Callable[[str], None] = lambda _: None, within_s: float = math.inf
    ) -> None:
        """Returns when somebody coordinates; `Unreachable` if nobody does in time."""
        clock = self.world.clock
        began, said = clock.now(), -math.inf
        while True:
            try:
                await find_leader(self.store)
                return
            except ConnectionError as error:
                why = str(error)
            now = clock.now()
            if now - began >= within_s:
                raise Unreachable(
                    f"{self.shown}: {why}; start one: squall agent --store {self.shown}"
                )
            if now - said >= SAY_EVERY_S:
                said = now
                say(f"{self.shown}: {why}; waiting for one (squall agent --store ...)")
            await clock.sleep(_look_s(self.pace))


@asynccontextmanager
async def reached(place: StorePlace, runtime: Runtime, tasks: TaskRunner) -> AsyncGenerator[Agents]:
    """Opens the store and a mailbox. A wrong secret is told here, if it can be known."""
    async with opened_store(place.url, place.prefix, runtime) as store:
        await _check(store, place.proofs)
        pace = pace_of(place.url)
        network = StoreNetwork(
            store,
            own=mailbox_name(str(runtime.node), str(runtime.boot)),
            clock=runtime.clock,
            random=runtime.random,
            tasks=tasks,
            pace=pace,
            resolve=lambda _: find_leader(store),
        )
        tasks.every("coordinator watch", 4.0 * _look_s(pace), _Watch(store, network).look)
        try:
            yield Agents(store, network, World(runtime, network), pace)
        finally:
            await network.close()


async def _check(store: Store, proofs: Sequence[str]) -> None:
    try:
        await check_secret(store, proofs, shown=store.url)
    except WrongSecret:
        raise Unreachable(f"{store.url}: {WRONG_SECRET}") from None


class _Watch:
    """Gives up the links with a coordinator that another one has replaced."""

    def __init__(self, store: Store, network: StoreNetwork) -> None:
        self._store = store
        self._network = network
        self._led_by = ""

    async def look(self) -> None:
        with suppress(ConnectionError):
            led_by = await find_leader(self._store)
            if self._led_by not in ("", led_by):
                self._network.abandon(self._led_by)
            self._led_by = led_by


def _look_s(pace: Pace) -> float:
    return max(LOOK_S, LOOKS_PER_ROUND_TRIP * pace.round_trip_s if pace.flush_s else LOOK_S)
