"""Encodes the headers of requests.

Fields are references to the static table, or literals that leave no trace in the peer's dynamic
table. So the block of a request is the same on every connection and is built once. A text that
is sent again and again is Huffman-coded once; one that changes with every call is not worth it.
"""

from __future__ import annotations

from functools import lru_cache

from squall.clients.http.request import Request
from squall.clients.http2.huffman import encoded_text
from squall.clients.http2.static_table import STATIC_TABLE
from squall.clients.shared.traceparent import NAME, new_traceparent

_PAIRS = {pair: index for index, pair in enumerate(STATIC_TABLE, 1) if pair[1]}
_NAMES: dict[bytes, int] = {}
for _index, (_name, _) in enumerate(STATIC_TABLE, 1):
    _NAMES.setdefault(_name, _index)
# RFC 9113, 8.2.2 forbids them; `:authority` says what Host would.
_NOT_SENT = frozenset(
    {"host", "connection", "keep-alive", "proxy-connection", "upgrade", "proxy-authorization"}
)
# Longer texts are tokens of single users, which are rarely sent twice.
_CACHED_BYTES = 64


def request_block(request: Request) -> bytes:
    """The headers of a request without its cookies."""
    origin = request.origin
    authority = origin.authority.encode()
    fields: list[bytes] = []
    for name, line in request.fields:
        value = line.partition(b":")[2].strip()
        if name == "host":
            authority = value
        elif name == "content-length":
            fields.append(_field(b"content-length", value, huffman=False))
        elif name == "te":
            # RFC 9113, 8.2.2: the only value that HTTP/2 has.
            fields.append(_known_field(b"te", b"trailers"))
        elif name not in _NOT_SENT:
            fields.append(_known_field(name.encode(), value))
    return b"".join(
        [
            _known_field(b":method", request.method.encode()),
            _known_field(b":scheme", b"https" if origin.tls else b"http"),
            _known_field(b":authority", authority),
            _field(b":path", request.target, huffman=False),
            *fields,
        ]
    )


def cookie_block(cookie: bytes) -> bytes:
    """One field per pair, as browsers send them (RFC 9113, 8.2.3)."""
    return b"".join([_field(b"cookie", pair, huffman=False) for pair in cookie.split(b"; ")])


def trace_block(block: bytes) -> bytes:
    """The field `traceparent` for a request that has none in its block."""
    if any(name in block for name in _TRACE_NAMES):
        return b""
    return _field(NAME, new_traceparent(), huffman=False)


def _known_field(name: bytes, value: bytes) -> bytes:
    if len(value) > _CACHED_BYTES:
        return _field(name, value, huffman=False)
    return _cached_field(name, value)


@lru_cache(4096)
def _cached_field(name: bytes, value: bytes) -> bytes:
    return _field(name, value, huffman=True)


def _field(name: bytes, value: bytes, *, huffman: bool) -> bytes:
    index = _PAIRS.get((name, value))
    if index is not None:
        return bytes([0x80 | index])
    index = _NAMES.get(name, 0)
    # 0000: a literal that is not added to the table.
    opening = integer(index, 4, 0) if index else b"\0" + _text(name, huffman)
    return opening + _text(value, huffman)


def _text(text: bytes, huffman: bool) -> bytes:
    if huffman:
        code = encoded_text(text)
        if len(code) < len(text):
            return integer(len(code), 7, 0x80) + code
    return integer(len(text), 7, 0) + text


def integer(value: int, bits: int, opening: int) -> bytes:
    """A number behind the bits of `opening`; RFC 7541, 5.1."""
    most = (1 << bits) - 1
    if value < most:
        return bytes([opening | value])
    encoded = bytearray([opening | most])
    value -= most
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


# Both forms in which an author's field may stand in a block.
_TRACE_NAMES = (_text(NAME, huffman=False), _text(NAME, huffman=True))
