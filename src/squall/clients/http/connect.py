"""Opens connections: how many at once, to which address, with times taken apart.

Name, TCP and TLS are timed separately and are not part of a request's latency. Too many
connects at once would measure retransmitted SYNs, so a process has one limit for all.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

from squall.api.errors import TransportError
from squall.clients.http.backlog import CROWD_MIN, CrowdConnection
from squall.clients.http.connection import ConnectionPool, HTTPConnection
from squall.clients.http.failure_reasons import connect_reason, timeout_reason
from squall.clients.http.origin import Address, Origin, Proxy
from squall.clients.shared.connection import DialedConnection
from squall.clients.shared.tls_transport import open_tls

if TYPE_CHECKING:
    from squall.clients.http.shared import HTTPShared

_LONGEST_TUNNEL_HEAD = 16 * 1024

C = TypeVar("C", bound=DialedConnection)


class ConnectLimiter:
    """Allows at most `limit` connects at a time; waiters are served in order."""

    __slots__ = ("_busy", "_waiting", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._busy = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    def queue(self) -> asyncio.Future[None] | None:
        """None if the connect may begin now; else what to wait for. A waiter that is cancelled must
        `leave`."""
        if self._busy < self.limit and not self._waiting:
            self._busy += 1
            return None
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        return turn

    def leave(self, turn: asyncio.Future[None]) -> None:
        if turn.done() and not turn.cancelled():
            # Cancelled after it got its turn: pass the turn on.
            self.release()
        else:
            self._waiting.remove(turn)

    def release(self) -> None:
        self._busy -= 1
        while self._waiting and self._busy < self.limit:
            turn = self._waiting.popleft()
            if not turn.done():
                self._busy += 1
                turn.set_result(None)


PROCESS_LIMITER = ConnectLimiter(256)


class Dial(NamedTuple):
    """How to reach a peer, apart from its addresses."""

    origin: Origin
    alpn: tuple[str, ...] = ()
    """The protocols to offer in the TLS handshake instead of HTTP/1.1."""
    tunnels: bool = False
    """Whether a proxy must open a tunnel for plain connections, too: only HTTP/1 goes without."""
    opens: Callable[[HTTPShared, Dial, Any, Address], Awaitable[Any]] | None = None
    """Opens a connection that does not run over TCP."""


def connect(
    shared: HTTPShared,
    pool: ConnectionPool,
    origin: Origin,
    index: int,
    timeout_s: float,
    left_s: float,
) -> Coroutine[Any, Any, HTTPConnection]:
    """Opens a connection that is not in its pool yet. `index` spreads users over addresses."""
    kind = HTTPConnection if len(shared.live) < CROWD_MIN else CrowdConnection
    return dial(shared, Dial(origin), lambda: kind(shared, pool, origin), index, timeout_s, left_s)


async def dial(
    shared: HTTPShared,
    way: Dial,
    make: Callable[[], C],
    index: int,
    timeout_s: float,
    left_s: float,
) -> C:
    """Opens a connection of any protocol; `make` returns what receives its bytes."""
    if shared.closed:
        raise TransportError("client closed")
    limiter, origin = shared.limiter, way.origin
    dns_s = 0.0
    if not origin.addresses:
        dns_s = await shared.resolve(origin)
    if (turn := limiter.queue()) is not None:
        try:
            await turn
        except BaseException:
            limiter.leave(turn)
            raise
    began = perf_counter()
    try:
        async with asyncio.timeout(left_s):
            conn = await _first_that_answers(shared, way, make, index)
    except TimeoutError as error:
        reason = connect_reason(error, origin.where) if error.errno else timeout_reason(timeout_s)
        raise TransportError(reason, started=began, ended=perf_counter()) from None
    except (OSError, ssl.SSLError) as error:
        reason = connect_reason(error, origin.where)
        raise TransportError(reason, started=began, ended=perf_counter()) from error
    finally:
        limiter.release()
    if conn.transport is None:  # pyright: ignore[reportUnnecessaryComparison]
        # The peer accepted and closed before this task ran again.
        raise TransportError(
            "connection closed before a response", started=began, ended=perf_counter()
        )
    if dns_s and conn.setup is not None:
        conn.setup = (dns_s, conn.setup[1], conn.setup[2])
    return conn


async def _first_that_answers(
    shared: HTTPShared, way: Dial, make: Callable[[], C], index: int
) -> C:
    addresses = way.origin.addresses
    first = index % len(addresses)
    failure: OSError | None = None
    for address in (*addresses[first:], *addresses[:first]):
        try:
            return await (way.opens or _open)(shared, way, make(), address)
        except (ConnectionRefusedError, TimeoutError, OSError) as error:
            # Another address of the name may answer ("localhost" often has two). A failed TLS
            # handshake would only fail again.
            if isinstance(error, ssl.SSLError):
                raise
            failure = failure or error
    assert failure is not None
    raise failure


async def _open(shared: HTTPShared, way: Dial, conn: C, address: Address) -> C:
    loop = asyncio.get_running_loop()
    origin = way.origin
    # What has no `opens` of its own receives the bytes of a stream.
    protocol = cast("asyncio.Protocol", conn)
    try:
        began = perf_counter()
        if not origin.tls and (origin.proxy is None or not way.tunnels):
            await loop.create_connection(lambda: protocol, address.ip, origin.dial_port)
            connected = ready = perf_counter()
        else:
            sock = await _connected_socket(address, origin.dial_port)
            if origin.proxy is not None:
                await _tunnel(sock, origin, origin.proxy)
            connected = ready = perf_counter()
            if origin.tls:
                await open_tls(lambda: protocol, sock, shared.tls_context(*way.alpn), origin.host)
                ready = perf_counter()
                conn.counters.tls_samples.append(ready - connected)
            else:
                await loop.create_connection(lambda: protocol, sock=sock)
    except BaseException:
        # Cancelled after `connection_made`, the loop may drop the transport without calling
        # `connection_lost`.
        shared.live.discard(conn)
        raise
    conn.counters.connect_samples.append(connected - began)
    conn.setup = (0.0, connected - began, ready - connected)
    return conn


async def _tunnel(sock: socket.socket, origin: Origin, proxy: Proxy) -> None:
    """Asks a proxy for a tunnel to an origin (RFC 9110, 9.3.6). Closes the socket if it gets
    none."""
    try:
        await _ask_for_tunnel(sock, origin, proxy)
    except BaseException:
        sock.close()
        raise


async def _ask_for_tunnel(sock: socket.socket, origin: Origin, proxy: Proxy) -> None:
    began = perf_counter()
    loop = asyncio.get_running_loop()
    host = f"[{origin.host}]" if ":" in origin.host else origin.host
    place = f"{host}:{origin.port}".encode()
    await loop.sock_sendall(
        sock, b"CONNECT %b HTTP/1.1\r\nHost: %b\r\n%b\r\n" % (place, place, proxy.auth)
    )
    head = b""
    # Byte by byte, because what follows the head belongs to TLS.
    while not head.endswith(b"\r\n\r\n"):
        more = await loop.sock_recv(sock, 1)
        if not more or len(head) > _LONGEST_TUNNEL_HEAD:
            raise TransportError("proxy closed the connection", started=began, ended=perf_counter())
        head += more
    status = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ", 1)[-1].strip()
    if not status.startswith("2"):
        raise TransportError(
            f"proxy refused the tunnel: {status}", started=began, ended=perf_counter()
        )


async def _connected_socket(address: Address, port: int) -> socket.socket:
    sock = socket.socket(address.family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, (address.ip, port))
    except BaseException:
        sock.close()
        raise
    return sock
