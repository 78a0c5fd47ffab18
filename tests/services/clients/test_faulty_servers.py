"""Every client against every way in which a server can fail: a reason, no hang, nothing left over.

The servers are scripts of bytes. What a protocol says before it fails is its `beginning`: the head
of an answer and a part of a body that announces more.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import trustme

from squall.api.errors import TransportError
from squall.clients.http import HTTPClient, HTTPShared
from squall.clients.http2 import frames
from squall.clients.registry import make_client
from tests.lab.ports import free_ports
from tests.services.http.lab.servers import Peer, on_uvloop, serve, swept

# Of calls that nothing else ends; others have a limit that a busy machine does not reach.
SHORT_S, LONG_S = 0.4, 60.0
_SETTINGS = frames.settings_frame({})


def _head(*pairs: tuple[bytes, bytes]) -> bytes:
    """:status 200, and literals without names in a table."""
    fields = [b"\0%b%b%b%b" % (bytes([len(a)]), a, bytes([len(b)]), b) for a, b in pairs]
    return frames.frame(frames.HEADERS, frames.END_HEADERS, 1, b"\x88" + b"".join(fields))


def _part(data: bytes) -> bytes:
    return frames.frame(frames.DATA, 0, 1, data)


async def _http(http: HTTPClient, url: str) -> Any:
    return await http.get(f"{url}/")


async def _http2(http: HTTPClient, url: str) -> Any:
    return await make_client("http2", http).get(f"{url}/")


async def _http3(http: HTTPClient, url: str) -> Any:
    return await make_client("http3", http).get(f"{url.replace('http:', 'https:')}/")


async def _websocket(http: HTTPClient, url: str) -> Any:
    return await make_client("websocket", http).ask(f"{url}/", "hello")


async def _sse(http: HTTPClient, url: str) -> Any:
    return await make_client("sse", http).listen(f"{url}/", events=2, reconnect=False)


async def _graphql(http: HTTPClient, url: str) -> Any:
    return await make_client("graphql", http).query(f"{url}/graphql", "{ a }")


async def _graphql2(http: HTTPClient, url: str) -> Any:
    return await make_client("graphql2", http).query(f"{url}/graphql", "{ a }")


async def _subscription(http: HTTPClient, url: str) -> Any:
    client = make_client("graphql", http)
    async with client.subscribe(f"{url}/graphql", "subscription { a }") as events:
        return await events.receive()


async def _grpc(http: HTTPClient, url: str) -> Any:
    return await make_client("grpc", http).unary(f"{url}/a.B/C", b"")


async def _grpc_stream(http: HTTPClient, url: str) -> Any:
    return await make_client("grpc", http).stream(f"{url}/a.B/C", [b"", b""])


async def _grpc_open(http: HTTPClient, url: str) -> Any:
    async with make_client("grpc", http).open(f"{url}/a.B/C") as stream:
        await stream.send(b"")
        return await stream.finish()


class Client(NamedTuple):
    call: Callable[[HTTPClient, str], Awaitable[Any]]
    beginning: bytes
    """A head, and a body that lacks its end."""


_HTTP1 = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"
_GRPC = _SETTINGS + _head((b"content-type", b"application/grpc")) + _part(b"\0\0\0\0\x64abc")
_UPGRADED = b"HTTP/1.1 101 Switching"
_EVENTS = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: 1\n\ndat"
_PLAIN2 = _SETTINGS + _head((b"content-length", b"100")) + _part(b"{")

CLIENTS = {
    "http": Client(_http, _HTTP1),
    "http2": Client(_http2, _PLAIN2),
    "websocket": Client(_websocket, _UPGRADED),
    "sse": Client(_sse, _EVENTS),
    "graphql": Client(_graphql, _HTTP1),
    "graphql2": Client(_graphql2, _PLAIN2),
    "subscription": Client(_subscription, _UPGRADED),
    "grpc": Client(_grpc, _GRPC),
    "grpc stream": Client(_grpc_stream, _GRPC),
    "grpc open": Client(_grpc_open, _GRPC),
}
_LOST = "connection closed before a response|connection reset|connection closed without a goodbye"
_CUT = "response cut off|connection reset|stream ended by the server|connection closed"
_LATE = rf"timeout after {SHORT_S} s"


async def _asked(peer: Peer) -> None:
    """Waits for the first bytes of a request."""
    await peer.reader.read(65536)


async def _resets(peer: Peer, beginning: bytes) -> None:
    peer.reset()


async def _closes(peer: Peer, beginning: bytes) -> None:
    pass


async def _stalls(peer: Peer, beginning: bytes) -> None:
    while await peer.reader.read(65536):
        pass


async def _stalls_in_the_body(peer: Peer, beginning: bytes) -> None:
    await _asked(peer)
    await peer.send(beginning)
    await _stalls(peer, beginning)


async def _truncates(peer: Peer, beginning: bytes) -> None:
    await _asked(peer)
    await peer.send(beginning[: len(beginning) // 2])


async def _dies_in_the_body(peer: Peer, beginning: bytes) -> None:
    await _asked(peer)
    await peer.send(beginning)
    # What the client has not read is lost with a reset.
    await asyncio.sleep(0.05)
    peer.reset()


async def _ends_in_the_body(peer: Peer, beginning: bytes) -> None:
    await _asked(peer)
    await peer.send(beginning)


async def _garbage(peer: Peer, beginning: bytes) -> None:
    await _asked(peer)
    await peer.send(b"\x00\xff\x13garbage that no protocol has ever heard of\r\n\r\n" * 20)
    await _stalls(peer, beginning)


async def _garbage_later(peer: Peer, beginning: bytes) -> None:
    await _asked(peer)
    await peer.send(beginning + b"\xff" * 200)


SERVERS: dict[str, tuple[Callable[[Peer, bytes], Awaitable[None]], str]] = {
    "resets at accept": (_resets, _LOST),
    "closes at accept": (_closes, _LOST),
    "stalls": (_stalls, _LATE),
    "stalls in the body": (_stalls_in_the_body, _LATE),
    "truncates": (_truncates, f"{_LOST}|{_CUT}|malformed|not an HTTP"),
    "dies in the body": (_dies_in_the_body, _CUT),
    "ends in the body": (_ends_in_the_body, _CUT),
    "sends garbage": (_garbage, "not an HTTP|does not speak HTTP/2|HTTP/2 [A-Z_]+"),
    "sends garbage in the body": (_garbage_later, ".+"),
}


def _sockets() -> set[str]:
    found: set[str] = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
        if target.startswith("socket:"):
            found.add(target)
    return found


@asynccontextmanager
async def _nothing_is_left() -> AsyncGenerator[None]:
    """No task and no socket outlives the block."""
    tasks, sockets = asyncio.all_tasks(), _sockets()
    yield
    for _ in range(3000):
        if asyncio.all_tasks() <= tasks and _sockets() <= sockets:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"left over: {asyncio.all_tasks() - tasks} {_sockets() - sockets}")


async def _failure(client: Client, http: HTTPClient, url: str) -> str:
    async with asyncio.timeout(100):
        try:
            answer = await client.call(http, url)
        except TransportError as error:
            return error.reason
        # Answers of gRPC and GraphQL have failures of their own.
        return answer.failure if hasattr(answer, "failure") else ""


# A body of plain HTTP may be any bytes.
_PAIRS = [
    (protocol, server)
    for protocol in CLIENTS
    for server in SERVERS
    if (protocol, server) != ("http", "sends garbage in the body")
]


@on_uvloop
@pytest.mark.parametrize(("protocol", "server"), _PAIRS)
async def test_a_faulty_server_is_a_failure_by_reason(protocol: str, server: str) -> None:
    client, (script, wanted) = CLIENTS[protocol], SERVERS[server]
    async with _nothing_is_left():
        async with serve(lambda peer: script(peer, client.beginning)) as raw:
            shared = HTTPShared(timeout_s=SHORT_S if wanted == _LATE else LONG_S)
            async with swept(shared) as http:
                reason = await _failure(client, http, raw.url)
                http.close()
            for name, counters in shared.counters_by_protocol.items():
                assert counters.in_flight == 0, name
    assert re.search(wanted, reason), reason


@on_uvloop
@pytest.mark.parametrize("protocol", [*CLIENTS, "http3"])
async def test_no_server_is_a_failure_by_reason(protocol: str) -> None:
    client = CLIENTS.get(protocol, Client(_http3, b""))
    (port,) = free_ports(1)
    async with _nothing_is_left():
        limit_s = SHORT_S if protocol == "http3" else LONG_S
        async with swept(HTTPShared(timeout_s=limit_s)) as http:
            reason = await _failure(client, http, f"http://127.0.0.1:{port}")
    # A port of UDP that nobody listens on may stay silent.
    assert re.search("connection refused" if protocol != "http3" else "refused|timeout", reason)


@on_uvloop
@pytest.mark.parametrize("protocol", [*CLIENTS, "http3"])
@pytest.mark.parametrize("answers", [False, True])
async def test_no_tls_is_a_failure_by_reason(protocol: str, answers: bool) -> None:
    """The server never answers the handshake, or answers with something else."""
    client = CLIENTS.get(protocol, Client(_http3, b""))

    async def script(peer: Peer) -> None:
        await _asked(peer)
        if answers:
            await peer.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await _stalls(peer, b"")

    async with _nothing_is_left():
        async with serve(script) as raw:
            silent = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            silent.bind(("127.0.0.1", raw.port))
            wanted = "does not speak TLS" if answers and protocol != "http3" else "timeout after"
            limit_s = SHORT_S if wanted == "timeout after" else LONG_S
            async with swept(HTTPShared(timeout_s=limit_s)) as http:
                reason = await _failure(client, http, raw.url.replace("http", "https"))
            silent.close()
    assert re.search(wanted, reason), reason


@on_uvloop
@pytest.mark.parametrize("protocol", CLIENTS)
async def test_a_wrong_certificate_is_a_failure_by_reason(protocol: str, tmp_path: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority = trustme.CA()
    authority.issue_cert("elsewhere.test").configure_cert(context)
    context.set_alpn_protocols(["h2", "http/1.1"])
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    client = CLIENTS[protocol]
    for ca_file in (None, str(tmp_path / "ca.pem")):
        async with _nothing_is_left():
            async with serve(lambda peer: _stalls(peer, b""), context) as raw:
                async with swept(HTTPShared(timeout_s=LONG_S, ca_file=ca_file)) as http:
                    reason = await _failure(client, http, raw.url.replace("http", "https"))
        assert "certificate verify failed" in reason


_WHOLE = {
    "http": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
    "graphql": b'HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\n{"data":{}}',
    "http2": _SETTINGS + _head() + frames.frame(frames.DATA, frames.END_STREAM, 1, b"ok"),
    "graphql2": _SETTINGS
    + _head()
    + frames.frame(frames.DATA, frames.END_STREAM, 1, b'{"data":1}'),
    "grpc": _GRPC[: -len(_part(b"\0\0\0\0\x64abc"))]
    + _part(b"\0\0\0\0\0")
    + frames.frame(frames.HEADERS, 5, 1, b"\0\x0bgrpc-status\x010"),
}


@on_uvloop
@pytest.mark.parametrize("protocol", _WHOLE)
async def test_a_server_that_closes_between_two_calls_is_asked_again(protocol: str) -> None:
    """The second call opens a connection; no failure is counted."""

    async def script(peer: Peer) -> None:
        await _asked(peer)
        await peer.send(_WHOLE[protocol])

    async with _nothing_is_left():
        async with serve(script) as raw:
            async with swept(HTTPShared(timeout_s=LONG_S)) as http:
                for number in range(1, 4):
                    assert await _failure(CLIENTS[protocol], http, raw.url) == ""
                    for _ in range(3000):
                        if not http.shared.live:
                            break
                        await asyncio.sleep(0.01)
                    assert raw.connections == number
                http.close()
