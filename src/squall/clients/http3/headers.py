"""Translates the headers of requests for HTTP/3, and those of responses into heads."""

from __future__ import annotations

import re

from squall.api.http import ResponseHead
from squall.clients.http.request import REDIRECTS, Request

Fields = list[tuple[bytes, bytes]]

# RFC 9114, 4.2 forbids them; `:authority` says what Host would.
_NOT_SENT = frozenset(
    {"host", "connection", "keep-alive", "proxy-connection", "upgrade", "proxy-authorization"}
)
# A Date header alone makes a new head every second.
_MOST_HEADS = 512
_UNSAFE = re.compile(rb"[\r\n\0]").search


def request_fields(request: Request) -> Fields:
    """The headers of a request without its cookies."""
    authority = request.origin.authority.encode()
    fields: Fields = []
    for name, line in request.fields:
        value = line.partition(b":")[2].strip()
        if name == "host":
            authority = value
        elif name == "te":
            # RFC 9114, 4.2: the only value that HTTP/3 has.
            fields.append((b"te", b"trailers"))
        elif name not in _NOT_SENT:
            fields.append((name.encode(), value))
    return [
        (b":method", request.method.encode()),
        (b":scheme", b"https"),
        (b":authority", authority),
        (b":path", request.target),
        *fields,
    ]


def cookie_fields(cookie: bytes) -> Fields:
    """One field per pair, as browsers send them (RFC 9114, 4.2.1)."""
    return [(b"cookie", pair) for pair in cookie.split(b"; ")]


class ResponseHeads:
    """Heads by their fields: equal responses share one object."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[tuple[tuple[bytes, bytes], ...], ResponseHead | None] = {}

    def get(self, fields: Fields) -> ResponseHead | None:
        """None if the head is malformed."""
        key = tuple(fields)
        try:
            return self._known[key]
        except KeyError:
            if len(self._known) >= _MOST_HEADS:
                self._known.clear()
            head = self._known[key] = _response_head(fields)
            return head


def is_trailer(fields: Fields) -> bool:
    return not any(name.startswith(b":") or _UNSAFE(name + value) for name, value in fields)


def _response_head(fields: Fields) -> ResponseHead | None:
    """The head as HTTP/1 would write it; None if a field or the lengths are not allowed."""
    status, plain = b"", fields[1:]
    if fields and fields[0][0] == b":status":
        status = fields[0][1]
    if len(status) != 3 or not status.isdigit() or status < b"100" or not is_trailer(plain):
        return None
    lengths = {value for name, value in plain if name == b"content-length"}
    length = -1
    if lengths:
        value = lengths.pop()
        if lengths or not value.isdigit() or len(value) > 18:
            return None
        length = int(value)
    lines = b"".join([b"%b: %b\r\n" % field for field in plain])
    special = int(status) in REDIRECTS or any(name == b"set-cookie" for name, _ in plain)
    return ResponseHead(b"HTTP/3 %b\r\n%b\r\n" % (status, lines), int(status), length, special)
