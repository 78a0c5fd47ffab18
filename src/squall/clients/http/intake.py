"""Puts one response together when the fast path of a connection cannot.

The bytes go through llhttp (chunked, interim 1xx, errors), which calls back only for the
parts that are needed; the head is cut out of the bytes received and read on demand. A
response to HEAD never meets llhttp, which would wait for its body. Nothing here knows
futures, pools or counters.
"""

from __future__ import annotations

import re

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from squall.api.http import ResponseHead
from squall.clients.http.request import REDIRECTS

# Larger heads are an attack or garbage; Apache and nginx stop at a few kilobytes.
MOST_HEAD_BYTES = 256 * 1024
_FIRST_BYTE = b"H"[0]
_STATUS_LINE = re.compile(rb"HTTP/1\.[0-9] ([0-9]{3})[ \r\n]")


class Intake:
    """Feed it packets until `complete` or `error`; then `reset` it for the next response."""

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
        "surplus",
    )

    def __init__(self) -> None:
        self._parser: HttpResponseParser | None = None
        self.reset()

    def reset(self) -> None:
        self._body: list[bytes] = []
        self._buffer = b""
        self._head_end = -1
        self._skipped = 0
        self.complete = False
        self.error = ""
        self.first_byte = 0.0
        self.head_only = False
        self.keep_alive = False
        self.received = 0
        self.status = 0
        self.surplus = False

    def close(self) -> None:
        """Breaks the cycle between the parser and its callbacks."""
        self._parser = None

    def feed(self, data: bytes, now: float, most_bytes: int) -> None:
        if not self.received:
            self.first_byte = now
            if data[0] != _FIRST_BYTE:
                self.error = "not an HTTP response"
                return
        self.received += len(data)
        if self.received > most_bytes:
            self.error = f"response larger than {most_bytes >> 20} MiB"
            return
        if self._head_end < 0:
            self._buffer = self._buffer + data if self._buffer else data
            self._head_end = self._buffer.find(b"\r\n\r\n")
            if self._head_end < 0 and len(self._buffer) > MOST_HEAD_BYTES:
                self.error = f"response head larger than {MOST_HEAD_BYTES >> 10} KiB"
                return
        if self.head_only:
            self._read_head_only()
        else:
            self._parse(data)

    def head(self) -> ResponseHead:
        """The head of the complete response; `length` is -1 if it may not be cached."""
        end = self._head_end
        raw = self._buffer[: end + 4] if end >= 0 else self._buffer
        # Looked for without parsing the lines: this runs for every response whose head
        # is unlike all before. A false hit costs a second look and nothing else.
        special = b"\nset-cookie:" in raw.lower() or self.status in REDIRECTS
        plain = self.keep_alive and not self.surplus and not self.head_only
        length = sum(map(len, self._body))
        # Framing bytes beside head and body mean chunks: then the head tells no length.
        exact = plain and end >= 0 and self.received - self._skipped == end + 4 + length
        return ResponseHead(raw, self.status, length if exact else -1, special)

    def body(self) -> bytes:
        parts = self._body
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def end_of_stream(self) -> bool:
        """The peer closed: True if that completes the response (RFC 9112, 6.3, last rule)."""
        if self.complete or self.error or self._head_end < 0 or self.head_only:
            return False
        head = ResponseHead(self._buffer[: self._head_end + 4], 0, -1, False)
        if "content-length" in head.headers or "transfer-encoding" in head.headers:
            return False
        match = _STATUS_LINE.match(head.raw)
        if match is None or match[1].startswith(b"1"):
            return False
        self.status = int(match[1])
        self.complete = True
        return True

    def on_message_begin(self) -> None:
        if self.complete:
            self.surplus = True

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        parser = self._parser
        if self.complete or parser is None:
            self.surplus = True
            return
        self.status = parser.get_status_code()
        if 100 <= self.status < 200 and self.status != 101:
            self._skip_interim()
            return
        self.keep_alive = parser.should_keep_alive()
        self.complete = True

    def _parse(self, data: bytes) -> None:
        if self._parser is None:
            self._parser = HttpResponseParser(self)
        try:
            self._parser.feed_data(data)
        except HttpParserUpgrade:
            self.status = self._parser.get_status_code()
            self.keep_alive = False
            self.complete = True
        except HttpParserError:
            if self.complete:
                self.surplus = True
            elif self._head_end < 0 or not _STATUS_LINE.match(self._buffer):
                self.error = "not an HTTP response"
            else:
                self.error = "malformed response"

    def _skip_interim(self) -> None:
        """100 Continue and 103 Early Hints are not the answer: drop them from the bytes."""
        self._skipped += self._head_end + 4
        self._buffer = self._buffer[self._head_end + 4 :]
        self._head_end = self._buffer.find(b"\r\n\r\n")
        self.status = 0

    def _read_head_only(self) -> None:
        while self._head_end >= 0:
            match = _STATUS_LINE.match(self._buffer)
            if match is None:
                self.error = "not an HTTP response"
                return
            self.status = int(match[1])
            if not 100 <= self.status < 200 or self.status == 101:
                break
            self._skip_interim()
        else:
            if self._buffer and not b"HTTP/1.".startswith(self._buffer[:7]):
                self.error = "not an HTTP response"
            return
        self.surplus = len(self._buffer) > self._head_end + 4
        self.keep_alive = _keeps_alive(self._buffer[: self._head_end + 4])
        self.complete = True


def _keeps_alive(raw: bytes) -> bool:
    head = ResponseHead(raw, 0, -1, False)
    wishes = ",".join(head.headers.get_all("connection")).lower()
    tokens = {token.strip() for token in wishes.split(",")}
    if head.version == "HTTP/1.0":
        return "keep-alive" in tokens
    return "close" not in tokens
