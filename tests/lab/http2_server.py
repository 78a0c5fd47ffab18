"""An HTTP/2 server on the package `h2`, independent of our codec, in a thread of its own.

It answers every request with a JSON object of what it received, and counts requests by path. A
call of gRPC is answered with an empty message and OK.
`/slow` answers after 50 ms, `/delay/0.1` after as many seconds, `/never` does not, `/trailers` ends
with trailers, `/refused` refuses every second stream.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from time import perf_counter
from typing import Any

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions

SLOW_S = 0.05


class _Peer(asyncio.Protocol):
    def __init__(self, server: HTTP2Server) -> None:
        self.server = server
        self.h2 = h2.connection.H2Connection(
            h2.config.H2Configuration(client_side=False, header_encoding="utf-8")
        )
        self.requests: dict[int, tuple[dict[str, str], bytearray]] = {}
        self.unsent: dict[int, bytes] = {}
        # Streams of `/slow` that are not answered yet.
        self.waiting: set[int] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport
        self.server.connections += 1
        self.server.open.add(transport)
        self.h2.initiate_connection()
        self.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self.server.open.discard(self.transport)
        self.waiting.clear()

    def flush(self) -> None:
        self.transport.write(self.h2.data_to_send())

    def data_received(self, data: bytes) -> None:
        self.received_at = perf_counter()
        try:
            events = self.h2.receive_data(data)
        except h2.exceptions.ProtocolError as error:
            self.server.errors.append(str(error))
            self.flush()
            self.transport.close()
            return
        for event in events:
            self._on(event)
        self.flush()

    def _on(self, event: h2.events.Event) -> None:
        if isinstance(event, h2.events.RequestReceived):
            assert event.stream_id is not None and event.headers is not None
            headers = {str(name): str(value) for name, value in event.headers}
            self.requests[event.stream_id] = (headers, bytearray())
        elif isinstance(event, h2.events.DataReceived):
            assert event.stream_id is not None and event.data is not None
            self.requests[event.stream_id][1].extend(event.data)
            self.h2.acknowledge_received_data(event.flow_controlled_length or 0, event.stream_id)
        elif isinstance(event, h2.events.StreamEnded):
            assert event.stream_id is not None
            self._answer(event.stream_id)
        elif isinstance(event, h2.events.WindowUpdated):
            for stream_id in list(self.unsent):
                self._send(stream_id)
        elif isinstance(event, h2.events.StreamReset):
            assert event.stream_id is not None
            self.server.resets += 1
            self.waiting.discard(event.stream_id)
            self.requests.pop(event.stream_id, None)
            self.unsent.pop(event.stream_id, None)

    def _answer(self, stream_id: int) -> None:
        headers, body = self.requests.pop(stream_id)
        path = headers[":path"].partition("?")[0]
        if path == "/refused" and self.server.refuses():
            self.h2.reset_stream(stream_id, h2.errors.ErrorCodes.REFUSED_STREAM)
            return
        self.server.paths[path] += 1
        seen = {"headers": headers, "body": body.decode("latin-1")}
        if path == "/never":
            return
        if path == "/slow" or path.startswith("/delay/"):
            self.waiting.add(stream_id)
            delay_s = SLOW_S if path == "/slow" else float(path.removeprefix("/delay/"))
            began = self.received_at
            asyncio.get_running_loop().call_later(delay_s, self._later, stream_id, seen, began)
        else:
            self._respond(stream_id, path, seen)

    def _later(self, stream_id: int, seen: dict[str, Any], began: float) -> None:
        if stream_id in self.waiting:
            self.waiting.discard(stream_id)
            self._respond(stream_id, "/slow", seen)
            self.flush()
            self.server.held_s.append(perf_counter() - began)

    def _respond(self, stream_id: int, path: str, seen: dict[str, Any]) -> None:
        if seen["headers"].get("content-type") == "application/grpc":
            head = [(":status", "200"), ("content-type", "application/grpc")]
            self.h2.send_headers(stream_id, head)
            self.h2.send_data(stream_id, bytes(5))
            self.h2.send_headers(stream_id, [("grpc-status", "0")], end_stream=True)
            return
        content = json.dumps(seen).encode()
        self.h2.send_headers(stream_id, [(":status", "200"), ("content-type", "application/json")])
        self.unsent[stream_id] = content
        if path == "/trailers":
            self.h2.send_data(stream_id, self.unsent.pop(stream_id))
            self.h2.send_headers(stream_id, [("x-sum", "42")], end_stream=True)
        else:
            self._send(stream_id)

    def _send(self, stream_id: int) -> None:
        content = self.unsent[stream_id]
        while content:
            window = self.h2.local_flow_control_window(stream_id)
            room = min(window, self.h2.max_outbound_frame_size)
            if room <= 0:
                self.unsent[stream_id] = content
                return
            part, content = content[:room], content[room:]
            self.h2.send_data(stream_id, part, end_stream=not content)
        del self.unsent[stream_id]


class HTTP2Server:
    """What the server saw; `paths` counts the requests that it handled."""

    def __init__(self) -> None:
        self.port = 0
        self.scheme = "http"
        self.connections = 0
        self.resets = 0
        self.paths: Counter[str] = Counter()
        # How long the server itself held each answer that it delayed.
        self.held_s: list[float] = []
        self.errors: list[str] = []
        self.open: set[Any] = set()
        self._refused = 0

    @property
    def url(self) -> str:
        return f"{self.scheme}://localhost:{self.port}"

    @property
    def requests(self) -> int:
        return sum(self.paths.values())

    def refuses(self) -> bool:
        self._refused += 1
        return self._refused % 2 == 1


@contextmanager
def running_http2_server(tls: ssl.SSLContext | None = None) -> Generator[HTTP2Server]:
    """The server, in clear or with TLS, on a port of its own."""
    server = HTTP2Server()
    server.scheme = "https" if tls else "http"
    if tls is not None:
        tls.set_alpn_protocols(["h2"])
    ready = threading.Event()
    loop = asyncio.new_event_loop()

    async def serve() -> asyncio.Server:
        made = await loop.create_server(lambda: _Peer(server), "127.0.0.1", 0, ssl=tls)
        server.port = made.sockets[0].getsockname()[1]
        ready.set()
        return made

    def run() -> None:
        made = loop.run_until_complete(serve())
        loop.run_forever()
        made.close()
        for transport in tuple(server.open):
            transport.abort()
        loop.run_until_complete(asyncio.sleep(0.01))
        loop.close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert ready.wait(10)
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
    assert not server.errors, server.errors
