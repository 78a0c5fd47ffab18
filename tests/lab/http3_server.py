"""An HTTP/3 server on the package `qh3`, in a thread of its own, that can misbehave.

It answers every request with a JSON object of what it received, and counts requests by path.
`/slow` answers after 50 ms, `/delay/0.1` after as many seconds; the paths of `_SCRIPTS` do
something else.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

import trustme
from qh3._hazmat import encode_uint_var
from qh3.asyncio import QuicConnectionProtocol, serve
from qh3.h3.connection import ErrorCode, FrameType, H3Connection, encode_frame
from qh3.h3.events import DataReceived, HeadersReceived, StreamReset
from qh3.quic.configuration import QuicConfiguration
from qh3.quic.events import HandshakeCompleted, QuicEvent

SLOW_S = 0.05
_OK = [(b":status", b"200"), (b"content-type", b"application/json")]


class _Peer(QuicConnectionProtocol):
    def __init__(self, server: HTTP3Server, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.server = server
        self.h3: Any = None
        self.requests: dict[int, tuple[dict[str, str], bytearray]] = {}

    def datagram_received(self, data: Any, addr: Any) -> None:
        self.received_at = perf_counter()
        if not self.server.silent:
            super().datagram_received(data, addr)

    def datagrams_received(self, data: Any, addr: Any) -> None:
        self.received_at = perf_counter()
        if not self.server.silent:
            super().datagrams_received(data, addr)

    def transmit(self) -> None:
        if not self.server.silent:
            super().transmit()

    def quic_event_received(self, event: QuicEvent) -> None:
        if isinstance(event, HandshakeCompleted):
            self.h3 = H3Connection(self._quic)
            self.server.connections += 1
        if self.h3 is None:
            return
        for each in self.h3.handle_event(event):
            if isinstance(each, HeadersReceived):
                headers: dict[str, str] = {}
                for name, value in each.headers:
                    known = headers.get(name.decode())
                    text = value.decode("latin-1")
                    headers[name.decode()] = f"{known}; {text}" if known else text
                self.requests[each.stream_id] = (headers, bytearray())
            elif isinstance(each, DataReceived) and each.stream_id in self.requests:
                self.requests[each.stream_id][1].extend(each.data)
            elif isinstance(each, StreamReset):
                self.server.resets += 1
                self.requests.pop(each.stream_id, None)
            if getattr(each, "stream_ended", False) and each.stream_id in self.requests:
                self._answer(each.stream_id)

    def _answer(self, stream_id: int) -> None:
        headers, body = self.requests.pop(stream_id)
        path = headers[":path"].partition("?")[0]
        if path in ("/refused", "/goaway") and self.server.refuses():
            _REFUSALS[path](self, stream_id)
            return
        self.server.paths[path] += 1
        seen = json.dumps({"headers": headers, "body": body.decode("latin-1")}).encode()
        if path == "/slow" or path.startswith("/delay/"):
            delay_s = SLOW_S if path == "/slow" else float(path.removeprefix("/delay/"))
            began = self.received_at
            asyncio.get_running_loop().call_later(delay_s, self._later, stream_id, seen, began)
        elif path in _SCRIPTS:
            _SCRIPTS[path](self, stream_id)
        else:
            self._respond(stream_id, seen)

    def _later(self, stream_id: int, content: bytes, began: float) -> None:
        self._respond(stream_id, content)
        self.transmit()
        self.server.held_s.append(perf_counter() - began)

    def _respond(self, stream_id: int, content: bytes) -> None:
        self.h3.send_headers(stream_id, _OK)
        self.h3.send_data(stream_id, content, end_stream=True)
        self._transmit_soon()

    def begin(self, stream_id: int, *more: tuple[bytes, bytes], body: bytes = b"part") -> None:
        self.h3.send_headers(stream_id, [*_OK, *more])
        self.h3.send_data(stream_id, body, end_stream=False)
        self._transmit_soon()

    def bye(self, code: int) -> None:
        # What was written before goes out first.
        self.transmit()
        self._quic.close(error_code=code)
        self._transmit_soon()

    def raw(self, stream_id: int, data: bytes) -> None:
        self._quic.send_stream_data(stream_id, data, end_stream=True)

    def control(self, kind: int, payload: bytes) -> None:
        self._quic.send_stream_data(self.h3._local_control_stream_id, encode_frame(kind, payload))


def _trailers(peer: _Peer, stream_id: int) -> None:
    peer.h3.send_headers(stream_id, [(b":status", b"103"), (b"link", b"</a.css>")])
    peer.begin(stream_id)
    peer.h3.send_headers(stream_id, [(b"x-sum", b"42")], end_stream=True)


def _cut(peer: _Peer, stream_id: int) -> None:
    peer.begin(stream_id)
    peer.bye(ErrorCode.H3_NO_ERROR)


def _reset_in_body(peer: _Peer, stream_id: int) -> None:
    peer.begin(stream_id)
    peer.transmit()
    peer._quic.reset_stream(stream_id, ErrorCode.H3_INTERNAL_ERROR)


def _short(peer: _Peer, stream_id: int) -> None:
    peer.h3.send_headers(stream_id, [*_OK, (b"content-length", b"10")])
    peer.h3.send_data(stream_id, b"part", end_stream=True)


def _bad_head(peer: _Peer, stream_id: int) -> None:
    peer.h3.send_headers(stream_id, [*_OK, (b"x-a", b"1\r\nx-b: 2")], end_stream=True)


def _bad_head_and_body(peer: _Peer, stream_id: int) -> None:
    peer.h3.send_headers(stream_id, [*_OK, (b"x-a", b"1\r\nx-b: 2")])
    peer.h3.send_data(stream_id, b"body", end_stream=True)


def _data_first(peer: _Peer, stream_id: int) -> None:
    peer.raw(stream_id, encode_frame(FrameType.DATA, b"early"))


_SCRIPTS: dict[str, Callable[[_Peer, int], None]] = {
    "/never": lambda peer, stream_id: None,
    "/trailers": _trailers,
    "/stalls": lambda peer, stream_id: peer.begin(stream_id),
    "/cut": _cut,
    "/close": lambda peer, stream_id: peer.bye(ErrorCode.H3_NO_ERROR),
    "/angry": lambda peer, stream_id: peer.bye(ErrorCode.H3_EXCESSIVE_LOAD),
    "/reset": lambda peer, stream_id: peer._quic.reset_stream(
        stream_id, ErrorCode.H3_INTERNAL_ERROR
    ),
    "/reset-in-body": _reset_in_body,
    "/short": _short,
    "/bad-head": _bad_head,
    "/bad-head-and-body": _bad_head_and_body,
    "/data-first": _data_first,
    "/bad-headers": lambda peer, stream_id: peer.raw(
        stream_id, encode_frame(FrameType.HEADERS, b"\xff\xff\xff\xff")
    ),
    "/bad-control": lambda peer, stream_id: peer.control(FrameType.DATA, b"no"),
    "/unknown-frame": lambda peer, stream_id: (
        peer.control(0x21 + 0x1F * 7, b"grease"),
        peer._respond(stream_id, b"{}"),
    )[-1],
}
_REFUSALS: dict[str, Callable[[_Peer, int], None]] = {
    "/refused": lambda peer, stream_id: peer._quic.reset_stream(
        stream_id, ErrorCode.H3_REQUEST_REJECTED
    ),
    "/goaway": lambda peer, stream_id: peer.control(FrameType.GOAWAY, encode_uint_var(stream_id)),
}


class HTTP3Server:
    """What the server saw; `paths` counts the requests that it handled. While `silent` is set it
    neither reads nor answers, as behind a firewall that drops everything."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ca_file = str(folder / "ca.pem")
        self.port = 0
        self.connections = 0
        self.resets = 0
        self.silent = False
        self.paths: Counter[str] = Counter()
        # How long the server itself held each answer that it delayed.
        self.held_s: list[float] = []
        self._refused = 0

    @property
    def url(self) -> str:
        return f"https://localhost:{self.port}"

    @property
    def requests(self) -> int:
        return sum(self.paths.values())

    def refuses(self) -> bool:
        self._refused += 1
        return self._refused % 2 == 1

    def configuration(self, alpn: str) -> QuicConfiguration:
        authority = trustme.CA()
        authority.cert_pem.write_to_path(self.ca_file)
        issued = authority.issue_cert("localhost")
        # The library announces datagrams of HTTP/3, which need room in QUIC.
        configuration = QuicConfiguration(
            is_client=False, alpn_protocols=[alpn], max_datagram_frame_size=65536
        )
        configuration.load_cert_chain(
            issued.cert_chain_pems[0].bytes(), issued.private_key_pem.bytes()
        )
        return configuration


@contextmanager
def running_http3_server(folder: Path, alpn: str = "h3") -> Generator[HTTP3Server]:
    """The server on a port of its own; its authority is in `folder`."""
    server = HTTP3Server(folder)
    ready = threading.Event()
    loop = asyncio.new_event_loop()

    def make(*args: Any, **options: Any) -> _Peer:
        return _Peer(server, *args, **options)

    async def start() -> Any:
        made = await serve(
            "127.0.0.1", 0, configuration=server.configuration(alpn), create_protocol=make
        )
        server.port = made._transport.get_extra_info("sockname")[1]
        ready.set()
        return made

    def run() -> None:
        made = loop.run_until_complete(start())
        loop.run_forever()
        made.close()
        loop.run_until_complete(asyncio.sleep(0.01))
        loop.close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert ready.wait(30)
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
