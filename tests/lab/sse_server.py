"""A server of event streams on the standard library, in threads of its own.

`/events` sends events with ids, one every 5 ms, until the client leaves; `/short` ends the stream
after three events and continues after the `Last-Event-ID`; `/once` does the same and answers a
reconnect with 204; `/delay/0.1` sends an event after so many seconds; `/page` is no stream,
`/missing` is a 404.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

STEP_S = 0.005


class EventServer(ThreadingHTTPServer):
    """What the server saw: requests by path, and the ids of reconnects."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.paths: Counter[str] = Counter()
        self.last_ids: list[str] = []
        self.accepted: list[str] = []
        # How long the server itself held each event of `/delay`.
        self.held_s: list[float] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: EventServer

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        self.server.paths[path] += 1
        self.server.accepted.append(self.headers.get("Accept", ""))
        last_id = self.headers.get("Last-Event-ID", "")
        if last_id:
            self.server.last_ids.append(last_id)
        if path == "/missing":
            self.send_error(404)
        elif path == "/page":
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"ok")
        elif path == "/once" and last_id:
            self.send_response(204)
            self.end_headers()
        elif path.startswith("/delay/"):
            self._delayed(float(path.removeprefix("/delay/")))
        else:
            with suppress(ConnectionError):
                self._stream(int(last_id or 0), None if path == "/events" else 3)

    def _delayed(self, seconds: float) -> None:
        began = time.perf_counter()
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        time.sleep(seconds)
        self._chunk(b"data: now\n\n")
        self.server.held_s.append(time.perf_counter() - began)
        self._chunk(b"")

    def _stream(self, number: int, count: int | None) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self._chunk(b": welcome\nretry: 10\n\n")
        while count is None or count > 0:
            number += 1
            count = None if count is None else count - 1
            self._chunk(b'id: %d\nevent: tick\ndata: {"n": %d}\n\n' % (number, number))
            time.sleep(STEP_S)
        self._chunk(b"")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def running_event_server() -> Generator[EventServer]:
    """The server on a port of its own."""
    server = EventServer()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
