"""The HTTP port of a node: GET /metrics, /healthz (is it alive), /readyz (may it be used).

It answers one request per connection and closes. It runs on the `Network` interface, so a
simulated node has it too. Memory is bounded: a slow, silent or endless client is cut off, and
a connection over the limit gets 503.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from squall.runtime.interfaces import Address, Connection, Listener, Network
from squall.runtime.metrics import CONTENT_TYPE, Registry, load_text_format

PLAIN = "text/plain; charset=utf-8"
REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


@dataclass(frozen=True)
class Probes:
    """Each returns "" if all is well, else the reason in a few words."""

    alive: Callable[[], str] = lambda: ""
    ready: Callable[[], str] = lambda: ""


@dataclass(frozen=True)
class HttpLimits:
    connections: int = 32
    request_timeout_s: float = 5.0
    request_head_max_bytes: int = 8 * 1024


@dataclass(frozen=True)
class _Answer:
    status: int
    body: str
    content_type: str = PLAIN


class MetricsServer:
    """Serves the metrics and probes of one node; `start` it, then `close` it."""

    def __init__(
        self,
        network: Network,
        registry: Registry,
        probes: Probes | None = None,
        limits: HttpLimits | None = None,
    ) -> None:
        self._network = network
        self._registry = registry
        self._probes = probes or Probes()
        self.limits = limits or HttpLimits()
        self._open: dict[_Request, None] = {}
        self._listener: Listener | None = None

    async def start(self, address: Address) -> Address:
        """Listens; returns the address with the real port in place of 0."""
        load_text_format()
        self._listener = await self._network.listen(address, lambda: _Request(self))
        return self._listener.address

    async def close(self) -> None:
        """Accepts no new requests and aborts those under way."""
        if self._listener is not None:
            await self._listener.close()
            self._listener = None
        for request in list(self._open):
            request.cut()

    def admit(self, request: _Request) -> bool:
        self._open[request] = None
        return len(self._open) <= self.limits.connections

    def forget(self, request: _Request) -> None:
        self._open.pop(request, None)

    def answer(self, head: bytes) -> tuple[_Answer, bool]:
        """The answer, and whether to send its body (not for HEAD)."""
        words = head.partition(b"\r\n")[0].split(b" ")
        if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
            return _Answer(400, "this is a port for HTTP/1.1\n"), True
        method, target = words[0], words[1].partition(b"?")[0]
        if method not in (b"GET", b"HEAD"):
            return _Answer(405, "only GET and HEAD\n"), True
        return self._look_up(target), method == b"GET"

    def _look_up(self, target: bytes) -> _Answer:
        try:
            match target:
                case b"/metrics":
                    return _Answer(200, self._registry.exposition(), CONTENT_TYPE)
                case b"/healthz":
                    return _verdict(self._probes.alive())
                case b"/readyz":
                    return _verdict(self._probes.ready())
                case _:
                    return _Answer(404, "try /metrics, /healthz or /readyz\n")
        except Exception:
            # A probe failed. Its text may hold internals, which must not leave the node.
            return _Answer(500, "internal error\n")


class _Request:
    """One connection, from its opening to its answer."""

    def __init__(self, server: MetricsServer) -> None:
        self._server = server
        self._head = bytearray()
        self._connection: Connection | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._answered = False

    def on_open(self, connection: Connection) -> None:
        self._connection = connection
        if not self._server.admit(self):
            self._send(_Answer(503, "too many connections\n"))
            return
        self._within(self._late)

    def on_data(self, data: bytes) -> None:
        if self._answered:
            return
        self._head += data
        if b"\r\n\r\n" in self._head:
            answer, with_body = self._server.answer(bytes(self._head))
            self._send(answer, with_body=with_body)
        elif len(self._head) > self._server.limits.request_head_max_bytes:
            self._send(_Answer(431, "the head of the request is too long\n"))

    def on_closed(self, error: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._server.forget(self)

    def cut(self) -> None:
        if self._connection is not None:
            self._connection.abort()

    def _within(self, otherwise: Callable[[], None]) -> None:
        """Calls `otherwise` unless the client makes progress within the request timeout."""
        if self._timer is not None:
            self._timer.cancel()
        timeout_s = self._server.limits.request_timeout_s
        self._timer = asyncio.get_running_loop().call_later(timeout_s, otherwise)

    def _late(self) -> None:
        self._send(_Answer(408, "no complete request arrived in time\n"))

    def _send(self, answer: _Answer, *, with_body: bool = True) -> None:
        if self._connection is None:
            return
        self._answered = True
        body = answer.body.encode()
        head = (
            f"HTTP/1.1 {answer.status} {REASONS[answer.status]}\r\n"
            f"Content-Type: {answer.content_type}\r\n"
            f"Content-Length: {len(body)}\r\n"
            "Connection: close\r\n\r\n"
        )
        self._connection.send(head.encode() + (body if with_body else b""))
        self._connection.close()
        self._within(self.cut)


def _verdict(reason: str) -> _Answer:
    return _Answer(503, f"{reason}\n") if reason else _Answer(200, "ok\n")
