"""A proxy before moto that answers 5xx or 409, loses replies, and ignores conditions."""

from __future__ import annotations

import http.client
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit


class FaultyS3:
    """Change its faults while it runs."""

    def __init__(self, target: str) -> None:
        self.target = urlsplit(target).netloc
        self.ignored_header = ""
        self.ignored_on = ""
        """A method; all of them if empty."""
        self.requests: list[str] = []
        """Methods in order; a listing is called LIST."""
        self.received = self.sent = 0
        """Bytes of bodies."""
        self._failures = 0
        self._status = 503
        self._lost_method = ""
        self._answers = threading.Event()
        self._answers.set()
        self._lost = 0
        self._lock = threading.Lock()
        proxy = self

        class Handler(_Handler):
            faults = proxy

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def fail_next(self, number: int, status: int) -> None:
        with self._lock:
            self._failures, self._status = number, status

    def lose_replies(self, method: str, number: int) -> None:
        """The library under the store sends once more by itself: give it two."""
        with self._lock:
            self._lost_method, self._lost = method, number

    def hang(self) -> None:
        """No answers, until `answer_again`; what came meanwhile is then dropped."""
        self._answers.clear()

    def answer_again(self) -> None:
        self._answers.set()

    def held(self) -> bool:
        """Whether the request had to wait; its client has gone by then."""
        if self._answers.is_set():
            return False
        self._answers.wait()
        return True

    def failure(self) -> int | None:
        with self._lock:
            if self._failures <= 0:
                return None
            self._failures -= 1
            return self._status

    def is_lost(self, method: str) -> bool:
        with self._lock:
            if method != self._lost_method or self._lost <= 0:
                return False
            self._lost -= 1
            return True

    def close(self) -> None:
        self.answer_again()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    faults: FaultyS3
    protocol_version = "HTTP/1.1"

    def relay(self) -> None:
        length = int(self.headers.get("content-length") or 0)
        body = self.rfile.read(length)
        self.faults.received += length
        is_listing = "list-type=2" in self.path
        self.faults.requests.append("LIST" if is_listing else self.command)
        if self.faults.held():
            self.close_connection = True
            return
        status = self.faults.failure()
        if status is not None:
            code = "ConditionalRequestConflict" if status == 409 else "SlowDown"
            text = f"<Error><Code>{code}</Code></Error>".encode()
            self.answer(status, [("Content-Type", "application/xml")], text)
            return
        connection = http.client.HTTPConnection(self.faults.target)
        headers = dict(self.headers.items())
        if self.faults.ignored_on in {"", self.command}:
            headers = {
                name: value
                for name, value in headers.items()
                if name.lower() != self.faults.ignored_header
            }
        connection.request(self.command, self.path, body or None, headers)
        reply = connection.getresponse()
        content = reply.read()
        connection.close()
        self.faults.sent += len(content)
        if self.faults.is_lost(self.command):
            self.close_connection = True
            return
        kept = [(n, v) for n, v in reply.getheaders() if n.lower() not in {"connection"}]
        self.answer(reply.status, kept, content)

    def answer(self, status: int, headers: list[tuple[str, str]], content: bytes) -> None:
        self.send_response_only(status)
        names = {name.lower() for name, _ in headers}
        for name, value in headers:
            if name.lower() not in {"content-length", "transfer-encoding"}:
                self.send_header(name, value)
        if "date" not in names:
            self.send_header("Date", self.date_time_string())
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = relay

    def log_message(self, format: str, *args: object) -> None:
        pass
