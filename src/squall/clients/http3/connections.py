"""Finds or opens the connection of a call, by the connection policy of the workflow.

A user has one connection per origin, and calls that run at the same time are streams of it. With
`connections = "shared"`, `streams` users share one connection; with `"request"` each call has its
own. A call waits while the peer allows no further stream.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from time import perf_counter
from typing import Any, cast

from qh3.quic.configuration import QuicConfiguration
from qh3.quic.connection import QuicConnection

from squall.api.errors import CallError, TransportError
from squall.clients.http.connect import Dial, dial
from squall.clients.http.failure_reasons import timeout_reason
from squall.clients.http.origin import Address, Origin
from squall.clients.http.request import Request
from squall.clients.http.shared import HTTPShared
from squall.clients.http.url import PreparedURL
from squall.clients.http3.connection import HTTP3Connection
from squall.clients.http3.headers import Fields, ResponseHeads

ConnectionKey = tuple[Origin, int]

# The kernel's buffer of a socket, where it allows that much: a shared connection may receive the
# answers of all its streams between two turns of the loop, and what does not fit is lost.
_BUFFER_BYTES = 1 << 20
# As long as browsers keep a silent connection.
_IDLE_S = 30.0
# More than a response needs; the library gives room again while it reads.
_WINDOW = 16 << 20


class HTTP3Connections:
    """The connections of one user, or of all users if they share."""

    __slots__ = ("by_key", "opening")

    def __init__(self) -> None:
        self.by_key: dict[ConnectionKey, HTTP3Connection] = {}
        # Calls that need the same connection wait here for the one that opens it.
        self.opening: dict[ConnectionKey, asyncio.Future[None]] = {}

    def close(self) -> None:
        for conn in tuple(self.by_key.values()):
            # Calls that still run keep it; it closes after the last one.
            conn.drain()
            if not conn.streams:
                conn.close()


class HTTP3Shared:
    """What the HTTP/3 clients of a share have in common."""

    __slots__ = ("_settings", "connections", "counters", "heads", "plain", "shared", "users")

    def __init__(self, shared: HTTPShared) -> None:
        self.shared = shared
        self.counters = shared.counters_of("http3")
        self.heads = ResponseHeads()
        self.connections = HTTP3Connections() if shared.connections == "shared" else None
        # The request of a plain get of a prepared URL, once it was sent.
        self.plain: dict[PreparedURL, tuple[Request, Fields]] = {}
        # Clients made so far.
        self.users = 0
        self._settings: QuicConfiguration | None = None

    @classmethod
    def of(cls, shared: HTTPShared) -> HTTP3Shared:
        found = shared.protocols.get("http3")
        if found is None:
            found = shared.protocols["http3"] = cls(shared)
        return found

    def configuration(self, origin: Origin) -> QuicConfiguration:
        """Settings of a connection. Without a session ticket there is no 0-RTT."""
        known = self._settings
        if known is None:
            known = self._settings = self._read_settings()
        return QuicConfiguration(
            alpn_protocols=["h3"],
            # Also for an address: the certificate must be valid for it.
            server_name=origin.host,
            idle_timeout=_IDLE_S,
            max_data=_WINDOW,
            max_stream_data=_WINDOW,
            cadata=known.cadata,
            verify_mode=known.verify_mode,
            certificate=known.certificate,
            certificate_chain=known.certificate_chain,
            private_key=known.private_key,
        )

    def warm_up(self) -> None:
        """Reads the authorities and makes a connection that is never sent anywhere: the library
        loads parts of itself with the first one."""
        self._settings = settings = self._read_settings()
        QuicConnection(configuration=settings).connect(("127.0.0.1", 443), now=0.0)

    def _read_settings(self) -> QuicConfiguration:
        shared = self.shared
        settings = QuicConfiguration(verify_mode=ssl.CERT_NONE)
        # Reports a file that cannot be used in the words of the other clients.
        context = shared.tls_context("h3")
        if shared.verify:
            settings.verify_mode = ssl.CERT_REQUIRED
            authorities = context.get_ca_certs(binary_form=True)
            settings.cadata = "".join(map(ssl.DER_cert_to_PEM_cert, authorities)).encode()
        if shared.certificate:
            try:
                load = cast("Callable[[bytes, bytes], None]", cast("Any", settings).load_cert_chain)
                load(*_certificate_and_key(shared.certificate))
            except Exception as error:
                # The library raises whatever its parser met.
                raise CallError(f"cannot use the client certificate in HTTP/3: {error}") from error
        return settings


class HTTP3Connector:
    """Gets connections for the calls of one user."""

    __slots__ = ("_http3", "_place", "_vu_index", "open")

    def __init__(self, http3: HTTP3Shared, vu_index: int) -> None:
        self._http3 = http3
        self._vu_index = vu_index
        self.open = http3.connections or HTTP3Connections()
        # Users that share take the places of a connection in the order in which they came.
        self._place = http3.users // http3.shared.streams if http3.connections else 0
        http3.users += 1

    def free(self, url: PreparedURL) -> HTTP3Connection | None:
        """An open connection for a plain get, if it may open a stream at once."""
        if url.lane is None:
            return None
        conn = self.open.by_key.get((url.lane, self._place))
        return conn if conn is not None and not conn.is_full else None

    async def get(
        self, origin: Origin, timeout_s: float, spent_s: float
    ) -> tuple[HTTP3Connection, bool]:
        """(A connection that may open a stream, whether it was open before)."""
        began = perf_counter()
        if not self._http3.shared.reuse:
            return await self._opened(origin, timeout_s, timeout_s - spent_s), False
        key = (origin, self._place)
        known = self.open
        while True:
            conn = known.by_key.get(key)
            if conn is not None and not conn.is_full:
                return conn, True
            left_s = max(timeout_s - spent_s - (perf_counter() - began), 0.0)
            if conn is not None:
                turn = asyncio.get_running_loop().create_future()
                conn.waiting.append(turn)
                await _turn(turn, timeout_s, left_s, began)
                continue
            opening = known.opening.get(key)
            if opening is not None:
                await _turn(asyncio.shield(opening), timeout_s, left_s, began)
                continue
            opening = known.opening[key] = asyncio.get_running_loop().create_future()
            try:
                conn = await self._opened(origin, timeout_s, left_s)
                if conn.is_usable:
                    known.by_key[key] = conn
            finally:
                del known.opening[key]
                opening.set_result(None)
            return conn, False

    async def _opened(self, origin: Origin, timeout_s: float, left_s: float) -> HTTP3Connection:
        http3 = self._http3
        if not origin.tls:
            raise CallError(f"HTTP/3 is always encrypted; write https:// instead of {origin.text}")
        if origin.proxy is not None:
            raise CallError("HTTP/3 does not go through a proxy; run without --proxy")
        configuration = http3.configuration(origin)
        return await dial(
            http3.shared,
            Dial(origin, opens=_open),
            lambda: HTTP3Connection(http3.shared, http3.heads, origin, configuration, self._gone),
            self._vu_index,
            timeout_s,
            max(left_s, 0.0),
        )

    def _gone(self, conn: HTTP3Connection) -> None:
        key = (conn.origin, self._place)
        if self.open.by_key.get(key) is conn:
            del self.open.by_key[key]


async def _open(
    shared: HTTPShared, way: Dial, conn: HTTP3Connection, address: Address
) -> HTTP3Connection:
    """Makes the QUIC handshake with one address. Counts as TLS: QUIC has no connect of its own."""
    where = (address.ip, way.origin.dial_port)
    sock = socket.socket(address.family, socket.SOCK_DGRAM)
    began = perf_counter()
    try:
        sock.setblocking(False)
        for buffer in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            sock.setsockopt(socket.SOL_SOCKET, buffer, _BUFFER_BYTES)
        # A connected socket learns from the kernel that the port is closed.
        sock.connect(where)
        await asyncio.get_running_loop().create_datagram_endpoint(lambda: conn, sock=sock)
    except BaseException:
        sock.close()
        raise
    try:
        await conn.handshake(where)
    except BaseException as error:
        conn.abort()
        if isinstance(error, TransportError):
            error.started, error.ended = began, perf_counter()
        raise
    took_s = perf_counter() - began
    conn.counters.tls_samples.append(took_s)
    conn.setup = (0.0, 0.0, took_s)
    return conn


def _certificate_and_key(pem: str) -> tuple[bytes, bytes]:
    """A text of certificates and one private key, taken apart."""
    blocks = pem.replace("\r\n", "\n").split("-----BEGIN ")
    texts = ["-----BEGIN " + block for block in blocks[1:]]
    keys = [text for text in texts if "PRIVATE KEY-----" in text.partition("\n")[0]]
    certificates = [text for text in texts if text not in keys]
    return "".join(certificates).encode(), "".join(keys).encode()


async def _turn(
    turn: asyncio.Future[None],
    timeout_s: float,
    left_s: float,
    began: float,
) -> None:
    try:
        async with asyncio.timeout(left_s):
            await turn
    except TimeoutError:
        raise TransportError(
            timeout_reason(timeout_s), started=began, ended=perf_counter()
        ) from None
