"""The header `traceparent` (W3C Trace Context), by which a tracing system finds a request again.

Each exchange begins a trace of its own, which is marked as sampled. A header that the author wrote
stays.
"""

from __future__ import annotations

from secrets import token_hex

NAME = b"traceparent"


def new_traceparent() -> bytes:
    """A trace and a span that nobody had before."""
    return f"00-{token_hex(16)}-{token_hex(8)}-01".encode()


def with_traceparent(raw: bytes) -> bytes:
    """The bytes of a request of HTTP/1 with the header behind the request line."""
    end = raw.find(b"\r\n\r\n")
    if b"\r\ntraceparent:" in raw[:end].lower():
        return raw
    line = raw.index(b"\r\n") + 2
    return b"%b%b: %b\r\n%b" % (raw[:line], NAME, new_traceparent(), raw[line:])
