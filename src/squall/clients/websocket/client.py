"""The WebSocket client of one virtual user: `self.client.websocket`.

It stands on the user's HTTP client, which has the cookies, the limit of the running step and the
last exchange. Opening a session counts as a connection, not as a request; `ask` is a request.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Hashable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from time import perf_counter, time
from typing import Any, Unpack

from squall.api.arguments import URL
from squall.api.errors import CallError, TransportError
from squall.api.websocket import Message, SessionOptions, WebsocketResponse, WebsocketSession
from squall.clients.http.call import build
from squall.clients.http.client import HTTPClient
from squall.clients.http.connect import Dial, dial
from squall.clients.http.cookies import stored
from squall.clients.http.encode import plain_text
from squall.clients.http.request import Request
from squall.clients.websocket.connection import WebsocketConnection
from squall.clients.websocket.frames import KeptFrames
from squall.clients.websocket.session import OpenSession

_MASKS = ("kept", "fresh")
# Of the way to a proxy, or replaced by the upgrade.
_NOT_SENT = frozenset({"proxy-authorization", "connection", "upgrade"})


class WebsocketClient:
    """Opens the sessions of one user, and keeps those of `ask`."""

    __slots__ = ("_frames", "_http", "_idle")

    def __init__(self, http: HTTPClient) -> None:
        self._http = http
        # Sessions without a waiting call, by what they were opened with.
        self._idle: dict[Hashable, list[OpenSession]] = {}
        self._frames: KeptFrames = http.shared.protocols.setdefault("websocket", KeptFrames())
        http.companions = (*http.companions, self)

    def open(
        self, url: URL, **options: Unpack[SessionOptions]
    ) -> AbstractAsyncContextManager[WebsocketSession]:
        return self._session(url, options)

    @asynccontextmanager
    async def _session(self, url: URL, options: Any) -> AsyncGenerator[WebsocketSession]:
        session = await self._opened(self._request(url, options), options)
        try:
            yield session
        except BaseException:
            session.connection.abort()
            raise
        await session.close()

    async def ask(
        self, url: URL, message: Message, **options: Unpack[SessionOptions]
    ) -> WebsocketResponse:
        key: Hashable = url
        request = None
        if options:
            request = self._request(url, options)
            key = (request.origin, request.target, tuple(options.get("protocols", ())))
        idle = self._idle.get(key)
        session = None
        while idle and session is None:
            # A session that the server closed meanwhile is forgotten without a failure.
            found = idle.pop()
            session = found if found.is_open else None
        if session is None:
            session = await self._opened(request or self._request(url, options), options)
        try:
            return await session.ask(message, timeout=options.get("timeout"))
        finally:
            if not session.is_open:
                pass
            elif self._http.shared.reuse:
                self._idle.setdefault(key, []).append(session)
            else:
                session.leave()

    def begin_iteration(self) -> None:
        """Closes sessions that live for one iteration."""
        if self._http.shared.connections == "iteration":
            self.close()

    def close(self) -> None:
        idle, self._idle = self._idle, {}
        for sessions in idle.values():
            for session in sessions:
                session.leave()

    def _request(self, url: URL, options: SessionOptions) -> Request:
        shared = self._http.shared
        unknown = options.keys() - SessionOptions.__optional_keys__
        if unknown:
            known = ", ".join(sorted(SessionOptions.__optional_keys__))
            raise TypeError(f"a session takes no {min(unknown)}=; it takes {known}")
        named = {
            name: options.get(name) for name in ("headers", "params", "cookies", "auth", "path")
        }
        return build(shared, "GET", shared.url(url), **named)

    async def _opened(self, request: Request, options: SessionOptions) -> OpenSession:
        http = self._http
        shared = http.shared
        timeout = options.get("timeout")
        timeout_s = http.timeout_s if timeout is None else shared.seconds(timeout)
        mask = options.get("mask", "kept")
        if mask not in _MASKS:
            raise CallError(f'mask={mask!r}: write "kept" or "fresh"')
        address = request.address
        address = f"ws{address.removeprefix('http')}"
        try:
            conn = await self._connected(request, options, timeout_s)
        except TransportError as error:
            counters = shared.counters_of("websocket")
            counters.failed += 1
            counters.unsent += 1
            error.protocol = "websocket"
            error.request = f"WEBSOCKET {address}"
            http.note(error)
            raise
        upgraded_s = perf_counter() - conn.started
        assert conn.head is not None
        cookies = conn.head.headers.get_all("set-cookie")
        if cookies:
            http.use(stored(http.jar, cookies, request.origin, request.path, time()))
        kept = self._frames if mask == "kept" else None
        limit_s = None if timeout is None else timeout_s
        session = OpenSession(http, conn, address, kept, limit_s)
        session.setup = (*(conn.setup or (0.0, 0.0, 0.0)), upgraded_s)
        return session

    async def _connected(
        self, request: Request, options: SessionOptions, timeout_s: float
    ) -> WebsocketConnection:
        shared = self._http.shared
        began = perf_counter()
        conn = await dial(
            shared,
            Dial(request.origin, tunnels=True),
            lambda: WebsocketConnection(shared),
            self._http.vu_index,
            timeout_s,
            timeout_s,
        )
        protocols = ", ".join([plain_text(name) for name in options.get("protocols", ())])
        spent_s = perf_counter() - began
        future = conn.upgrade(self._opening(request), protocols.encode(), timeout_s, spent_s)
        try:
            await future
        except BaseException:
            del future
            conn.abandon()
            raise
        return conn

    def _opening(self, request: Request) -> bytes:
        """The request as it goes to the server itself, also where a proxy is on the way."""
        jar = self._http.jar
        found = b"" if jar is None else jar.header(request.origin, request.path, time())
        cookie = request.cookies(found)
        lines = [line for name, line in request.fields if name not in _NOT_SENT]
        if cookie:
            lines.append(b"Cookie: %b\r\n" % cookie)
        return b"GET %b HTTP/1.1\r\n%b\r\n" % (request.target, b"".join(lines))
