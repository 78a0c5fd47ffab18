"""Assembles a response when the fast path of a connection cannot.

The bytes go through llhttp (chunked, interim 1xx, errors), which calls back only for the
parts that are needed; the head is cut out of the bytes received and read on demand. A
response to HEAD bypasses llhttp, which would wait for its body. Nothing here uses futures,
pools or counters.
"""

from __future__ import annotations

import re

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from squall.api.http import Addressed, HTTPResponse, ResponseHead
from squall.clients.http.failure_reasons import no_http_reason
from squall.clients.http.request import REDIRECTS

# Larger heads are an attack or garbage; Apache and nginx stop at a few kilobytes.
MOST_HEAD_BYTES = 256 * 1024
# Up to this size a packet is kept whole rather than copied without its body.
_SMALL_BYTES = 4096
_SET_COOKIE = re.compile(rb"\nset-cookie:", re.IGNORECASE).search
_STATUS_LINE = re.compile(rb"HTTP/1\.[0-9] ([0-9]{3})[ \r\n]")


class ResponseParser:
    """Parses one response at a time: feed it packets until `complete` or `error`, then `take`."""

    __slots__ = (
        "_body",
        "_buffer",
        "_head_end",
        "_parser",
        "_skipped",
        "complete",
        "error",
        "first_byte",
        "head_only",
        "keep_alive",
        "received",
        "status",
    )

    def __init__(self) -> None:
        self._parser: HttpResponseParser | None = HttpResponseParser(self)
        self._body: list[bytes] = []
        self._buffer = b""
        # Where the head ends, once it is known that more packets follow.
        self._head_end = -1
        # Bytes of interim responses in front of this one.
        self._skipped = 0
        self.complete = False
        self.error = ""
        self.first_byte = 0.0
        self.head_only = False
        # Whether the connection may carry another exchange.
        self.keep_alive = False
        self.received = 0
        self.status = 0

    def close(self) -> None:
        """Breaks the cycle between the parser and its callbacks."""
        self._parser = None

    def feed(self, data: bytes, now: float, most_bytes: int) -> None:
        if self.received:
            self.received += len(data)
            if self._head_end < 0:
                self._buffer += data
        else:
            self.received = len(data)
            self.first_byte = now
            self._buffer = data
        if self.received > most_bytes:
            self.error = f"response larger than {most_bytes >> 20} MiB"
        elif self.head_only:
            self._read_head_only()
        elif self._parser is not None:
            try:
                self._parser.feed_data(data)
            except (HttpParserError, HttpParserUpgrade) as error:
                self._stopped(error)
        if not self.complete and self._head_end < 0:
            self._head_end = self._buffer.find(b"\r\n\r\n")
            if self._head_end < 0 and len(self._buffer) > MOST_HEAD_BYTES:
                self.error = f"response head larger than {MOST_HEAD_BYTES >> 10} KiB"

    def take(self, source: Addressed, started: float, now: float, exact: bool) -> HTTPResponse:
        """The complete response.

        With `exact` its head is cut out of the bytes received and has the length of the body,
        -1 if the same head may come with another length. Otherwise body bytes may follow it.
        """
        parts, buffer, status = self._body, self._buffer, self.status
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        # Head and framing. Searched without reading the lines, because this runs for every
        # response whose head is unlike all before; a false hit costs only a second search.
        rest = self.received - self._skipped - len(body)
        special = status in REDIRECTS or _SET_COOKIE(buffer, 0, rest) is not None
        if exact or len(buffer) > _SMALL_BYTES:
            end = buffer.find(b"\r\n\r\n") + 4
            # More bytes than head and body mean chunks, so the head does not fix the length.
            plain = rest == end and self.keep_alive and not self.head_only
            head = ResponseHead(buffer[:end], status, len(body) if plain else -1, special)
        else:
            head = ResponseHead(buffer, status, -1, special)
        self._body = []
        self.received = 0
        self.complete = False
        if self._head_end >= 0 or self._skipped or self.head_only:
            self._head_end = -1
            self._skipped = 0
            self.head_only = False
        return HTTPResponse(status, head, body, source, started, self.first_byte, now)

    def end_of_stream(self) -> bool:
        """The peer closed: True if that completes the response (RFC 9112, 6.3, last rule)."""
        if self.complete or self.error or self._head_end < 0 or self.head_only:
            return False
        head = ResponseHead(self._buffer[: self._head_end + 4], 0, -1, False)
        if "content-length" in head.headers or "transfer-encoding" in head.headers:
            return False
        match = _STATUS_LINE.match(self._buffer)
        if match is None or match[1].startswith(b"1"):
            return False
        self.status = int(match[1])
        self.keep_alive = False
        self.complete = True
        return True

    def on_message_begin(self) -> None:
        if self.complete:
            # Bytes after the response belong to no request.
            self.keep_alive = False

    def on_body(self, body: bytes) -> None:
        if not self.complete:
            self._body.append(body)

    def on_message_complete(self) -> None:
        parser = self._parser
        if self.complete or parser is None:
            return
        self.status = status = parser.get_status_code()
        if status < 200 and status != 101:
            self._skip_interim()
        else:
            self.keep_alive = parser.should_keep_alive()
            self.complete = True

    def _stopped(self, error: Exception) -> None:
        if isinstance(error, HttpParserUpgrade) and self._parser is not None:
            self.status = self._parser.get_status_code()
            self.complete = True
        self.keep_alive = False
        if self.complete:
            return
        if b"\r\n\r\n" in self._buffer and _STATUS_LINE.match(self._buffer):
            self.error = "malformed response"
        else:
            self.error = no_http_reason(self._buffer)

    def _skip_interim(self) -> None:
        """Drops 100 Continue and 103 Early Hints, which are not the answer."""
        end = self._buffer.find(b"\r\n\r\n") + 4
        self._skipped += end
        self._buffer = self._buffer[end:]
        self._head_end = -1
        self.status = 0

    def _read_head_only(self) -> None:
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            match = _STATUS_LINE.match(self._buffer)
            if match is None:
                self.error = no_http_reason(self._buffer)
                return
            self.status = int(match[1])
            if 100 <= self.status < 200 and self.status != 101:
                self._skip_interim()
                continue
            self.keep_alive = len(self._buffer) == end + 4 and _keeps_alive(self._buffer)
            self.complete = True
            return
        if not self._buffer.startswith(b"HTTP/1."[: len(self._buffer)]):
            self.error = no_http_reason(self._buffer)


def _keeps_alive(raw: bytes) -> bool:
    head = ResponseHead(raw, 0, -1, False)
    options = ",".join(head.headers.get_all("connection")).lower()
    tokens = {token.strip() for token in options.split(",")}
    if head.version == "HTTP/1.0":
        return "keep-alive" in tokens
    return "close" not in tokens
