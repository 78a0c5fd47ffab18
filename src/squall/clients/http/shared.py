"""What the users of one workflow share in one process: settings, caches, counts.

It prepares arguments before the run, keeps origins and TLS contexts, counts every exchange and
ends those that take too long. It sends nothing itself.
"""

from __future__ import annotations

import asyncio
import ssl
from array import array
from collections.abc import Callable, Mapping
from importlib import import_module
from math import inf
from os import PathLike
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

from squall.api import arguments
from squall.api.arguments import Prepared
from squall.api.errors import CallError, ConfigError, TransportError
from squall.api.http import HTTPResponse, ResponseHead
from squall.api.protocols.proto import Proto
from squall.api.protocols.response import ProtocolResponse
from squall.api.quantities import parse_duration
from squall.clients.calls.address import PreparedAddress, read_address, scheme_of
from squall.clients.http.backlog import AnswerBacklog
from squall.clients.http.body import PreparedFile, data_of, file_of, form_of
from squall.clients.http.connect import PROCESS_LIMITER, ConnectLimiter
from squall.clients.http.connection import ConnectionPool
from squall.clients.http.encode import auth_of, cookies_of, headers_of, opening_of, params_of
from squall.clients.http.failure_reasons import timeout_reason
from squall.clients.http.origin import Origin, Origins, proxy_of
from squall.clients.http.request import compose, default_fields, origin_fields
from squall.clients.http.response_parser import ResponseParser
from squall.clients.http.url import PreparedURL, read_url
from squall.clients.registry import ARGUMENTS, FILE_ARGUMENTS, SCHEMES
from squall.clients.shared.allocator import keep_large_blocks
from squall.clients.shared.connection import LiveExchange
from squall.clients.shared.tls_context import client_context
from squall.clients.shared.tls_transport import fast_transports

# Plain texts that are used as URLs during the run, kept up to this many.
_MOST_TEXTS = 1024
# A sweep rests for this many times its own length.
SWEEP_PAUSE = 20.0
# How long closing waits for peers that do not answer a TLS shutdown.
_GOODBYE_S = 0.5
# The same for programs that clients started, such as a browser.
_PROGRAMS_END_S = 10.0


# Given to `tls_context` by protocols that negotiate nothing in the handshake.
NO_ALPN = ""
# A status has three digits; both parsers refuse any other.
STATUSES = 1000


def _always(now: float) -> bool:
    return True


class HTTPCounters:
    """Counts the exchanges of a share in one protocol since its start.

    sent = answered + (failed - unsent) + reconnects + cancelled + in_flight.
    """

    __slots__ = (
        "bytes_received",
        "bytes_sent",
        "cancelled",
        "connect_samples",
        "connections",
        "failed",
        "messages_received",
        "messages_sent",
        "reconnects",
        "redirects",
        "replies",
        "sent",
        "statuses",
        "tls_samples",
        "unsent",
    )

    def __init__(self) -> None:
        self.sent = 0
        # Answers by status. The hot path counts here instead of in `answered`: an increment in a
        # list costs as much as one of an attribute.
        self.statuses = [0] * STATUSES
        # Answers in protocols that have no status.
        self.replies = 0
        # Ended without a complete answer, for whatever reason ...
        self.failed = 0
        # ... and of these, failed before anything was sent (no connection).
        self.unsent = 0
        # Given up by the author's code or the end of the run, not failed.
        self.cancelled = 0
        self.redirects = 0
        self.reconnects = 0
        self.connections = 0
        self.bytes_sent = 0
        self.bytes_received = 0
        # In protocols whose connections or answers carry messages, such as WebSocket and SSE.
        self.messages_sent = 0
        self.messages_received = 0
        # Seconds that connections took, since the last report.
        self.connect_samples = array("d")
        self.tls_samples = array("d")

    @property
    def answered(self) -> int:
        return sum(self.statuses) + self.replies

    @property
    def in_flight(self) -> int:
        ended = self.answered + self.failed - self.unsent + self.reconnects + self.cancelled
        return self.sent - ended


class Exchange:
    """One exchange, as `on_exchange` receives it: for `--once` and `squall ping`."""

    __slots__ = ("method", "outcome", "peer", "request", "url")

    def __init__(
        self,
        method: str,
        url: str,
        peer: str,
        request: bytes,
        outcome: HTTPResponse | ProtocolResponse | TransportError,
    ) -> None:
        self.method = method
        self.url = url
        # Address and port that answered, empty if there was no connection.
        self.peer = peer
        self.request = request
        self.outcome = outcome


