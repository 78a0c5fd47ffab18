"""A store with patience: repeats what got no answer, and stops asking when nothing answers.

Each operation has four tries, 1, 2 and 4 s apart (a tenth more or less), then fails with
`StoreUnavailableError`. Writes get their tokens before the first try, so that a repeat of
one that took effect is a success and not a conflict. Ten failed operations in a row open
the circuit.

`urgent` is the same store for heartbeats and renewals: one try, no leave to ask for, and a
success closes the circuit. A circuit must never silence those, or a short outage would
become the death of all members.

Conflicts and other answers are never repeated, but for a check that failed because the record was
replaced by its own writer and means the same: that writer is asked (`rebinds`).
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar, runtime_checkable

import msgspec

from squall.coordination.errors import ConfigurationError
from squall.coordination.metrics import CoordinationMetrics
from squall.coordination.stores.breaker import BreakerState, StoreBreaker
from squall.coordination.stores.errors import (
    CircuitOpenError,
    CoordinationError,
    StoreUnavailableError,
    VersionConflict,
)
from squall.coordination.stores.interface import (
    Appended,
    Capabilities,
    CarryingStore,
    Check,
    Claim,
    Depth,
    Fence,
    Item,
    Page,
    Put,
    Record,
    Store,
    Watch,
    Write,
    check_key,
)
from squall.runtime.interfaces import Clock
from squall.runtime.log import Log
from squall.runtime.metrics import Histogram

T = TypeVar("T")
TOKEN_BYTES = 12
Rebind = Callable[[Check], Awaitable[Check | None]]


@runtime_checkable
class PairedStore(Protocol):
    """A store that can write and then read in one round trip."""

    async def write_and_get(
        self, writes: Sequence[Write], keys: Sequence[str]
    ) -> tuple[tuple[str, ...], tuple[Record | None, ...]]: ...


class RetrySettings(msgspec.Struct, frozen=True, kw_only=True):
    attempts: int = 4
    first_delay_s: float = 1.0
    jitter: float = 0.1
    """So much of a delay more or less. Without it, all that failed together try together."""

    def __post_init__(self) -> None:
        if not 0.0 < self.jitter < 1.0:
            raise ConfigurationError(
                f"jitter is {self.jitter!r}: it must be above 0 and below 1, else all repeat at the"
                " same moment; jitter=0.1 is right"
            )


class GuardedStore:
    """Wraps one store. All members of a process share it, and with it the circuit."""

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
        self.inner = inner
        self.breaker = breaker or StoreBreaker()
        self._retry = retry or RetrySettings()
        self._clock = clock
        self._random = source
        self._metrics = metrics
        self._log = log
        self._is_urgent = is_urgent
        self._paired = inner if isinstance(inner, PairedStore) else None
        self._carrying = inner if isinstance(inner, CarryingStore) else None
        self._durations: dict[str, Histogram] = {}
        self.rebinds: dict[str, Rebind] = {}
        """By key: who can say what holds now in place of a check that failed."""
        if metrics is not None:
            metrics.gauge(metrics.families.breaker_open).follow(lambda: float(self.state))

    @property
    def urgent(self) -> GuardedStore:
        """For heartbeats and renewals only."""
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
    def state(self) -> BreakerState:
        return self.breaker.state(self._clock.now())

    @property
    def url(self) -> str:
        return self.inner.url

    @property
    def capabilities(self) -> Capabilities:
        return self.inner.capabilities

    async def now_ms(self) -> int:
        return await self._call("now", self.inner.now_ms)

    async def get(self, *keys: str) -> tuple[Record | None, ...]:
        for key in keys:
            check_key(key)
        return await self._call("get", self.inner.get, *keys)

    async def write(self, *writes: Write, fence: Fence | None = None) -> tuple[str, ...]:
        named = list(map(self._with_token, writes))
        try:
            return await self._call("write", partial(self.inner.write, *named, fence=fence))
        except VersionConflict as conflict:
            bound = [
                await self._rebound(each, conflict) if isinstance(each, Check) else each
                for each in named
            ]
            if bound == named:
                raise
        return await self._call("write", partial(self.inner.write, *bound, fence=fence))

    async def write_and_get(
        self, writes: Sequence[Write], keys: Sequence[str]
    ) -> tuple[tuple[str, ...], tuple[Record | None, ...]]:
        """Writes, and reads after that: in one round trip where the store can."""
        paired = self._paired
        if paired is None or not keys:
            versions = await self.write(*writes)
            return versions, (await self.get(*keys) if keys else ())
        named = list(map(self._with_token, writes))
        return await self._call("write", paired.write_and_get, named, keys)

    async def list(self, kind: str, *, idle_ms: int = 0, after: str = "", limit: int = 100) -> Page:
        page = partial(self.inner.list, kind, idle_ms=idle_ms, after=after, limit=limit)
        return await self._call("list", page)

    async def sweep(self, kind: str, *, limit: int = 100, idle_ms: int = 0) -> int:
        swept = partial(self.inner.sweep, kind, limit=limit, idle_ms=idle_ms)
        return await self._call("sweep", swept)

    async def count(self) -> Mapping[str, int]:
        return await self._call("count", self.inner.count)

    async def read(self, stream: str, *, after: str = "", limit: int = 100) -> Sequence[Item]:
        return await self._call("read", partial(self.inner.read, stream, after=after, limit=limit))

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
        call = partial(self.inner.take, stream, owner, lease_s=lease_s, limit=limit)
        named = request or self._token()
        try:
            return await self._call("take", partial(call, request=named, provided=provided))
        except VersionConflict as conflict:
            bound = None if provided is None else await self._rebound(provided, conflict)
            if bound == provided:
                raise
        return await self._call("take", partial(call, request=named, provided=bound))

    async def depth(self, stream: str) -> Depth:
        return await self._call("depth", self.inner.depth, stream)

    async def wait(self, *watches: Watch, timeout_s: float) -> frozenset[Watch]:
        """An outage in the middle of a wait costs the pauses between tries, not the wait."""
        deadline = self._clock.now() + timeout_s

        async def rest() -> frozenset[Watch]:
            left_s = max(0.0, deadline - self._clock.now())
            return await self.inner.wait(*watches, timeout_s=left_s)

        return await self._call("wait", rest)

    async def listen(self, stream: str, *, after: str, timeout_s: float) -> Sequence[Item]:
        """Waits for items behind the cursor. What it brings are the next ones in their order;
        if it brings none, `read` says what there is."""
        carrying = self._carrying
        if carrying is None:
            await self.wait(Appended(stream, after), timeout_s=timeout_s)
            return ()
        deadline = self._clock.now() + timeout_s

        async def rest() -> Sequence[Item]:
            left_s = max(0.0, deadline - self._clock.now())
            return await carrying.listen(stream, after=after, timeout_s=left_s)

        return await self._call("wait", rest)

    async def probe(self) -> None:
        await self.inner.probe()

    async def close(self) -> None:
        await self.inner.close()

    async def _call(self, operation: str, call: Callable[..., Awaitable[T]], *arguments: Any) -> T:
        if not self._is_urgent and not self.breaker.admit(self._clock.now()):
            raise CircuitOpenError(
                f"{self.url}: not tried, the last {self.breaker.settings.failures_to_open} "
                "operations got no answer"
            )
        if self.breaker.opened_at is not None and not self._is_urgent and self._log is not None:
            self._log.info("store_circuit_half_open", operation=operation, store=self.url)
        for attempt in range(1, self._retry.attempts + 1):
            begun = self._clock.now()
            try:
                result = await call(*arguments)
            except StoreUnavailableError as error:
                await self._failed(operation, attempt, error)
            except CoordinationError:
                # An answer, though not the wished one: the store is there.
                self._answered(operation, begun)
                raise
            else:
                self._answered(operation, begun)
                return result
        raise AssertionError("the last try raises")

    def _answered(self, operation: str, begun: float) -> None:
        if operation != "now":
            # A store may know the time without asking anybody.
            if self.breaker.opened_at is not None and self._log is not None:
                self._log.info("store_circuit_closed", store=self.url)
            self.breaker.succeeded()
        if self._metrics is not None and operation != "wait":
            known = self._durations.get(operation)
            if known is None:
                family = self._metrics.families.store_s
                known = self._durations[operation] = self._metrics.histogram(family, operation)
            known.observe(self._clock.now() - begun)

    async def _failed(self, operation: str, attempt: int, error: StoreUnavailableError) -> None:
        metrics, attempts = self._metrics, self._retry.attempts
        if metrics is not None:
            metrics.counter(metrics.families.store_errors, operation).add()
        if attempt == attempts:
            self._gave_up(operation, error)
            if attempts == 1:
                raise error
            raise StoreUnavailableError(f"{error} ({attempts} tries)", attempts=attempts) from error
        spread = self._random.uniform(1.0 - self._retry.jitter, 1.0 + self._retry.jitter)
        delay_s = self._retry.first_delay_s * 2.0 ** (attempt - 1) * spread
        if self._log is not None:
            self._log.warning(
                "store_retry",
                operation=operation,
                attempt=f"{attempt}/{attempts}",
                delay_s=round(delay_s, 2),
                error=str(error),
            )
        await self._clock.sleep(delay_s)

    def _gave_up(self, operation: str, error: StoreUnavailableError) -> None:
        if self._is_urgent:
            # Its own repeats come every second: they must not open the circuit for others.
            return
        was_open = self.breaker.opened_at is not None
        self.breaker.failed(self._clock.now())
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
        """Unique among the writes of one record; a seeded source repeats in a simulation."""
        return self._random.randbytes(TOKEN_BYTES).hex()
