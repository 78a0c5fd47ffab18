"""A client's route to the agents behind a store.

A client has its own mailbox for the duration of one command. If no agent runs yet, it prints that
and waits. It polls for the current coordinator: otherwise only the keep-alive would end a link to
a coordinator that has died.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from squall.cluster.client.errors import Unreachable
from squall.cluster.protocol.timeouts import RequestTimeouts
from squall.cluster.wire.errors import WRONG_SECRET
from squall.coordination.stores.interface import Store
from squall.runtime.interfaces import Runtime
from squall.runtime.tasks import TaskRunner
from squall.store_mode.find_coordinator import find_leader
from squall.store_mode.open_store import opened_store
from squall.store_mode.runtime_over_store import StoreRuntime
from squall.store_mode.secret_check import WrongSecret, check_secret
from squall.store_mode.transport.network import StoreNetwork, mailbox_name
from squall.store_mode.transport.tuning import TransportTuning, tuning_of

REPORT_EVERY_S = 5.0
POLL_S = 0.25
POLL_ROUND_TRIPS = 0.4
"""Poll interval in round trips, for a store that charges for each request."""


@dataclass(frozen=True)
class StoreRoute:
    """The store where the agents meet, and the proofs that a client has their secret."""

    url: str
    prefix: str
    proofs: tuple[str, ...] = field(default=(), repr=False)
    """Empty for a credential, because the cluster's secret cannot be derived from it."""

    @asynccontextmanager
    async def open(self, runtime: Runtime, tasks: TaskRunner) -> AsyncGenerator[AgentCluster]:
        """Opens the store and a mailbox. Raises `Unreachable` for a wrong secret if the store
        holds the agents' proof."""
        async with opened_store(self.url, self.prefix, runtime) as store:
            await _check(store, self.proofs)
            tuning = tuning_of(self.url)
            network = StoreNetwork(
                store,
                own=mailbox_name(str(runtime.node), str(runtime.boot)),
                clock=runtime.clock,
                random=runtime.random,
                tasks=tasks,
                tuning=tuning,
                resolve=lambda _: find_leader(store),
            )
            tasks.every(
                "coordinator watch", 4.0 * _poll_s(tuning), _LeaderWatch(store, network).poll
            )
            try:
                yield AgentCluster(store, network, StoreRuntime(runtime, network), tuning)
            finally:
                await network.close()


@dataclass(frozen=True)
class AgentCluster:
    """The agents behind an open store."""

    store: Store
    network: StoreNetwork
    runtime: Runtime
    """The client's runtime, with the network of the store."""
    tuning: TransportTuning

    @property
    def timeouts(self) -> RequestTimeouts:
        return self.tuning.request_timeouts

    @property
    def shown(self) -> str:
        return self.store.url

    async def ready(
        self, say: Callable[[str], None] = lambda _: None, within_s: float = math.inf
    ) -> None:
        """Waits until an agent coordinates; raises `Unreachable` if none does in time."""
        clock = self.runtime.clock
        began, reported_at = clock.now(), -math.inf
        while True:
            try:
                await find_leader(self.store)
                return
            except ConnectionError as error:
                why = str(error)
            now = clock.now()
            if now - began >= within_s:
                raise Unreachable(
                    f"{self.shown}: {why}; start one with: squall agent --store {self.shown}"
                )
            if now - reported_at >= REPORT_EVERY_S:
                reported_at = now
                say(f"{self.shown}: {why}; waiting for one (squall agent --store ...)")
            await clock.sleep(_poll_s(self.tuning))


async def _check(store: Store, proofs: Sequence[str]) -> None:
    try:
        await check_secret(store, proofs, shown=store.url)
    except WrongSecret:
        raise Unreachable(f"{store.url}: {WRONG_SECRET}") from None


class _LeaderWatch:
    """Abandons the links to a coordinator once another one has replaced it."""

    def __init__(self, store: Store, network: StoreNetwork) -> None:
        self._store = store
        self._network = network
        self._led_by = ""

    async def poll(self) -> None:
        with suppress(ConnectionError):
            led_by = await find_leader(self._store)
            if self._led_by not in ("", led_by):
                self._network.abandon(self._led_by)
            self._led_by = led_by


def _poll_s(tuning: TransportTuning) -> float:
    return max(POLL_S, POLL_ROUND_TRIPS * tuning.round_trip_s if tuning.flush_s else POLL_S)