class HTTPShared:
    """The shared state of a share's HTTP clients.

    Set `on_exchange`, `siblings`, `traces` and `limit` before the first client is made: clients
    copy them.
    """

    on_named: Callable[[str, HTTPResponse | TransportError], None] | None = None
    on_exchange: Callable[[Exchange], None] | None = None
    # Whether each request carries the header `traceparent`.
    traces = False
    siblings = False
    closed = False

    def __init__(
        self,
        *,
        host: str = "",
        resolve: Mapping[tuple[str, int], str] | None = None,
        verify: bool = True,
        ca_file: str | None = None,
        certificate: str = "",
        proxy: str = "",
        proxy_auth: str = "",
        timeout_s: float = 60.0,
        redirects: int = 10,
        connections: Literal["vu", "iteration", "request", "shared"] = "vu",
        streams: int = 10,
        pool_size: int = 10,
        negotiates: bool = False,
        session: Literal["iteration", "vu"] = "iteration",
        connect_limit: int = 256,
        limiter: ConnectLimiter | None = None,
        base_dir: Path | None = None,
        default_headers: Mapping[str, str] | None = None,
        most_bytes: int = 64 << 20,
    ) -> None:
        self.host = host
        self.timeout_s = timeout_s
        self.redirects = redirects
        self.connections = connections
        # Users of one connection in protocols with streams, if connections are shared.
        self.streams = streams
        # Connections to each server that is not HTTP, if connections are shared.
        self.pool_size = pool_size
        # Whether `self.client.http` lets servers choose HTTP/2.
        self.negotiates = negotiates
        self.session = session
        self.base_dir = base_dir or Path()
        # `.proto` files of the workflow, for gRPC.
        self.protos: tuple[Proto, ...] = ()
        self.most_bytes = most_bytes
        self.reuse = connections != "request"
        self.limiter = limiter or PROCESS_LIMITER
        self.limiter.limit = connect_limit
        self.pool = ConnectionPool() if connections == "shared" else None
        # Idle connections kept beside the fast slot, per user or for all.
        self.most_idle = 1 << 20 if connections == "shared" else 64

        # Of HTTP/1; those of other protocols are made when their first client is.
        self.counters = HTTPCounters()
        self.counters_by_protocol = {"http": self.counters}
        self.dns_samples = array("d")
        # A request that begins later than this asks `allows` first (an execution lease).
        self.limit = [inf]
        self.allows: Callable[[float], bool] = _always

        # Connections, and in protocols with many exchanges on one of them, these exchanges.
        self.live: set[LiveExchange] = set()
        self.backlog = AnswerBacklog()
        # Of connections that are between two answers.
        self.parsers: list[ResponseParser] = []
        self.heads: dict[bytes, ResponseHead] = {}
        self.caching, self.misses = True, 0
        self.origins = Origins(resolve or {}, proxy_of(proxy, proxy_auth) if proxy else None)
        self.defaults = default_fields((default_headers or {}).items(), close=not self.reuse)
        # The shared state of other protocols, by name; they stand on this one.
        self.protocols: dict[str, Any] = {}
        self.verify, self.ca_file, self.certificate = verify, ca_file, certificate
        self._tls: dict[tuple[str, ...], ssl.SSLContext] = {}
        self._texts: dict[str, PreparedURL] = {}
        self._addresses: dict[str, PreparedAddress] = {}
        self._files: dict[str, PreparedFile] = {}
        self._shortest_s, self._next_sweep = timeout_s, 0.0

    def counters_of(self, protocol: str) -> HTTPCounters:
        found = self.counters_by_protocol.get(protocol)
        if found is None:
            found = self.counters_by_protocol[protocol] = HTTPCounters()
        return found

    def total(self, name: str) -> int:
        """A count over all protocols."""
        return sum([getattr(each, name) for each in self.counters_by_protocol.values()])

    async def prepare(self, kind: type[Prepared], value: Any) -> Prepared:
        """An argument made ready; `ConfigError` names the cause, the caller adds the place."""
        if isinstance(value, Prepared):
            return value
        if value is None:
            raise ConfigError(f"is None; write {kind.__name__} | None if it may be missing")
        try:
            if kind is _URL:
                if scheme_of(value) in SCHEMES:
                    return await self._prepared_address(value)
                url = self.url(value)
                await self.resolve(url.origin)
                if url.origin.tls:
                    self.tls_context()
                return url
            if kind is _FILE:
                return self.file(value)
            if kind in _PLAIN_KINDS:
                return _PLAIN_KINDS[kind](value)
            if kind.__name__ in ARGUMENTS:
                module, name = ARGUMENTS[kind.__name__]
                return getattr(import_module(module), name)(value)
            if kind.__name__ in FILE_ARGUMENTS:
                module, name = FILE_ARGUMENTS[kind.__name__]
                return getattr(import_module(module), name)(value, self)
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"{kind.__name__} needs {error.name}, which is not installed"
            ) from None
        except CallError as error:
            raise ConfigError(error.reason) from error
        raise ConfigError(f"an HTTP call takes no {kind.__name__}")

    async def prepare_proxy(self) -> None:
        """Resolves the name of the proxy; a `ConfigError` names the option."""
        proxy = self.origins.proxy
        if proxy is None:
            return
        try:
            await self.resolve(self.origins.get("http", proxy.host, proxy.port))
        except CallError as error:
            raise ConfigError(f"--proxy: {error.reason}") from error

    def sweep(self, now: float) -> None:
        """Ends exchanges whose time is up: call it every few milliseconds. Costs nothing until the
        first can be due, and takes at most a twentieth of the time."""
        if now < self._next_sweep:
            return
        began = perf_counter()
        # Exchanges that begin from here on are due after the shortest timeout at best.
        next_sweep = now + self._shortest_s
        for conn in tuple(self.live):
            if conn.future is None:
                continue
            due = conn.started + conn.timeout_s - conn.spent_s
            if due <= now:
                conn.fail(timeout_reason(conn.timeout_s), now)
            elif due < next_sweep:
                next_sweep = due
        # With thousands of calls in flight, one is due at every moment: a look at all of them has
        # to pay.
        took_s = perf_counter() - began
        self._next_sweep = max(next_sweep, now + SWEEP_PAUSE * took_s)

    def expect_timeout(self, timeout_s: float, due: float) -> None:
        """Makes the sweep notice a call that is shorter than all before, or has used up part of
        its time."""
        if timeout_s < self._shortest_s:
            self._shortest_s = timeout_s
        if due < self._next_sweep:
            self._next_sweep = due

    async def close(self) -> None:
        """Closes every connection. Waiting calls fail, and so do later ones: a task that the
        author left behind must not send requests that no report would count."""
        self.closed = True
        self.backlog.drain()
        for conn in tuple(self.live):
            if conn.future is None:
                conn.close()
            else:
                conn.fail("client closed", perf_counter())
        # A plain connection is gone in the next turn of the loop; TLS shuts down first.
        deadline = perf_counter() + _GOODBYE_S
        await asyncio.sleep(0)
        while self.live and perf_counter() < deadline:  # noqa: ASYNC110 (each reports by itself)
            await asyncio.sleep(0.005)
        if self.live:
            for conn in tuple(self.live):
                conn.abort()
            # In this turn of the loop they learn of it.
            await asyncio.sleep(0)
        if endings := self.protocols.get("endings"):
            # Of programs that were started for the share: the loop cannot be closed before.
            await asyncio.wait(tuple(endings), timeout=_PROGRAMS_END_S)

    def url(self, text: Any) -> PreparedURL:
        """A URL read once; its name is not resolved here."""
        if text.__class__ is PreparedURL:
            return text
        known = self._texts.get(text) if isinstance(text, str) else None
        if known is None:
            known = read_url(text, self.host, self.origins)
            known.opening = opening_of((*origin_fields(known.origin), *self.defaults))
            if not known.pieces:
                known.get_raw = compose("GET", known, known.target, (), b"", None, None).raw
                known.lane = known.origin
            if len(self._texts) >= _MOST_TEXTS:
                self._texts.clear()
            self._texts[text] = known
        return known

    def address(self, text: Any) -> PreparedAddress:
        """The address of a server that is not HTTP, read once; its name is not resolved here."""
        known = self._addresses.get(text) if isinstance(text, str) else None
        if known is None:
            known = read_address(text, self.origins)
            if len(self._addresses) >= _MOST_TEXTS:
                self._addresses.clear()
            self._addresses[text] = known
        return known

    async def _prepared_address(self, text: str) -> PreparedAddress:
        address = self.address(text)
        await self.resolve(address.origin)
        if address.tls:
            self.tls_context(NO_ALPN)
        return address

    def file(self, value: Any) -> PreparedFile:
        if isinstance(value, PreparedFile):
            return value
        if not isinstance(value, str | PathLike):
            return file_of(value, self.base_dir)
        known = self._files.get(str(value))  # pyright: ignore[reportUnknownArgumentType]
        if known is None:
            known = self._files[str(value)] = file_of(value, self.base_dir)  # pyright: ignore[reportUnknownArgumentType]
        return known

    async def resolve(self, origin: Origin) -> float:
        seconds = await self.origins.resolve(origin)
        if seconds:
            self.dns_samples.append(seconds)
        return seconds

    def tls_context(self, *alpn: str) -> ssl.SSLContext:
        """The context that offers these protocols, HTTP/1.1 if none is given; `NO_ALPN` offers
        nothing."""
        context = self._tls.get(alpn)
        if context is None:
            context = client_context(
                verify=self.verify, ca_file=self.ca_file, certificate=self.certificate
            )
            if alpn != (NO_ALPN,):
                context.set_alpn_protocols(list(alpn) or ["http/1.1"])
            keep_large_blocks()
            fast_transports()
            self._tls[alpn] = context
        return context

    def seconds(self, timeout: str | float) -> float:
        try:
            return parse_duration(timeout, "timeout")
        except ConfigError as error:
            raise CallError(str(error)) from error


_URL, _HEADERS, _PARAMS, _COOKIES, _DATA, _FORM, _AUTH, _FILE = arguments.argument_kinds()[:8]
_PLAIN_KINDS: dict[type[Prepared], Callable[[Any], Prepared]] = {
    _HEADERS: headers_of,
    _PARAMS: params_of,
    _COOKIES: cookies_of,
    _DATA: data_of,
    _FORM: form_of,
    _AUTH: auth_of,
}
