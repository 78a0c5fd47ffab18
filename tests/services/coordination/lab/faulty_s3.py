"""A proxy before moto that answers 5xx or 409, loses replies, ignores conditions, and writes over
what is not there."""

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
        self.writes_missing = False
        """Whether `If-Match` on an object that does not exist creates it, as some services do."""
        self.written_missing = 0
        """How often that happened."""
        self.conflicts_on = ""
        """The first try of each PUT to a path with this text is answered with 409."""
        self.conflicts = 0
        self.requests: list[str] = []
        """Methods in order; a listing is called LIST."""
        self.received = self.sent = 0
        """Bytes of bodies."""
        self.code = ""
        """Of the next failures, if it is not the usual one of their status."""
        self._failures = 0
        self._status = 503
        self._lost_method = self._lost_path = ""
        self._tried: set[tuple[str, bytes]] = set()
        self._answers = threading.Event()
        self._answers.set()
        self._lost = self._lost_after = 0
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

    def lose_replies(self, method: str, number: int, path: str = "", *, after: int = 0) -> None:
        """The library under the store sends once more by itself: give it two. With a text, only
        those of paths with it. So many come through before."""
        with self._lock:
            self._lost_method, self._lost_path, self._lost = method, path, number
            self._lost_after = after

    @property
    def replies_to_lose(self) -> int:
        return self._lost

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

    def meets_another(self, method: str, path: str, body: bytes) -> bool:
        """Whether this is the first try of a write that is answered with 409."""
        with self._lock:
            if not self.conflicts_on or method != "PUT" or self.conflicts_on not in path:
                return False
            if (path, body) in self._tried:
                return False
            self._tried.add((path, body))
            self.conflicts += 1
            return True

    def is_written_missing(self, method: str, path: str, condition: str | None) -> bool:
        """Whether this conditional write is to be done though there is nothing."""
        if not self.writes_missing or method != "PUT" or condition is None:
            return False
        connection = http.client.HTTPConnection(self.target)
        connection.request("HEAD", path.partition("?")[0])
        is_missing = connection.getresponse().status == 404
        connection.close()
        if is_missing:
            with self._lock:
                self.written_missing += 1
        return is_missing

    def failure(self) -> int | None:
        with self._lock:
            if self._failures <= 0:
                return None
            self._failures -= 1
            return self._status

    def is_lost(self, method: str, path: str) -> bool:
        with self._lock:
            if method != self._lost_method or self._lost <= 0 or self._lost_path not in path:
                return False
            if self._lost_after > 0:
                self._lost_after -= 1
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
        if status is None and self.faults.meets_another(self.command, self.path, body):
            status = 409
        if status is not None:
            usual = "ConditionalRequestConflict" if status == 409 else "SlowDown"
            code = self.faults.code or usual
            text = f"<Error><Code>{code}</Code></Error>".encode()
            self.answer(status, [("Content-Type", "application/xml")], text)
            return
        headers = dict(self.headers.items())
        condition = self.headers.get("if-match")
        if self.faults.is_written_missing(self.command, self.path, condition):
            headers = {name: headers[name] for name in headers if name.lower() != "if-match"}
        connection = http.client.HTTPConnection(self.faults.target)
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
        if self.faults.is_lost(self.command, self.path):
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
