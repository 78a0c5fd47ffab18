"""A store with retries and a circuit breaker.

Each operation has four tries, about 1, 2 and 4 s apart, none later than `begin_within_s`, and then
fails with `StoreUnavailableError`. Writes get their tokens before the first try, so that the repeat
of a write that took effect is a success and not a conflict. Ten failed operations in a row open the
circuit. An operation that finds the circuit open between two tries gives up.

A try that used up its time limit, while the store answered no other call either, opens the circuit
and is not repeated: callers of a store that hangs fail after one time limit, however many they are.
If the store answered another call meanwhile, only the connection was broken: the try is repeated.

`urgent` is the same store for heartbeats and renewals: one try, never held back by the circuit, and
a success closes it. If the circuit held them back, a short outage would become the death of all
members.

Answers, conflicts among them, are never repeated. There is one exception: a check may fail because
its record was rewritten by its own writer and still means the same. `rebinds` asks that writer for
the new version.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import msgspec

from squall.coordination.errors import ConfigurationError
from squall.coordination.metrics import CoordinationMetrics
from squall.coordination.store_errors import (
    CircuitOpenError,
    CoordinationError,
    StoreTimeoutError,
    StoreUnavailableError,
    VersionConflict,
)
from squall.coordination.stores.breaker import BreakerState, StoreBreaker
from squall.coordination.stores.interface import (
    Appended,
    Capabilities,
    Check,
    Claim,
    Depth,
    Fence,
    Item,
    Page,
    PushStore,
    Put,
    Record,
    Store,
    Watch,
    Write,
    WriteAndGetStore,
    check_key,
    check_own_name,
    check_own_writes,
)
from squall.runtime.backoff import Backoff, Retries
from squall.runtime.interfaces import Clock
from squall.runtime.log import Log
from squall.runtime.metrics import Histogram

T = TypeVar("T")
TOKEN_BYTES = 12
Rebind = Callable[[Check], Awaitable[Check | None]]


class RetrySettings(msgspec.Struct, frozen=True, kw_only=True):
    attempts: int = 4
    first_delay_s: float = 1.0
    begin_within_s: float = 10.0
    """No try begins later than this after the first. So an operation lasts at most this long and
    one time limit of the store. Longer than the three pauses together."""
    jitter: float = 0.1
    """By which share a delay varies up and down. Without it, all members that failed together
    would try again together."""

    def __post_init__(self) -> None:
        if not 0.0 < self.jitter < 1.0:
            raise ConfigurationError(
                f"jitter is {self.jitter!r}: it must be above 0 and below 1, else all members retry"
                " at the same moment; use jitter=0.1"
            )

    @property
    def backoff(self) -> Backoff:
        around = Backoff.around(self.first_delay_s, self.jitter, tries=self.attempts)
        return replace(around, deadline_s=self.begin_within_s)


class GuardedStore:
    """Wraps one store. All members of a process share it, and with it the circuit breaker."""

    def __init__(
        self,
        inner: Store,
        clock: Clock,
        source: random.Random,
        *,
        retry: RetrySettings | None = None,
        breaker: StoreBreaker | None = None,
        metrics: CoordinationMetrics | None = None,
        log: Log | None = None,
        is_urgent: bool = False,
    ) -> None:
        self._inner = inner
        self.breaker = breaker or StoreBreaker()
        self._retry = retry or RetrySettings()
        self._backoff = self._retry.backoff
        self._clock = clock
        self._random = source
        self._metrics = metrics
        self._log = log
        self._is_urgent = is_urgent
        self._is_for_application = False
        self._paired_store = inner if isinstance(inner, WriteAndGetStore) else None
        self._push_store = inner if isinstance(inner, PushStore) else None
        self._durations: dict[str, Histogram] = {}
        # By key, a function that returns the check that holds now in place of one that failed.
        self.rebinds: dict[str, Rebind] = {}
        if metrics is not None:
            metrics.gauge(metrics.families.breaker_open).follow(lambda: float(self.state))

    @property
    def inner(self) -> Store:
        """The store without retries and without protection: for the library only."""
        if self._is_for_application:
            raise ConfigurationError(
                "inner is refused: the store of an application protects the records of the library;"
                " use coordinator.store itself"
            )
        return self._inner

    @property
    def urgent(self) -> GuardedStore:
        """This store for heartbeats and renewals only."""
        return GuardedStore(
            self.inner,
            self._clock,
            self._random,
            retry=msgspec.structs.replace(self._retry, attempts=1),
            breaker=self.breaker,
            metrics=self._metrics,
            log=self._log,
            is_urgent=True,
        )

    @property
    def for_application(self) -> GuardedStore:
        """This store for records of the application: it refuses writes to those of the library."""
        view = copy.copy(self)
        view._is_for_application = True
        return view

    @property
    def state(self) -> BreakerState:
        return self.breaker.state(self._clock.now())

    @property
    def url(self) -> str:
        return self._inner.url

    @property
    def capabilities(self) -> Capabilities:
        return self._inner.capabilities

    async def now_ms(self) -> int:
        return await self._call("now", self._inner.now_ms)

    async def get(self, *keys: str) -> tuple[Record | None, ...]:
        for key in keys:
            check_key(key)
        return await self._call("get", self._inner.get, *keys)

    async def write(self, *writes: Write, fence: Fence | None = None) -> tuple[str, ...]:
        if self._is_for_application:
            check_own_writes(writes)
        named = list(map(self._with_token, writes))
        try:
            return await self._call("write", partial(self._inner.write, *named, fence=fence))
        except VersionConflict as conflict:
            bound = [
                await self._rebound(each, conflict) if isinstance(each, Check) else each
                for each in named
            ]
            if bound == named:
                raise
        return await self._call("write", partial(self._inner.write, *bound, fence=fence))

    async def write_and_get(
        self, writes: Sequence[Write], keys: Sequence[str]
    ) -> tuple[tuple[str, ...], tuple[Record | None, ...]]:
        """Writes and then reads, in one round trip where the store can."""
        paired_store = self._paired_store
        if paired_store is None or not keys:
            versions = await self.write(*writes)
            return versions, (await self.get(*keys) if keys else ())
        if self._is_for_application:
            check_own_writes(writes)
        named = list(map(self._with_token, writes))
        return await self._call("write", paired_store.write_and_get, named, keys)

    async def list(self, kind: str, *, idle_ms: int = 0, after: str = "", limit: int = 100) -> Page:
        page = partial(self._inner.list, kind, idle_ms=idle_ms, after=after, limit=limit)
        return await self._call("list", page)

    async def sweep(self, kind: str, *, limit: int = 100, idle_ms: int = 0) -> int:
        swept = partial(self._inner.sweep, kind, limit=limit, idle_ms=idle_ms)
        return await self._call("sweep", swept)

    async def count(self) -> Mapping[str, int]:
        return await self._call("count", self._inner.count)

    async def read(self, stream: str, *, after: str = "", limit: int = 100) -> Sequence[Item]:
        return await self._call("read", partial(self._inner.read, stream, after=after, limit=limit))

    async def take(
        self,
        stream: str,
        owner: str,
        *,
        lease_s: float,
        limit: int = 1,
        request: str = "",
        provided: Check | None = None,
    ) -> Sequence[Claim]:
        if self._is_for_application:
            check_own_name(stream)
        call = partial(self._inner.take, stream, owner, lease_s=lease_s, limit=limit)
        named = request or self._token()
        try:
            return await self._call("take", partial(call, request=named, provided=provided))
        except VersionConflict as conflict:
            bound = None if provided is None else await self._rebound(provided, conflict)
            if bound == provided:
                raise
        return await self._call("take", partial(call, request=named, provided=bound))

    async def depth(self, stream: str) -> Depth:
        return await self._call("depth", self._inner.depth, stream)

    async def wait(self, *watches: Watch, timeout_s: float) -> frozenset[Watch]:
        """Waits. After an outage the wait continues with the time that is left."""
        deadline = self._clock.now() + timeout_s

        async def rest() -> frozenset[Watch]:
            left_s = max(0.0, deadline - self._clock.now())
            return await self._inner.wait(*watches, timeout_s=left_s)

        return await self._call("wait", rest)

    async def listen(self, stream: str, *, after: str, timeout_s: float) -> Sequence[Item]:
        """Waits for items after the cursor. Returns the next ones in order if the store pushed
        them; if it returns none, call `read`."""
        push_store = self._push_store
        if push_store is None:
            await self.wait(Appended(stream, after), timeout_s=timeout_s)
            return ()
        deadline = self._clock.now() + timeout_s

        async def rest() -> Sequence[Item]:
            left_s = max(0.0, deadline - self._clock.now())
            return await push_store.listen(stream, after=after, timeout_s=left_s)

        return await self._call("wait", rest)

    async def probe(self) -> None:
        await self._inner.probe()

    async def close(self) -> None:
        await self._inner.close()

    async def _call(self, operation: str, call: Callable[..., Awaitable[T]], *arguments: Any) -> T:
        if not self._is_urgent and not self.breaker.admit(self._clock.now()):
            raise CircuitOpenError(
                f"{self.url}: not tried, because the last"
                f" {self.breaker.unanswered} calls got no answer"
            )
        if self.breaker.opened_at is not None and not self._is_urgent and self._log is not None:
            self._log.info("store_circuit_half_open", operation=operation, store=self.url)
        retries = Retries(self._backoff, self._random.uniform)
        first_begun = self._clock.now()
        while True:
            begun, answers = self._clock.now(), self.breaker.answers
            try:
                result = await call(*arguments)
            except StoreUnavailableError as error:
                if isinstance(error, StoreTimeoutError) and answers == self.breaker.answers:
                    self._note_hang(operation, error)
                # A wait is long by itself, and has a limit of its own.
                elapsed_s = 0.0 if operation == "wait" else self._clock.now() - first_begun
                await self._clock.sleep(self._delay_after(operation, retries, error, elapsed_s))
                # Other callers found out meanwhile that there is no answer.
                self._raise_if_open(retries.failures, error)
            except CoordinationError:
                # A refusal is an answer: the store is there.
                self._answered(operation, begun)
                raise
            else:
                self._answered(operation, begun)
                return result

    def _answered(self, operation: str, begun: float) -> None:
        if operation != "now":
            # A store may answer `now` from its own clock, which proves nothing.
            if self.breaker.opened_at is not None and self._log is not None:
                self._log.info("store_circuit_closed", store=self.url)
            self.breaker.succeeded()
        if self._metrics is not None and operation != "wait":
            known = self._durations.get(operation)
            if known is None:
                family = self._metrics.families.store_s
                known = self._durations[operation] = self._metrics.histogram(family, operation)
            known.observe(self._clock.now() - begun)

    def _delay_after(
        self, operation: str, retries: Retries, error: StoreUnavailableError, elapsed_s: float
    ) -> float:
        """Counts a failed try and returns the pause before the next one; raises after the last."""
        metrics, attempts = self._metrics, self._retry.attempts
        if metrics is not None:
            metrics.counter(metrics.families.store_errors, operation).add()
        delay_s = retries.next_delay_s(elapsed_s)
        self._raise_if_open(retries.failures, error)
        if delay_s is None:
            self._gave_up(operation, error)
            if attempts == 1:
                raise error
            tries = retries.failures
            raise StoreUnavailableError(f"{error} ({_tries(tries)})", attempts=tries) from error
        if self._log is not None:
            self._log.warning(
                "store_retry",
                operation=operation,
                attempt=f"{retries.failures}/{attempts}",
                delay_s=round(delay_s, 2),
                error=str(error),
            )
        return delay_s

    def _raise_if_open(self, tries: int, error: StoreUnavailableError) -> None:
        if not self._is_urgent and self.state is BreakerState.OPEN:
            text = f"{error} ({_tries(tries)}; the circuit is open)"
            raise StoreUnavailableError(text, attempts=tries) from error

    def _note_hang(self, operation: str, error: StoreTimeoutError) -> None:
        # A wait may be long, and a heartbeat must not open the circuit.
        if self._is_urgent or operation == "wait":
            return
        was_open = self.breaker.opened_at is not None
        self.breaker.hung(self._clock.now())
        self._log_opening(operation, error, was_open)

    def _gave_up(self, operation: str, error: StoreUnavailableError) -> None:
        if self._is_urgent:
            # Heartbeats repeat every second by themselves: they must not open the circuit.
            return
        was_open = self.breaker.opened_at is not None
        self.breaker.failed(self._clock.now())
        self._log_opening(operation, error, was_open)

    def _log_opening(self, operation: str, error: StoreUnavailableError, was_open: bool) -> None:
        if self._log is not None and self.breaker.opened_at is not None and not was_open:
            self._log.error("store_circuit_open", operation=operation, error=str(error))

    async def _rebound(self, check: Check, conflict: VersionConflict) -> Check:
        rebind = self.rebinds.get(check.key) if check.key == conflict.key else None
        return check if rebind is None else await rebind(check) or check

    def _with_token(self, write: Write) -> Write:
        if isinstance(write, Put) and not write.token:
            return msgspec.structs.replace(write, token=self._token())
        return write

    def _token(self) -> str:
        """Unique among the writes of one record. Drawn from the runtime's random source, so that a
        simulation repeats."""
        return self._random.randbytes(TOKEN_BYTES).hex()


def _tries(number: int) -> str:
    return "1 try" if number == 1 else f"{number} tries"
