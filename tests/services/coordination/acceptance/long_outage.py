"""A store that does not answer for a moment, and for long, with two members: which one leads,
what calls cost, when the circuit opens and closes. Used by tests and, at full size, by the
acceptance.

The calls are those of the member that does not lead: nothing else in that member retries.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass

from squall.coordination import Coordinator, Timing
from squall.coordination.errors import StoreUnavailableError
from squall.coordination.store_errors import CircuitOpenError
from squall.coordination.stores.breaker import BreakerSettings, BreakerState, StoreBreaker
from squall.coordination.stores.guarded_store import GuardedStore, RetrySettings
from squall.coordination.stores.open import make_store
from squall.runtime.real.runtime import RealClock
from tests.services.coordination.lab.cutting_proxy import CuttingProxy
from tests.services.coordination.lab.places import Place

SECRET = "0123456789abcdef" * 4
BURST = 10


@dataclass(frozen=True)
class Size:
    timing: Timing
    away_s: float
    retry: RetrySettings
    breaker: BreakerSettings
    unsafe: bool = True

    @property
    def call_s(self) -> float:
        """The least that four tries take: the pauses between them, a tenth shorter."""
        return self.retry.first_delay_s * (1.0 + 2.0 + 4.0) * (1.0 - self.retry.jitter)


FULL_RETRY, FULL_BREAKER = RetrySettings(), BreakerSettings()


@dataclass
class Calls:
    """What came of them while the store was away."""

    failed: int = 0
    refused: int = 0
    probes: int = 0
    quickest_refusal_s: float = 1e9
    shortest_failure_s: float = 1e9
    fewest_tries: int = 1000
    away_s: float = 0.0


class Outage:
    """Two members, each with a proxy of its own before the store."""

    def __init__(self, place: Place, size: Size) -> None:
        self._place = place
        self._size = size
        self._stack = AsyncExitStack()
        self.proxies: list[CuttingProxy] = []
        self.members: list[Coordinator] = []
        self.stores: list[GuardedStore] = []
        self.heard: list[str] = []

    async def __aenter__(self) -> Outage:
        size = self._size
        for name in ("a", "b"):
            proxy = CuttingProxy.before(self._place.url)
            self._stack.callback(proxy.close)
            clock, source = RealClock(), random.Random()
            url, prefix = proxy.url(self._place.url), self._place.prefix
            inner = make_store(url, clock, source, prefix=prefix)
            self._stack.push_async_callback(inner.close)
            breaker = StoreBreaker(size.breaker)
            store = GuardedStore(inner, clock, source, retry=size.retry, breaker=breaker)
            member = Coordinator(
                store,
                member_id=name,
                profile=size.timing,
                unsafe_timings=size.unsafe,
                secret=SECRET,
            )
            await self._stack.enter_async_context(member)
            member.on("*", lambda event: self.heard.append(event.name))
            self.proxies.append(proxy)
            self.members.append(member)
            self.stores.append(store)
        limit_s = 60.0 + 3.0 * size.timing.failover + size.timing.cold_start_observation_window
        await self.until(self._is_led, limit_s, "one leads")
        return self

    async def __aexit__(self, *_: object) -> None:
        for proxy in self.proxies:
            proxy.join()
        await self._stack.aclose()

    def _is_led(self) -> bool:
        known = {member.current_coordinator for member in self.members}
        return any(each.is_coordinator for each in self.members) and len(known) == 1

    @property
    def leader(self) -> Coordinator:
        return next(each for each in self.members if each.is_coordinator)

    @property
    def follower(self) -> int:
        return next(n for n, each in enumerate(self.members) if not each.is_coordinator)

    async def until(self, condition: object, within_s: float, what: str) -> None:
        assert callable(condition)
        deadline = time.monotonic() + within_s
        while not condition():
            assert time.monotonic() < deadline, f"not in time: {what}"
            await asyncio.sleep(0.02)

    def take_away(self) -> None:
        for proxy in self.proxies:
            proxy.refuse()

    def bring_back(self) -> None:
        for proxy in self.proxies:
            proxy.join()

    async def short(self) -> None:
        """An outage of one interval has no effect."""
        timing, leader = self._size.timing, self.leader
        epoch = leader.current_epoch
        await asyncio.sleep(timing.heartbeat_interval)
        self.heard.clear()
        self.take_away()
        await asyncio.sleep(timing.heartbeat_interval)
        self.bring_back()
        await asyncio.sleep(timing.lease_ttl)
        assert leader.is_coordinator and leader.current_epoch == epoch
        assert not {"heartbeat:warning", "coordinator:dead", "leader:changed"} & set(self.heard)

    async def long(self) -> Calls:
        """Returns when the circuit has closed again and a member leads."""
        size, timing = self._size, self._size.timing
        number = self.follower
        store, calls = self.stores[number], Calls()
        self.heard.clear()
        self.take_away()
        began = time.monotonic()

        def is_over() -> bool:
            # A call takes as long as the machine is busy, and ten of them open the circuit.
            calls.away_s = time.monotonic() - began
            return calls.away_s >= size.away_s * (1.0 if calls.probes else 10.0)

        await self._burst(store)
        store.breaker.reset()
        await asyncio.gather(self._call(store, calls, is_over), self._join(store, calls, is_over))
        self.bring_back()
        limit_s = 30.0 + 3.0 * timing.failover
        await self.until(lambda: store.state is BreakerState.CLOSED, limit_s, "it closes")
        await self.until(self._is_led, limit_s, "one leads again")
        await store.get("some/key")
        await asyncio.sleep(timing.max_warnings * timing.monitor_interval)
        assert "coordinator:dead" not in self.heard
        return calls

    async def _join(self, store: GuardedStore, calls: Calls, is_over: Callable[[], bool]) -> None:
        """A second caller, once the circuit is open: of two there is one probe."""
        while store.state is BreakerState.CLOSED and not is_over():
            await asyncio.sleep(0.01)
        await self._call(store, calls, is_over)

    async def _burst(self, store: GuardedStore) -> None:
        """Many that fail in one moment say no more than one."""
        failed = await asyncio.gather(
            *(store.get("some/key") for _ in range(BURST)), return_exceptions=True
        )
        assert all(isinstance(each, StoreUnavailableError) for each in failed), failed
        assert store.state is BreakerState.CLOSED

    async def _call(self, store: GuardedStore, calls: Calls, is_over: Callable[[], bool]) -> None:
        while not is_over():
            begun, was_open = time.monotonic(), store.state is not BreakerState.CLOSED
            try:
                await store.get("some/key")
                raise AssertionError("nothing answers, and a call succeeds")
            except CircuitOpenError:
                calls.refused += 1
                took_s = time.monotonic() - begun
                calls.quickest_refusal_s = min(calls.quickest_refusal_s, took_s)
                await asyncio.sleep(self._size.breaker.open_s / 50.0)
            except StoreUnavailableError as error:
                took_s = time.monotonic() - begun
                calls.fewest_tries = min(calls.fewest_tries, error.attempts)
                calls.shortest_failure_s = min(calls.shortest_failure_s, took_s)
                calls.probes += was_open
                calls.failed += not was_open

    def check(self, calls: Calls) -> None:
        """Ten failures open it; from then on one probe for each time that it stayed open."""
        size = self._size
        assert calls.shortest_failure_s >= size.call_s, calls
        assert calls.fewest_tries == size.retry.attempts, calls
        assert calls.failed == size.breaker.failures_to_open, calls
        assert calls.refused > 0, calls
        assert calls.quickest_refusal_s < size.call_s / 10.0, calls
        assert calls.probes <= calls.away_s / size.breaker.open_s, calls
