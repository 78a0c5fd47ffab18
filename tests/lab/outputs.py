"""What tests of outputs share: a server that records requests, and the totals of a document."""

from __future__ import annotations

import contextlib
import gzip
import json
import threading
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from uuid import uuid4

from squall.api.reporting import LiveRun

RUN = LiveRun("01J9Z4", "shop.py", ("Shop",), {"env": "staging", "step": "one"}, 1.0)
ENDS_WITHIN_S = 90.0


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


def wait_for(holds: Callable[[], object], what: str = "what the test waits for") -> None:
    deadline = time.monotonic() + ENDS_WITHIN_S
    while not holds():
        assert time.monotonic() < deadline, f"{what} did not come"
        time.sleep(0.02)


class LiveFiles:
    """Two live outputs of one run: JSON lines, and OpenTelemetry at a recording server."""

    def __init__(self, folder: Path, server: RecordingServer) -> None:
        self._lines = folder / f"live-{uuid4().hex}.jsonl"
        self._server = server
        server.requests.clear()

    @property
    def words(self) -> tuple[str, ...]:
        return ("--out-file", str(self._lines), "-o", f"otlp={self._server.url}")

    @property
    def seconds(self) -> int:
        return self._lines.read_bytes().count(b'"type":"second"') if self._lines.exists() else 0

    def check(self, document: dict[str, Any], least_seconds: int = 1) -> None:
        """Both hold the totals of the document, and no total ever fell before. The last delivery
        may come after the command has ended, if this machine stood still."""
        wait_for(self._is_written, "the last line")
        wait_for(lambda: self._holds(step_totals(document)), "the final totals over OTLP")
        lines = [json.loads(line) for line in self._lines.read_bytes().splitlines()]
        assert (lines[0]["type"], lines[-1]["type"]) == ("start", "end")
        assert lines[0]["run"]["id"] == document["run"]["id"]
        assert lines[-1]["document"] == document
        assert len(lines) - 2 >= least_seconds, [line["type"] for line in lines]
        series = [otlp_totals(request.body) for request in self._server.requests]
        assert len(series) > least_seconds
        for key in series[-1]:
            counted = [totals.get(key, 0) for totals in series]
            assert counted == sorted(counted), f"{key} fell: {counted}"

    def _is_written(self) -> bool:
        content = self._lines.read_bytes()
        return content.endswith(b"\n") and b'\n{"type":"end"' in content

    def _holds(self, totals: dict[tuple[str, str, str], int]) -> bool:
        requests = self._server.requests
        return bool(requests) and otlp_totals(requests[-1].body) == totals


def otlp_totals(body: bytes) -> dict[tuple[str, str, str], float]:
    """Executions by workflow, step and result in an `ExportMetricsServiceRequest`."""
    from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2

    request = metrics_service_pb2.ExportMetricsServiceRequest.FromString(body)
    found: dict[tuple[str, str, str], float] = {}
    for metric in request.resource_metrics[0].scope_metrics[0].metrics:
        for point in metric.sum.data_points if metric.name == "squall.executions" else ():
            labels = {each.key: each.value.string_value for each in point.attributes}
            found[labels["workflow"], labels["step"], labels["result"]] = point.as_double
    return found
