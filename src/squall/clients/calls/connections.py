"""Keeps the connections of a client: of one user, for one iteration or call, or in a pool for all.

A connection is in one place at a time: with a call, idle here, or closed. A caller that takes one
gives it back, or drops it if something went wrong on it. The time until a call has its connection
is never part of its latency, but of its limit.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from squall.api.errors import CallError, TransportError
from squall.clients.calls.address import PreparedAddress, scheme_of
from squall.clients.http.failure_reasons import timeout_reason
from squall.clients.http.shared import Exchange
from squall.clients.registry import CLIENTS, SCHEMES

if TYPE_CHECKING:
    from squall.api.protocols.response import ProtocolResponse
    from squall.clients.http.client import HTTPClient
    from squall.clients.http.shared import HTTPCounters, HTTPShared


class Reusable(Protocol):
    """A connection that can be kept for the next call."""

    address: PreparedAddress
    connect_s: float
    """How long the call that holds it waited for it."""

    @property
    def is_open(self) -> bool: ...

    def close(self) -> None: ...

    def abort(self) -> None: ...


C = TypeVar("C", bound=Reusable)
Open = Callable[[PreparedAddress, float], Awaitable[C]]
"""Opens a connection within some seconds."""


class Connections(Generic[C]):
    """The connections of one user's client."""

    __slots__ = (
        "_idle",
        "_open",
        "counters",
        "free",
        "http",
        "keeps",
        "plain",
        "protocol",
        "shared",
    )

    def __init__(self, http: HTTPClient, protocol: str, open: Open[C]) -> None:
        self.http = http
        self.shared: HTTPShared = http.shared
        self.protocol = protocol
        self.counters: HTTPCounters = self.shared.counters_of(protocol)
        self._open = open
        # Whether a connection stays with its user.
        self.keeps = self.shared.connections in ("vu", "iteration")
        # The connection that was given back last: a client that sends on it need not search.
        self.free: C | None = None
        # Nothing but `last` wants to know of a call: no steps beside each other, no `--once`.
        self.plain = not http.siblings and self.shared.on_exchange is None
        # By the text of the address, which has the user and the database in it.
        self._idle: dict[Any, list[C]] = {}
        http.companions = (*http.companions, self)

    def address_of(self, url: Any) -> PreparedAddress:
        if url.__class__ is not PreparedAddress:
            name = scheme_of(url if isinstance(url, str) else str(url))
            if SCHEMES.get(name, ("",))[0] != self.protocol or not isinstance(url, str):
                known = " or ".join(f"{each.name}://" for each in CLIENTS[self.protocol].schemes)
                given = f", not with {name}://" if name else ""
                raise CallError(f"an address of {self.protocol} begins with {known}{given}")
            return self.shared.address(url)
        if url.protocol != self.protocol:
            return self.address_of(f"{url.scheme}://")
        return url

    def limit_s(self, timeout: str | float | None) -> float:
        return self.http.timeout_s if timeout is None else self.shared.seconds(timeout)

    def idle(self, address: PreparedAddress) -> C | None:
        """A connection of the user that waits for its next call."""
        free = self.free
        if free is not None and free.address.value == address.value:
            self.free = None
            if free.is_open:
                free.connect_s = 0.0
                return free
            free.abort()
        idle = self._idle.get(address.value)
        while idle:
            conn = idle.pop()
            if conn.is_open:
                conn.connect_s = 0.0
                return conn
            conn.abort()
        return None

    async def take(self, address: PreparedAddress, operation: str, limit_s: float) -> C:
        """An idle connection or a new one; `operation` is what fails if there is none."""
        idle = self.idle(address)
        if idle is not None:
            return idle
        shared = self.shared
        began = perf_counter()
        if began > shared.limit[0] and not shared.allows(began):
            raise asyncio.CancelledError
        try:
            async with asyncio.timeout(limit_s):
                if shared.connections == "shared":
                    conn = await self._of_pool(address, limit_s)
                else:
                    conn = await self._opened(address, limit_s)
        except TimeoutError:
            error = TransportError(timeout_reason(limit_s), started=began, ended=perf_counter())
        except TransportError as caught:
            error = caught
        else:
            conn.connect_s = perf_counter() - began
            return conn
        self.counters.failed += 1
        self.counters.unsent += 1
        raise self.failed(error, address, operation) from error.__cause__

    async def _of_pool(self, address: PreparedAddress, limit_s: float) -> C:
        pool = self._pool(address)
        conn = await pool.take()
        if conn is not None:
            return conn
        try:
            return await self._opened(address, limit_s)
        except BaseException:
            pool.lose()
            raise

    async def _opened(self, address: PreparedAddress, limit_s: float) -> C:
        if self.shared.closed:
            raise TransportError("client closed")
        if not address.origin.addresses:
            await self.shared.resolve(address.origin)
        return await self._open(address, limit_s)

    def give_back(self, conn: C) -> None:
        """Returns a connection on which no call is under way."""
        if self.keeps and self.free is None and conn.is_open and not self.shared.closed:
            self.free = conn
            return
        policy = self.shared.connections
        if policy == "shared":
            if conn.is_open:
                self._pool(conn.address).put(conn)
            else:
                self.drop(conn)
        elif policy == "request" or self.shared.closed:
            conn.close()
        elif conn.is_open:
            self._idle.setdefault(conn.address.value, []).append(conn)
        else:
            conn.abort()

    def drop(self, conn: C) -> None:
        """Closes a connection at once: something went wrong on it, or its call was cancelled."""
        conn.abort()
        if self.shared.connections == "shared":
            self._pool(conn.address).lose()

    def done(self, response: Any) -> Any:
        """Notes how a call ended, for the step and for `--once`."""
        if self.plain:
            # `HTTPClient.note` without its call.
            self.http.last = response
            return response
        self.http.note(response)
        if self.shared.on_exchange is not None:
            self.show(response)
        return response

    def show(self, response: Any) -> None:
        """Shows a call for `--once`; `done` does it, too."""
        if self.shared.on_exchange is not None:
            self._show(response.source.operation, response.source.address, response)

    def broken(
        self, conn: C, error: BaseException, operation: str, calls: int = 1
    ) -> BaseException:
        """Drops the connection of calls without an answer, and counts them. Returns what to
        raise."""
        self.drop(conn)
        if not isinstance(error, TransportError):
            self.counters.cancelled += calls
            return error
        self.counters.failed += calls
        return self.failed(error, conn.address, operation)

    def failed(
        self, error: TransportError, address: PreparedAddress, operation: str
    ) -> TransportError:
        """Completes the error of a call and notes it; the caller counts and raises it."""
        error.protocol = self.protocol
        error.request = f"{self.protocol.upper()} {operation} {address.shown}"
        # The advice is for HTTP.
        error.reason = error.reason.removesuffix("; write http://")
        self.http.note(error)
        if self.shared.on_exchange is not None:
            self._show(operation, address.shown, error)
        return error

    def _show(self, operation: str, url: str, outcome: ProtocolResponse | TransportError) -> None:
        watcher = self.shared.on_exchange
        assert watcher is not None
        watcher(Exchange(self.protocol.upper(), url, "", operation.encode(), outcome))

    def _pool(self, address: PreparedAddress) -> _Pool[C]:
        pools: dict[Any, _Pool[C]]
        pools = self.shared.protocols.setdefault(f"{self.protocol} pools", {})
        pool = pools.get(address.value)
        if pool is None:
            pool = pools[address.value] = _Pool(self.shared.pool_size)
        return pool

    def begin_iteration(self) -> None:
        """Closes connections that live for one iteration."""
        if self.shared.connections == "iteration":
            self.close()

    def close(self) -> None:
        free, self.free = self.free, None
        if free is not None:
            free.close()
        idle, self._idle = self._idle, {}
        for connections in idle.values():
            for conn in connections:
                conn.close()


class _Pool(Generic[C]):
    """A bounded number of connections to one address, for all users of a share. Calls that find
    none free wait in order."""

    __slots__ = ("_idle", "_most", "_opened", "_waiting")

    def __init__(self, most: int) -> None:
        self._most = most
        self._idle: deque[C] = deque()
        # Idle, with a call, or being opened.
        self._opened = 0
        self._waiting: deque[asyncio.Future[C | None]] = deque()

    async def take(self) -> C | None:
        """A free connection; None if the caller may open one."""
        while self._idle:
            conn = self._idle.pop()
            if conn.is_open:
                return conn
            conn.abort()
            self._opened -= 1
        if self._opened < self._most:
            self._opened += 1
            return None
        turn: asyncio.Future[C | None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            return await turn
        except BaseException:
            if turn.done() and not turn.cancelled():
                # Cancelled after it got its turn: pass the turn on.
                conn = turn.result()
                if conn is None:
                    self.lose()
                else:
                    self.put(conn)
            else:
                self._waiting.remove(turn)
            raise

    def put(self, conn: C) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(conn)
                return
        self._idle.append(conn)

    def lose(self) -> None:
        """A connection of the pool is gone, or was not opened: another may take its place."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._opened -= 1
