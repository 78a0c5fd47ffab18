"""The data that all calls of a method with the same options share: header block and types."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

from squall.api.errors import CallError
from squall.api.protocols.grpc import STATUSES
from squall.clients.grpc.framing import ENCODINGS, PREFIX_BYTES, framed
from squall.clients.grpc.methods import Method, PreparedProtobuf, encoded
from squall.clients.http.encode import NO_OPENING, Field, PreparedHeaders, field, headers_of
from squall.clients.http.request import Request
from squall.clients.http.url import PreparedURL
from squall.clients.http2.header_blocks import request_block

# The largest number of a unit that the header may have.
_MOST_UNITS = 99_999_999
# Of HTTP/1, or set by the call itself.
_NOT_SENT = frozenset({"accept", "connection", "content-type", "te", "grpc-timeout"})
_BINARY_NAME = re.compile(r"[0-9A-Za-z_.-]+-bin")


class MethodCall:
    """The method and options of a call. `block` lacks the deadline, which is its own field."""

    __slots__ = (
        "_form",
        "_method",
        "_text",
        "accepted",
        "block",
        "encoding",
        "first",
        "origin",
        "url",
    )

    method = "POST"

    def __init__(
        self,
        url: PreparedURL,
        method: Method | None,
        fields: Sequence[Field],
        encoding: str,
        accepted: frozenset[int],
    ) -> None:
        self.url = url
        self.origin = url.origin
        self.encoding = encoding
        # By what a prepared message keeps its bytes.
        self._form = (url.target, encoding)
        self.accepted = accepted
        self._method = method
        lines = [
            ("te", b"te: trailers\r\n"),
            ("content-type", b"content-type: application/grpc\r\n"),
            ("grpc-accept-encoding", f"grpc-accept-encoding: {ENCODINGS}\r\n".encode()),
            *fields,
        ]
        if encoding:
            lines.append(("grpc-encoding", f"grpc-encoding: {encoding}\r\n".encode()))
        request = Request("POST", url.origin, url.target, NO_OPENING, lines, b"", b"")
        self._text = request.raw
        self.block = request_block(request)
        # The block with a deadline, for the limit that most calls have: (limit, block).
        self.first: tuple[float, bytes] = (0.0, b"")

    @property
    def address(self) -> str:
        return self.url.address

    @property
    def text(self) -> bytes:
        """The request as HTTP/1 would write it, for people."""
        return self._text.replace(b" HTTP/1.1\r\n", b" HTTP/2\r\n", 1)

    def block_for(self, limit_s: float) -> bytes:
        """The headers with the deadline."""
        known = self.first
        if known[0] == limit_s:
            return known[1]
        value = timeout_value(limit_s)
        block = self.block + b"\0\x0cgrpc-timeout" + bytes((len(value),)) + value
        self.first = (limit_s, block)
        return block

    def body(self, message: Any) -> bytes:
        """A message, encoded and with its length."""
        if message.__class__ is PreparedProtobuf:
            known = message.framed.get(self._form)
            if known is None:
                known = encoded(message.value, self._method, self.encoding)
                message.framed[self._form] = known
            return known
        if message.__class__ is bytes:
            return framed(message, self.encoding)
        return encoded(message, self._method, self.encoding)

    def decoded(self, reply: bytes) -> Any:
        if self._method is None:
            raise CallError(
                f"the type of the replies of {self.url.target.decode()} is not known: load the "
                ".proto file with Proto(...), import the generated module, or use reply_as"
            )
        return self._method.reply.FromString(reply)

    def shown(self, bodies: Sequence[bytes]) -> bytes:
        """Messages as people read them."""
        method = self._method
        if method is None or self.encoding:
            return f"({sum(map(len, bodies))} bytes)".encode()
        texts = [str(method.request.FromString(each[PREFIX_BYTES:])).strip() for each in bodies]
        return "\n".join(texts).encode()


def timeout_value(limit_s: float) -> bytes:
    """Milliseconds, or seconds where that number has too many digits."""
    milliseconds = max(int(limit_s * 1000), 1)
    if milliseconds <= _MOST_UNITS:
        return b"%dm" % milliseconds
    return b"%dS" % min(int(limit_s), _MOST_UNITS)


def metadata_fields(given: Any) -> tuple[Field, ...]:
    if isinstance(given, PreparedHeaders):
        return given.fields
    if not isinstance(given, Mapping):
        return headers_of(given).fields
    fields: list[Field] = []
    for name, value in cast("Mapping[str, Any]", given).items():
        if isinstance(value, bytes):
            if _BINARY_NAME.fullmatch(name) is None:
                raise CallError(f'metadata "{name}" has bytes; such a name must end with "-bin"')
            value = base64.b64encode(value).decode().rstrip("=")
        fields.append(field(name, value))
    return tuple(fields)


def accepted_codes(names: Any) -> frozenset[int]:
    """The status names that count as success. Raises a `CallError` for an unknown one."""
    if isinstance(names, str):
        names = [names]
    found: set[int] = set()
    for name in names:
        if name not in STATUSES:
            raise CallError(
                f"expect={name!r} is no status of gRPC; there are {', '.join(STATUSES)}"
            )
        found.add(STATUSES.index(name))
    return frozenset(found)


def default_fields(fields: Sequence[Field], given: Sequence[Field]) -> list[Field]:
    """The headers of all requests of the share that a gRPC call sends, too."""
    names = _NOT_SENT | {name for name, _ in given}
    return [item for item in fields if item[0] not in names]
