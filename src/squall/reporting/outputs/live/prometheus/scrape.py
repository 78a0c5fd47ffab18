"""An endpoint that Prometheus scrapes while the run goes on: `prometheus=:9464`.

It ends with the run. The last scrape may come before the run's end, so the endpoint stays up with
the final totals until Prometheus has scraped it once more, for a few seconds at most.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress

from squall.api.reporting import LiveRun
from squall.reporting.outputs.live.metric_output import MetricOutput, MetricSender
from squall.reporting.outputs.live.metrics import Points
from squall.reporting.outputs.live.prometheus.exposition import CONTENT_TYPE, render

PATH = "/metrics"
LAST_SCRAPE_S = 5.0
_HEAD_MAX_BYTES = 16_384
_REQUEST_S = 5.0


def prometheus(address: str) -> MetricOutput:
    return MetricOutput(ScrapeEndpoint(address))


class ScrapeEndpoint(MetricSender):
    """Serves the metrics of the last second over HTTP."""

    wants_histograms = True

    def __init__(self, address: str) -> None:
        """`[HOST]:PORT`; without a host, it listens on this machine only. It binds the port at
        once, so that a port in use is reported before the run."""
        host, _, port = address.rpartition(":")
        if not port.isdecimal() or int(port) > 65535:
            raise ValueError("write [HOST]:PORT, as :9464 or 0.0.0.0:9464")
        place = (host.strip("[]") or "127.0.0.1", int(port))
        family = socket.AF_INET6 if ":" in place[0] else socket.AF_INET
        self._socket = socket.create_server(place, family=family)
        self.port: int = self._socket.getsockname()[1]
        self._content = b""
        self._seen = asyncio.Event()
        self._was_scraped = False
        self._server: asyncio.Server | None = None

    async def open(self, run: LiveRun) -> None:
        self._server = await asyncio.start_server(
            self._answer, sock=self._socket, limit=_HEAD_MAX_BYTES
        )

    async def send(self, points: Points) -> None:
        if points.is_final:
            self._was_scraped = self._was_scraped or self._seen.is_set()
            self._seen.clear()
        self._content = render(points)

    async def close(self) -> None:
        if self._was_scraped:
            # If its interval is longer, it has what it saw last.
            with suppress(TimeoutError):
                await asyncio.wait_for(self._seen.wait(), LAST_SCRAPE_S)
        if self._server is not None:
            self._server.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_REQUEST_S):
                head = await reader.readuntil(b"\r\n\r\n")
                path = head.partition(b" ")[2].split(b" ")[0].split(b"?")[0]
                found = path == PATH.encode()
                status = "200 OK" if found else "404 Not Found"
                body = self._content if found else f"see {PATH}\n".encode()
                fields = f"Content-Type: {CONTENT_TYPE}\r\nContent-Length: {len(body)}"
                text = f"HTTP/1.1 {status}\r\n{fields}\r\nConnection: close\r\n\r\n"
                writer.write(text.encode() + body)
                await writer.drain()
                # A large answer takes time; meanwhile the final totals may have replaced it.
                if found and body is self._content:
                    self._seen.set()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            # A client that went away, or that speaks no HTTP.
            pass
        finally:
            writer.close()
