"""The HTTP client of one virtual user: `self.client.http`.

It holds what belongs to the user: idle connections, cookies, the last exchange. `get` with
only a prepared URL is written out in full, because a run spends most of its time there. Every verb
sends on an idle connection and awaits the answer itself (`_verb_of`), because each coroutine
between the author's and the future costs; what needs more than that (a new connection, cookies,
redirects, a second try) continues in `squall.clients.http.exchange`.

The verbs take `**options`: an empty dict costs less than the eight keyword-only defaults it
replaces, each of which CPython looks up by name (7 % fewer instructions for a plain get).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol, Unpack, cast

from squall.api.arguments import URL
from squall.api.errors import CallError, TransportError
from squall.api.http import BodyOptions, CallOptions, HTTPResponse, HTTPVerbs
from squall.api.results import TimedCall
from squall.api.sse import SSEResponse
from squall.api.websocket import WebsocketResponse
from squall.clients.http.call import BUILD_OPTIONS, build, filled
from squall.clients.http.connect import connect
from squall.clients.http.connection import (
    ConnectionPool,
    HTTPConnection,
    Unanswered,
    new_future,
)
from squall.clients.http.cookies import Jar
from squall.clients.http.exchange import ExchangeOutcome, call, finish
from squall.clients.http.origin import Origin
from squall.clients.http.shared import HTTPShared
from squall.clients.http.url import PreparedURL

if TYPE_CHECKING:
    from squall.api.protocols.graphql import GraphQLResponse
    from squall.api.protocols.grpc import GRPCResponse
    from squall.api.protocols.response import ProtocolResponse

    LastCall = (
        ExchangeOutcome
        | TimedCall
        | SSEResponse
        | WebsocketResponse
        | GRPCResponse
        | GraphQLResponse
        | ProtocolResponse
    )


class StepCell:
    """The state of one of several steps that run beside each other. It is an object, so that
    tasks which the step starts share it."""

    __slots__ = ("last", "timeout_s")

    def __init__(self, timeout_s: float) -> None:
        self.last: LastCall | None = None
        self.timeout_s = timeout_s


class Companion(Protocol):
    """A client of another protocol that belongs to the same user."""

    def begin_iteration(self) -> None: ...

    def close(self) -> None: ...


_step: ContextVar[StepCell | None] = ContextVar("_step", default=None)

_METHOD = re.compile(r"[A-Z]+(?:-[A-Z]+)*")

_BODY_ONLY = BodyOptions.__optional_keys__ - CallOptions.__optional_keys__


def _verb_of(method: str):
    """Makes the method of the client for an HTTP method."""

    async def verb(self: HTTPClient, url: URL, **options: Unpack[BodyOptions]) -> HTTPResponse:
        begun = self.begin(method, url, options)
        if begun is None:
            return await call(self, method, url, **options)
        conn, future = begun
        # Another step of the user may send on the connection before this task wakes up.
        source = conn.source
        try:
            outcome = await future
        except Unanswered as error:
            outcome = error.with_traceback(None)
        except BaseException as error:
            self.ended(conn, future, error, f"{method} {source.address}")
            # They hold the error, whose traceback holds this frame: break the cycle.
            del future, begun
            raise
        else:
            if not outcome.head.special:
                self.last = outcome
                if self.siblings:
                    self.note(outcome)
                return outcome
        return await finish(self, source, cast("PreparedURL", url), options, outcome)

    # A coroutine has the name of its function; messages about one that is not awaited show it.
    verb.__name__ = method.lower()
    verb.__qualname__ = f"HTTPClient.{verb.__name__}"
    return verb


class HTTPClient:
    """Sends the calls of one user. `dirty` says whether `begin_iteration` has work to do."""

    __slots__ = (
        "_remembered",
        "companions",
        "counters",
        "dirty",
        "jar",
        "last",
        "limit",
        "on_step_failed",
        "own_timeout_s",
        "plain",
        "pool",
        "shared",
        "siblings",
        "vu_index",
    )

    def __init__(self, shared: HTTPShared, vu_index: int) -> None:
        self.shared = shared
        self.vu_index = vu_index
        self.pool = shared.pool or ConnectionPool()
        self.jar: Jar | None = None
        self.last: LastCall | None = None
        self.dirty = shared.connections == "iteration"
        self._remembered: Jar | None = None
        # The user's clients of other protocols, which stand on this one.
        self.companions: tuple[Companion, ...] = ()
        # Called with the name of each step of the user that failed; set by one of these clients.
        self.on_step_failed: Callable[[str], None] | None = None
        self.counters = shared.counters
        self.limit = shared.limit
        self.siblings = shared.siblings
        # No cookies to send, no `on_exchange`, no traces: `get` may take its fast path.
        self.plain = shared.on_exchange is None and not shared.traces
        # The limit where no steps run beside each other; `timeout_s` covers both cases and
        # costs a property call.
        self.own_timeout_s = shared.timeout_s

    async def get(self, url: URL, **options: Unpack[CallOptions]) -> HTTPResponse:
        if not options and type(url) is PreparedURL and self.plain:
            pool = self.pool
            conn = pool.idle
            if conn is not None and conn.origin is url.lane:
                pool.idle = None
                conn.future = future = new_future()
                conn.source = url
                conn.timeout_s = self.timeout_s if self.siblings else self.own_timeout_s
                conn.spent_s = 0.0
                raw = url.get_raw
                counters = self.counters
                conn.started = started = perf_counter()
                if started > self.limit[0] and not self.shared.allows(started):
                    conn.withhold()
                counters.sent += 1
                counters.bytes_sent += len(raw)
                conn.transport.write(raw)
                try:
                    outcome = await future
                except Unanswered as error:
                    outcome = error.with_traceback(None)
                except BaseException as error:
                    self.ended(conn, future, error, f"GET {url.address}")
                    # It holds the error, whose traceback holds this frame: break the cycle.
                    del future
                    raise
                else:
                    if not outcome.head.special:
                        self.last = outcome
                        if self.siblings:
                            self.note(outcome)
                        return outcome
                return await finish(self, url, url, options, outcome)
        if not options and self.pool.idle is None:
            # Thousands of users wait here for their first connection: one coroutine less of each.
            return await call(self, "GET", url)
        refuse_body("get", options)
        return await _get(self, url, **options)

    async def head(self, url: URL, **options: Unpack[CallOptions]) -> HTTPResponse:
        refuse_body("head", options)
        return await call(self, "HEAD", url, **options)

    async def options(self, url: URL, **options: Unpack[CallOptions]) -> HTTPResponse:
        refuse_body("options", options)
        return await call(self, "OPTIONS", url, **options)

    post = _verb_of("POST")
    put = _verb_of("PUT")
    patch = _verb_of("PATCH")
    delete = _verb_of("DELETE")

    async def request(self, method: str, url: URL, **options: Unpack[BodyOptions]) -> HTTPResponse:
        return await call(self, checked_method(method), url, **options)

    async def connect(self, origin: Origin, limit_s: float) -> bool:
        """Opens the connection of the user's first request. False if it fails: the request will try
        again and report it."""
        if self.pool.idle is None:
            try:
                conn = await connect(
                    self.shared, self.pool, origin, self.vu_index, limit_s, limit_s
                )
            except TransportError:
                return False
            # No exchange will report how long it took; the samples of the share have it.
            conn.setup = None
            self.pool.add(conn, self.shared.most_idle)
        return True

    def begin(
        self, method: str, url: URL, options: BodyOptions
    ) -> tuple[HTTPConnection, asyncio.Future[HTTPResponse]] | None:
        """Sends a call on the idle connection. None if it needs more than that: then nothing has
        been sent."""
        if type(url) is not PreparedURL or not self.plain:
            return None
        conn = self.pool.idle
        if conn is None or conn.origin is not url.origin:
            return None
        sendable = filled(method, url, options)
        if sendable is None:
            if not options.keys() <= BUILD_OPTIONS:
                return None
            request = build(self.shared, method, url, **cast("dict[str, Any]", options))
            sendable = request.raw, request
        self.pool.idle = None
        timeout_s = self.timeout_s if self.siblings else self.own_timeout_s
        return conn, conn.send(*sendable, timeout_s, 0.0)

    def ended(
        self,
        conn: HTTPConnection,
        future: asyncio.Future[HTTPResponse],
        error: BaseException,
        request: str,
    ) -> None:
        """Gives up a call on a connection: it failed, or its task was cancelled."""
        conn.abandon(future)
        if isinstance(error, TransportError):
            error.request = request
            self.note(error)

    @property
    def timeout_s(self) -> float:
        """The limit for calls without `timeout=`. Assign None to return to the default. Where
        steps run beside each other, it is the limit of the running step."""
        if self.siblings and (cell := _step.get()) is not None:
            return cell.timeout_s
        return self.own_timeout_s

    @timeout_s.setter
    def timeout_s(self, seconds: float | None) -> None:
        if seconds is None:
            seconds = self.shared.timeout_s
        else:
            self.shared.expect_timeout(seconds, perf_counter() + seconds)
        self.own_timeout_s = seconds
        if self.siblings and (cell := _step.get()) is not None:
            cell.timeout_s = seconds

    def begin_iteration(self) -> None:
        """Restores the remembered cookies; closes connections that live for one iteration.

        May be skipped while `dirty` is False.
        """
        shared = self.shared
        if shared.session == "iteration":
            self.use(self._remembered)
        self.dirty = shared.connections == "iteration"
        if self.dirty:
            self.pool.close()
            for companion in self.companions:
                companion.begin_iteration()

    def remember(self) -> None:
        """Makes the present cookies those that every iteration begins with."""
        self._remembered = self.jar
        self.dirty = self.shared.connections == "iteration"

    def clear_last(self) -> None:
        """Forgets the last exchange, before a step and in its task.

        Where no other step of this user runs, `last = None` does the same and costs less.
        """
        if self.siblings:
            _step.set(StepCell(self.shared.timeout_s))
        else:
            self.last = None

    def last_exchange(self) -> LastCall | None:
        """How the last exchange of the running step ended, None before any."""
        if self.siblings and self.last is not None:
            # `last` may belong to a step beside this one.
            cell = _step.get()
            return self.last if cell is None else cell.last
        return self.last

    def note(self, outcome: LastCall) -> None:
        """Stores how an exchange ended."""
        if not isinstance(outcome, HTTPResponse) and has_answer(self.last_exchange()):
            outcome.answered = True
        self.last = outcome
        if self.siblings:
            cell = _step.get()
            if cell is not None:
                cell.last = outcome

    def use(self, jar: Jar | None) -> None:
        """Uses these cookies from here on."""
        if jar is not self.jar:
            self.jar = jar
            self.plain = jar is None and self.shared.on_exchange is None
            if self.shared.session == "iteration":
                self.dirty = True

    def close(self) -> None:
        """Closes idle connections. A waiting call closes its own when it is cancelled."""
        if self.pool is not self.shared.pool:
            self.pool.close()
        for companion in self.companions:
            companion.close()


def checked_method(method: Any) -> str:
    """The method in capitals; raises a `CallError` for what is none."""
    word = method.upper() if isinstance(method, str) else ""
    if _METHOD.fullmatch(word) is None or word == "CONNECT":
        raise CallError(f"{method!r} is not a method this client can send")
    return word


def has_answer(last: LastCall | None) -> bool:
    """Whether the target answered the step whose last call this is: this call, or one before."""
    return last is not None and (isinstance(last, HTTPResponse) or last.answered)


_get = _verb_of("GET")

# `help(self.client.http.get)` shows what the author's interface says.
for _verb in ("get", "head", "options", "post", "put", "patch", "delete", "request"):
    getattr(HTTPClient, _verb).__doc__ = getattr(HTTPVerbs, _verb).__doc__


def refuse_body(verb: str, options: Mapping[str, Any]) -> None:
    """Raises a `TypeError` that names the first option which `verb` does not take; `call` sends a
    body with any method."""
    if not _BODY_ONLY.isdisjoint(options):
        option = next(name for name in options if name in _BODY_ONLY)
        raise TypeError(f"{verb}() sends no body and takes no {option}=; request() sends one")
