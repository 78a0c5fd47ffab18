"""What tests of outputs share: a server that records requests, and the totals of a document."""

from __future__ import annotations

import contextlib
import gzip
import threading
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from squall.api.reporting import LiveRun

RUN = LiveRun("01J9Z4", "shop.py", ("Shop",), {"env": "staging", "step": "one"}, 1.0)
ENDS_WITHIN_S = 60.0


@dataclass
class Request:
    """A request as the server got it; a gzip body is unpacked."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class RecordingServer:
    """Records requests and answers each with `status` and `answer`."""

    url: str
    requests: list[Request] = field(default_factory=list)
    status: int = 200
    answer: bytes = b'{"id": 7}'


@contextlib.contextmanager
def recording_server() -> Generator[RecordingServer]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _take(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            headers = {name.lower(): value for name, value in self.headers.items()}
            recorded.requests.append(Request(self.command, self.path, headers, body))
            self.send_response(recorded.status)
            self.send_header("Content-Length", str(len(recorded.answer)))
            self.end_headers()
            self.wfile.write(recorded.answer)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _take

        def log_message(self, format: str, *args: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    recorded = RecordingServer(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield recorded
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def step_totals(document: dict[str, Any]) -> dict[tuple[str, str, str], int]:
    """Executions by workflow, step and result."""
    return {
        (workflow["name"], step["name"], result): step[result]
        for workflow in document["workflows"]
        for step in workflow["steps"]
        for result in ("ok", "failed")
    }


def wait_for(holds: Callable[[], bool], what: str = "what the test waits for") -> None:
    deadline = time.monotonic() + ENDS_WITHIN_S
    while not holds():
        assert time.monotonic() < deadline, f"{what} did not come"
        time.sleep(0.02)
