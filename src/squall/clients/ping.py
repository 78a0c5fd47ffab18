"""`squall ping`: sends one request and shows how long each part of it took.

It sends exactly one GET, one ping frame of a WebSocket, or questions for the methods of a gRPC
server; it follows no redirect and judges nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, cast

from squall.api import arguments
from squall.api.errors import CallError, ConfigError, TransportError
from squall.api.http import HTTPResponse
from squall.clients.calls.address import PreparedAddress, without_credentials
from squall.clients.http.client import HTTPClient
from squall.clients.http.exchange import peer_of
from squall.clients.http.failure_reasons import timeout_reason
from squall.clients.http.shared import Exchange, HTTPShared
from squall.clients.registry import SCHEMES, grpc_reflection, make_client

if TYPE_CHECKING:
    from squall.clients.calls.probe import PingAnswer
    from squall.clients.websocket import WebsocketClient
    from squall.clients.websocket.session import OpenSession

PING_TIMEOUT_S = 10.0
_SWEEP_S = 0.02
_SHOWN_HEADERS = ("Content-Type", "Content-Encoding", "Location")
_SHOWN_LINES = 20
_SHOWN_CHARACTERS = 2000


@dataclass(slots=True)
class PingResult:
    """Either `response` or `error` is set."""

    url: str
    peer: str
    dns_s: float
    response: HTTPResponse | None = None
    error: str = ""
    lines: list[str] = field(default_factory=list[str])
    """What to show of an answer in another protocol than HTTP."""

    @property
    def ok(self) -> bool:
        """Whether an answer arrived, whatever its status."""
        return self.response is not None or bool(self.lines)

    def render(self) -> str:
        if self.lines:
            return "\n".join(self.lines)
        response = self.response
        if response is None:
            # The statistics load numpy, which an answered ping does not need.
            from squall.stats.run_notes import MAYBE_TLS, may_want_tls

            hint = f"; {MAYBE_TLS}" if may_want_tls(self.error, self.url) else ""
            return f"{self.url}: {self.error}{hint}"
        size = f"{len(response.raw_body)} B"
        lines = [f"{response.status_text}  {response.head.version}  {size}  from {self.peer}"]
        timings = response.timings
        lines.append(
            _spans(
                ("dns", self.dns_s),
                ("connect", timings.connect_s),
                ("tls", timings.tls_s),
                ("first byte", timings.first_byte_s),
                ("whole", timings.total_s),
            )
        )
        lines.extend(
            f"{name}: {response.headers[name]}"
            for name in _SHOWN_HEADERS
            if name in response.headers
        )
        return "\n".join([*lines, *_body_lines(response)])


async def ping(
    url: str,
    *,
    resolve: Mapping[tuple[str, int], str] | None = None,
    insecure: bool = False,
    http2: bool = False,
    ca_file: str | None = None,
    certificate: str = "",
    proxy: str = "",
    proxy_auth: str = "",
    timeout_s: float = PING_TIMEOUT_S,
) -> PingResult:
    """Sends one GET (`h3://` over HTTP/3), opens a WebSocket and sends a ping frame (`ws://`), asks
    a gRPC server for its methods (`grpc://`), or lets the client of a scheme ask. Raises
    `ConfigError` for an invalid URL; a failed exchange is a result, and so is a peer that does not
    answer in time."""
    shared = HTTPShared(
        resolve=resolve,
        verify=not insecure,
        ca_file=ca_file,
        certificate=certificate,
        proxy=proxy,
        proxy_auth=proxy_auth,
        timeout_s=timeout_s,
        redirects=0,
        connections="request",
    )
    peers: list[str] = []
    shown = without_credentials(url)

    def watch(exchange: Exchange) -> None:
        peers.append(exchange.peer)

    shared.on_exchange = watch
    try:
        # In a run a sweep enforces timeouts; here nothing else runs, and a resolver may hang too.
        async with asyncio.timeout(timeout_s):
            scheme, _, rest = url.partition("://")
            address = f"https://{rest}" if scheme == "h3" else url
            prepared = await shared.prepare(arguments.argument_kinds()[0], address)
            http = HTTPClient(shared, 0)
            if isinstance(prepared, PreparedAddress):
                return await _probed(prepared, http)
            if url.startswith(("grpc://", "grpcs://")):
                return await _grpc(url, http)
            if url.startswith(("ws://", "wss://")):
                return await _websocket(url, http, sum(shared.dns_samples))
            client = http
            if scheme == "h3" or http2:
                client = make_client("http3" if scheme == "h3" else "http2", http)
            response: HTTPResponse = await client.get(prepared)
    except TimeoutError:
        return PingResult(shown, "", sum(shared.dns_samples), error=timeout_reason(timeout_s))
    except ConfigError as error:
        if isinstance(error.__cause__, TransportError):
            return PingResult(shown, "", 0.0, error=str(error))
        raise
    except TransportError as error:
        return PingResult(shown, "", sum(shared.dns_samples), error=error.reason)
    finally:
        await shared.close()
    return PingResult(shown, peers[-1], sum(shared.dns_samples), response)


async def _probed(address: PreparedAddress, http: HTTPClient) -> PingResult:
    """Asks a server that is not HTTP what its client asks it."""
    dns_s = sum(http.shared.dns_samples)
    client = make_client(SCHEMES[address.scheme][0], http)
    # As the engine does in a run.
    sweeper = asyncio.ensure_future(_sweep(http.shared))
    try:
        probe: PingAnswer = await client.probe(address)
    finally:
        sweeper.cancel()
        # Its connections say goodbye, as those of a user do.
        http.close()
    where = address.origin.addresses[0].ip
    peer = f"[{where}]:{address.port}" if ":" in where else f"{where}:{address.port}"
    timings = probe.response.timings
    spans = _spans(
        ("dns", dns_s),
        ("connect", timings.connect_s),
        ("first byte", timings.first_byte_s),
        ("whole", timings.total_s),
    )
    lines = [f"{probe.server}  from {peer}", spans, *probe.lines]
    if probe.response.error:
        return PingResult(str(address), peer, dns_s, error=probe.response.error)
    return PingResult(str(address), peer, dns_s, lines=lines)


async def _sweep(shared: HTTPShared) -> None:
    while True:
        shared.sweep(perf_counter())
        await asyncio.sleep(_SWEEP_S)


async def _grpc(url: str, http: HTTPClient) -> PingResult:
    """Lists the methods of the server, as far as it tells them."""
    # One connection for all questions; the others live for one request.
    http.shared.reuse = True
    client = make_client("grpc", http)
    scheme, _, rest = url.partition("://")
    # The address of a method means its server.
    origin = f"{scheme}://{rest.partition('/')[0]}"
    response, lines = await grpc_reflection()(client, origin)
    peer = client.peer
    timings = response.timings
    spans = _spans(
        ("dns", sum(http.shared.dns_samples)),
        ("connect", timings.connect_s),
        ("tls", timings.tls_s),
        ("first byte", timings.first_byte_s),
        ("whole", timings.total_s),
    )
    told = lines
    if not response.ok:
        told = [f"methods not known: {response.text}"]
    return PingResult(url, peer, 0.0, lines=[f"{response.status}  gRPC  from {peer}", spans, *told])


async def _websocket(url: str, http: HTTPClient, dns_s: float) -> PingResult:
    client: WebsocketClient = make_client("websocket", http)
    async with client.open(url) as session:
        timings = (await session.ping()).timings
        peer = peer_of(cast("OpenSession", session).connection.transport)
    spans = _spans(
        ("dns", dns_s),
        ("connect", timings.connect_s),
        ("tls", timings.tls_s),
        ("upgrade", timings.upgrade_s),
        ("pong", timings.total_s),
    )
    first = f"101 Switching Protocols  WebSocket  from {peer}"
    return PingResult(url, peer, dns_s, lines=[first, spans])


def _spans(*spans: tuple[str, float]) -> str:
    return "  ".join(f"{name} {_milliseconds(span_s)}" for name, span_s in spans)


def _milliseconds(span_s: float) -> str:
    return f"{span_s * 1e3:.1f} ms" if span_s else "-"


def _body_lines(response: HTTPResponse) -> list[str]:
    if not response.raw_body:
        return []
    try:
        text = response.text
    except CallError as error:
        return [f"({error.reason})"]
    if "\0" in text or "\ufffd" in text:
        return [f"({len(response.raw_body)} bytes that are not text)"]
    shown = text[:_SHOWN_CHARACTERS].splitlines()[:_SHOWN_LINES]
    # Control characters of a server must not reach the terminal.
    lines = ["".join(c if c.isprintable() or c == "\t" else "?" for c in line) for line in shown]
    if len(text) > _SHOWN_CHARACTERS or len(text.splitlines()) > _SHOWN_LINES:
        lines.append("...")
    return lines
