"""Sends lines over UDP, TCP or a Unix socket: `udp://HOST:PORT`, `tcp://...`, `unix:///path`."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from urllib.parse import urlsplit

from squall.reporting.outputs.live.http import TIMEOUT_S

DATAGRAM_MAX_BYTES = 1400
"""Fits into one packet of an Ethernet network."""


class LineSocket:
    """A socket to one address; it is opened when the first line is sent."""

    def __init__(self, address: str, *, scheme: str, port: int) -> None:
        """`scheme` and `port` are the defaults of an address without them. Raises `ValueError`."""
        text = address if "://" in address else f"{scheme}://{address}"
        parts = urlsplit(text)
        if parts.scheme not in ("udp", "tcp", "unix", "unixgram"):
            raise ValueError("write HOST:PORT, udp://HOST:PORT, tcp://HOST:PORT or unix:///PATH")
        if parts.scheme in ("udp", "tcp") and not parts.hostname:
            raise ValueError("name a host: udp://HOST:PORT")
        self._scheme = parts.scheme
        self._place = (parts.hostname or "", parts.port or port)
        self._path = parts.path
        self._socket: socket.socket | None = None

    def send(self, lines: Iterable[str]) -> None:
        """Sends lines. A datagram carries as many as fit."""
        encoded = [line.encode(errors="replace") for line in lines]
        if not encoded:
            return
        try:
            if self._socket is None:
                self._socket = self._opened()
            if self._scheme in ("tcp", "unix"):
                self._socket.sendall(b"".join(line + b"\n" for line in encoded))
            else:
                for datagram in _datagrams(encoded):
                    self._socket.send(datagram)
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        opened, self._socket = self._socket, None
        if opened is not None:
            opened.close()

    def _opened(self) -> socket.socket:
        if self._scheme == "tcp":
            return socket.create_connection(self._place, TIMEOUT_S)
        if self._scheme == "udp":
            family, kind, _, _, place = socket.getaddrinfo(*self._place, type=socket.SOCK_DGRAM)[0]
            opened = socket.socket(family, kind)
        else:
            kind = socket.SOCK_DGRAM if self._scheme == "unixgram" else socket.SOCK_STREAM
            opened, place = socket.socket(socket.AF_UNIX, kind), self._path
        opened.settimeout(TIMEOUT_S)
        try:
            # Also for UDP: a port that nobody listens on is then an error of a later send.
            opened.connect(place)
        except OSError:
            opened.close()
            raise
        return opened


def _datagrams(lines: list[bytes]) -> Iterable[bytes]:
    pending: list[bytes] = []
    size = 0
    for line in lines:
        if pending and size + len(line) + 1 > DATAGRAM_MAX_BYTES:
            yield b"\n".join(pending)
            pending, size = [], 0
        pending.append(line)
        size += len(line) + 1
    yield b"\n".join(pending)
