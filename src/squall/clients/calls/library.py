"""Makes calls through a library: counted, limited in time, stamped when the answer came.

A call runs in the task of its step. When its time is up, the sweep of the share drops the
connection and cancels the task, so that a library which hangs cannot hold the user; a
`TransportError` replaces the cancellation. Every call is counted once: as answered, failed or
cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from squall.api.errors import CallError, TransportError
from squall.clients.calls.address import PreparedAddress
from squall.clients.calls.arrivals import Arrivals, LibraryOpening
from squall.clients.calls.connections import Connections
from squall.clients.http.failure_reasons import connect_reason, reason_of, timeout_reason

if TYPE_CHECKING:
    from squall.clients.http.client import HTTPClient
    from squall.clients.http.shared import HTTPShared

L = TypeVar("L")
T = TypeVar("T")

# A library that ignores its cancellation is cancelled again after this time.
_AGAIN_S = 1.0
# How long the orderly end of a connection may take.
_GOODBYE_S = 0.4


@dataclass(frozen=True)
class Library(Generic[L]):
    """How to use the connections of a library."""

    open: Callable[[LibraryOpening], Awaitable[L]]
    """Connects and logs in."""
    abort: Callable[[L], object]
    """Closes at once and waits for nothing."""
    close: Callable[[L], Awaitable[object]] | None = None
    """Says goodbye to the server; `abort` follows in any case."""
    is_open: Callable[[L], bool] = lambda _: True
    """False for a connection that the server closed while it was idle."""
    lost: tuple[type[BaseException], ...] = ()
    """Exceptions of a lost connection, beside `OSError`, `EOFError` and `TimeoutError`."""
    reason: Callable[[BaseException], str] = reason_of
    """The key under which such an exception is counted: it has no text that differs each time."""
    multiplexes: bool = False
    """Whether one connection of the process serves the calls of all users at the same time."""


class CallText(msgspec.Struct, frozen=True, eq=False, gc=False):
    """The text of a call, for messages."""

    address: str
    operation: str


class LibraryAnswer(msgspec.Struct, Generic[T], eq=False, gc=False):
    """How a call ended: `Response(*answer.stamps, bytes_received=answer.received, ...)`."""

    source: CallText
    started: float
    first_byte: float
    ended: float
    connect_s: float
    value: T
    received: int

    @property
    def stamps(self) -> tuple[CallText, float, float, float, float]:
        """The first fields of a `ProtocolResponse`."""
        return self.source, self.started, self.first_byte, self.ended, self.connect_s


class LibraryConnection(Generic[L]):
    """A connection of a library. It is in `live` until it is closed."""

    __slots__ = (
        "_library",
        "_shared",
        "address",
        "arrivals",
        "connect_s",
        "connection",
        "future",
        "is_closed",
        "reason",
        "spent_s",
        "started",
        "timeout_s",
    )

    def __init__(
        self, shared: HTTPShared, library: Library[L], connection: L, opening: LibraryOpening
    ) -> None:
        self._shared = shared
        self._library = library
        self.connection = connection
        self.address: PreparedAddress = opening.address
        self.arrivals: Arrivals = opening.arrivals
        self.connect_s = 0.0
        self.is_closed = False
        # The sweep ends calls, not connections, except for a call that `begin` began.
        self.future: Any = None
        self.reason = ""
        self.started = self.timeout_s = self.spent_s = 0.0
        shared.live.add(self)

    @property
    def is_open(self) -> bool:
        return not self.is_closed and self._library.is_open(self.connection)

    def close(self) -> None:
        if self.is_closed:
            return
        if self._library.close is None:
            self.abort()
            return
        self.is_closed = True
        ending = asyncio.ensure_future(self._say_goodbye(self._library.close))
        # The task must not vanish before it has ended.
        self._shared.protocols.setdefault("ending connections", set()).add(ending)
        ending.add_done_callback(self._shared.protocols["ending connections"].discard)

    async def _say_goodbye(self, close: Callable[[L], Awaitable[object]]) -> None:
        try:
            async with asyncio.timeout(_GOODBYE_S):
                await close(self.connection)
        except Exception:
            # The server is gone, or does not answer; the connection ends in any case.
            pass
        finally:
            self._abort()

    def abort(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            self._abort()

    def _abort(self) -> None:
        self._shared.live.discard(self)
        try:
            self._library.abort(self.connection)
        except Exception:
            # It was broken before.
            return

    def fail(self, reason: str, now: float) -> None:
        self.reason = reason
        self.abort()


class _RunningCall(msgspec.Struct, eq=False):
    """A call that the sweep may end."""

    shared: HTTPShared
    future: Any
    """The task of the call."""
    drop: Callable[[], None] | None
    started: float
    timeout_s: float
    spent_s: float
    reason: str = ""
    """Why it was ended."""
    cancels: int = 0

    def fail(self, reason: str, now: float) -> None:
        self.reason = self.reason or reason
        self.cancels += 1
        self.started, self.timeout_s, self.spent_s = now, _AGAIN_S, 0.0
        self.shared.expect_timeout(_AGAIN_S, now + _AGAIN_S)
        if self.drop is not None:
            self.drop()
        self.future.cancel()

    def close(self) -> None:
        """Called for idle connections only."""

    def abort(self) -> None:
        self.fail("client closed", perf_counter())


class LibraryCalls(Generic[L]):
    """The calls of one user through a library."""

    __slots__ = ("_connections", "_library", "address_of", "counters", "done", "http", "shared")

    def __init__(self, http: HTTPClient, protocol: str, library: Library[L]) -> None:
        self.http = http
        self.shared: HTTPShared = http.shared
        self._library = library
        self._connections: Connections[LibraryConnection[L]] = Connections(
            http, protocol, self._open
        )
        self.counters = self._connections.counters
        self.done = self._connections.done
        self.address_of = self._connections.address_of

    async def call(
        self,
        url: Any,
        operation: str,
        perform: Callable[[L], Awaitable[T]],
        *,
        timeout: str | float | None = None,  # noqa: ASYNC109
        sent: int = 0,
    ) -> LibraryAnswer[T]:
        """Performs one call on a connection of the user. `sent` are the bytes of its payload."""
        connections = self._connections
        limit_s, address = connections.limit_s(timeout), connections.address_of(url)
        # Most calls find one, and save two coroutines.
        held = None if self._library.multiplexes else connections.idle(address)
        if held is None:
            held = await self._take(address, operation, limit_s)
        try:
            answer = await self._perform(held, operation, perform, limit_s, held.connect_s, sent)
        except BaseException:
            self._drop(held)
            raise
        self.give_back(held)
        return answer

    async def take(
        self,
        url: Any,
        operation: str,
        *,
        timeout: str | float | None = None,  # noqa: ASYNC109
    ) -> LibraryConnection[L]:
        """A connection for several calls with `on`; end with `give_back` or `drop`."""
        limit_s = self._connections.limit_s(timeout)
        return await self._take(self._connections.address_of(url), operation, limit_s)

    def on(
        self,
        held: LibraryConnection[L],
        operation: str,
        perform: Callable[[L], Awaitable[T]],
        *,
        timeout: str | float | None = None,
        sent: int = 0,
    ) -> Coroutine[Any, Any, LibraryAnswer[T]]:
        """Performs one call on a connection that was taken. After an exception, drop it."""
        # The coroutine itself: one more between the author's and the library's would cost.
        return self._perform(
            held, operation, perform, self._connections.limit_s(timeout), 0.0, sent
        )

    def idle(self, url: Any) -> LibraryConnection[L] | None:
        """An idle connection of the user, which stays idle; None if `call` must find one.

        For a call that is written out in full between `begin` and `finish` or `broken`, because
        `call` costs as much as a fast library.
        """
        connections = self._connections
        free = connections.free
        if free is None or free.address is not url or not connections.plain:
            return None
        return None if free.is_closed or free.arrivals.is_lost else free

    def begin(self, held: LibraryConnection[L], sent: int) -> None:
        """Begins a call with a payload of `sent` bytes on an idle connection. When its time is up,
        the connection is aborted, and the library must raise because of that."""
        http = self.http
        held.started = started = perf_counter()
        if started > http.limit[0] and not self.shared.allows(started):
            raise asyncio.CancelledError
        self._connections.free = None
        held.timeout_s = http.own_timeout_s
        held.future = held
        held.connect_s = 0.0
        held.arrivals.first = 0.0
        counters = self.counters
        counters.sent += 1
        counters.bytes_sent += sent

    def finish(self, held: LibraryConnection[L], response: Any) -> None:
        """Ends a call that was answered."""
        held.future = None
        self.counters.replies += 1
        connections = self._connections
        if connections.free is None and not self.shared.closed:
            connections.free = held
        else:
            connections.give_back(held)
        self.http.last = response

    def broken(
        self, held: LibraryConnection[L], operation: str, error: BaseException
    ) -> BaseException:
        """Ends a call without an answer, and returns what to raise."""
        held.future = None
        running = _RunningCall(self.shared, None, None, held.started, held.timeout_s, 0.0)
        running.reason = held.reason
        self._drop(held)
        if isinstance(error, asyncio.CancelledError):
            # Of the step, whatever happened to the connection.
            running.reason = ""
        return self._ended(running, held, operation, held.started, error)

    def give_back(self, held: LibraryConnection[L]) -> None:
        if not self._library.multiplexes:
            self._connections.give_back(held)

    def drop(self, held: LibraryConnection[L]) -> None:
        """Closes a connection at once."""
        self._drop(held)

    def _drop(self, held: LibraryConnection[L]) -> None:
        if not self._library.multiplexes:
            self._connections.drop(held)

    async def _take(
        self, address: PreparedAddress, operation: str, limit_s: float
    ) -> LibraryConnection[L]:
        connections = self._connections
        if not self._library.multiplexes:
            return await connections.take(address, operation, limit_s)
        one: dict[str, asyncio.Task[LibraryConnection[L]]]
        one = self.shared.protocols.setdefault(f"{connections.protocol} connection", {})
        opening = one.get(address.value)
        if opening is not None and opening.done():
            held = None if opening.cancelled() or opening.exception() else opening.result()
            if held is not None and held.is_open:
                held.connect_s = 0.0
                return held
            if held is not None:
                held.abort()
            opening = None
        began = perf_counter()
        if opening is None:
            opening = one[address.value] = asyncio.ensure_future(
                connections.take(address, operation, limit_s)
            )
        # Shielded: one caller's cancellation must not end the connect of the others.
        try:
            held = await asyncio.shield(opening)
        except asyncio.CancelledError:
            raise
        except TransportError as error:
            # One object is raised by many steps; each gets its own.
            again = TransportError(error.reason, started=error.started, ended=error.ended)
            again.protocol, again.request = error.protocol, error.request
            self.http.note(again)
            raise again from None
        held.connect_s = perf_counter() - began
        return held

    async def _open(self, address: PreparedAddress, limit_s: float) -> LibraryConnection[L]:
        shared, library = self.shared, self._library
        opening = LibraryOpening(shared, address, self.http.vu_index, self.counters)
        limiter = shared.limiter
        if (turn := limiter.queue()) is not None:
            try:
                await turn
            except BaseException:
                limiter.leave(turn)
                raise
        began = perf_counter()
        try:
            with opening.connecting():
                # The caller has the same limit; a library may turn its cancellation into another
                # error.
                async with asyncio.timeout(limit_s):
                    connection = await library.open(opening)
        except CallError:
            raise
        except TimeoutError as error:
            why = connect_reason(error, address.origin.where) if error.errno else ""
            why = why or timeout_reason(limit_s)
            raise TransportError(why, started=began, ended=perf_counter()) from None
        except (OSError, EOFError, *library.lost) as error:
            why = self._reason(error)
            if isinstance(error, OSError):
                why = connect_reason(error, address.origin.where)
            raise TransportError(why, started=began, ended=perf_counter()) from error
        finally:
            limiter.release()
        self.counters.connections += 1
        self.counters.connect_samples.append(perf_counter() - began)
        return LibraryConnection(shared, library, connection, opening)

    async def _perform(
        self,
        held: LibraryConnection[L],
        operation: str,
        perform: Callable[[L], Awaitable[T]],
        limit_s: float,
        spent_s: float,
        sent: int,
    ) -> LibraryAnswer[T]:
        shared, counters = self.shared, self.counters
        arrivals = held.arrivals
        task = asyncio.current_task()
        started = perf_counter()
        if started > shared.limit[0] and not shared.allows(started):
            # The lease of the share has ended: as if the task had been cancelled.
            raise asyncio.CancelledError
        multiplexes = self._library.multiplexes
        if not multiplexes:
            arrivals.first = 0.0
        received = arrivals.received
        drop = None if multiplexes else held.abort
        # Of this call alone: others may use the connection before it ends.
        connect_s, held.connect_s = held.connect_s, 0.0
        running = _RunningCall(shared, task, drop, started, limit_s, spent_s)
        shared.live.add(running)
        if spent_s or limit_s != self.http.own_timeout_s:
            # The sweep knows the limit of the step.
            shared.expect_timeout(limit_s, started + limit_s - spent_s)
        counters.sent += 1
        counters.bytes_sent += sent
        try:
            value = await perform(held.connection)
        except BaseException as error:
            raise self._ended(running, held, operation, started, error) from error.__cause__
        finally:
            running.future = None
            shared.live.discard(running)
        counters.replies += 1
        ended = arrivals.last if arrivals.last > started else perf_counter()
        first_byte = ended if multiplexes else (arrivals.first or ended)
        source = CallText(held.address.shown, operation)
        return LibraryAnswer(
            source, started, first_byte, ended, connect_s, value, arrivals.received - received
        )

    def _ended(
        self,
        running: _RunningCall,
        held: LibraryConnection[L],
        operation: str,
        started: float,
        error: BaseException,
    ) -> BaseException:
        """Counts a call without an answer, and returns what to raise."""
        counters, now = self.counters, perf_counter()
        task = running.future
        if running.reason:
            others = task.cancelling() - running.cancels if running.cancels else 0
            for _ in range(running.cancels):
                task.uncancel()
            if others <= 0 or not isinstance(error, asyncio.CancelledError):
                counters.failed += 1
                failure = TransportError(running.reason, started=started, ended=now)
                return self._connections.failed(failure, held.address, operation)
        if isinstance(error, asyncio.CancelledError):
            counters.cancelled += 1
            return error
        counters.failed += 1
        if isinstance(error, (OSError, EOFError, *self._library.lost)):
            failure = TransportError(self._reason(error), started=started, ended=now)
            return self._connections.failed(failure, held.address, operation)
        # A mistake of the author, such as an argument that the library refuses.
        return error

    def _reason(self, error: BaseException) -> str:
        if isinstance(error, EOFError) and not str(error):
            return "connection closed by the server"
        return self._library.reason(error)
