"""The author's HTTP API: the response, and the verbs of `self.client.http`.

Everything that costs time (header parsing, decompression, text, JSON) happens on access
and never while a response is received. Nothing here does I/O: the client in
`squall.clients.http` builds these objects and implements `HTTPVerbs`.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from importlib import import_module
from typing import (
    Any,
    ClassVar,
    NamedTuple,
    Protocol,
    TypedDict,
    TypeVar,
    Unpack,
    overload,
)

import msgspec

from squall.api.arguments import URL, Auth, Cookies, Data, File, Form, Headers, Params
from squall.api.errors import CallError, StatusError
from squall.api.results import CallResult

T = TypeVar("T")

# Characters of a body that an error shows: enough to recognize an HTML page or a message.
BODY_START = 80


class HTTPTimings(NamedTuple):
    """Times in seconds. The first three are 0 on a reused connection and not in `total_s`."""

    dns_s: float
    """Name lookup."""
    connect_s: float
    """TCP connect."""
    tls_s: float
    """TLS handshake."""
    first_byte_s: float
    """From sending the request to the first byte of the answer."""
    total_s: float
    """From sending the request to the last byte of the answer."""


class HTTPHeaders(Mapping[str, str]):
    """Response headers by case-insensitive name; a repeated name gives its last value."""

    __slots__ = ("_names", "_values")

    def __init__(self, pairs: list[tuple[str, str]]) -> None:
        self._values: dict[str, list[str]] = {}
        self._names: dict[str, str] = {}
        for name, value in pairs:
            self._values.setdefault(name.lower(), []).append(value)
            self._names.setdefault(name.lower(), name)

    def __getitem__(self, name: str) -> str:
        return self._values[name.lower()][-1]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names.values())

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name.lower() in self._values

    def get_all(self, name: str) -> list[str]:
        """Every value of the name, in the order received."""
        return list(self._values.get(name.lower(), ()))

    def __repr__(self) -> str:
        return f"HTTPHeaders({dict(self)!r})"


class ResponseHead(msgspec.Struct, eq=False, gc=False):
    """Status line and headers as received; all responses with equal bytes share one object.

    `received` begins with the head and may continue after its blank line. `length` is the size of
    the body that always follows this head, or -1 if the head does not say. `special` marks a head
    that needs more work: cookies to store, a redirect to follow.
    """

    received: bytes
    status: int
    length: int
    special: bool
    _headers: HTTPHeaders | None = None
    _encoding: str | None = None

    @property
    def encoding(self) -> str:
        """The value of Content-Encoding, empty without one."""
        if self._encoding is None:
            self._encoding = self.headers.get("content-encoding", "")
        return self._encoding

    @property
    def raw(self) -> bytes:
        """Exactly the head, with the blank line that ends it."""
        head, blank_line, _ = self.received.partition(b"\r\n\r\n")
        return head + blank_line

    @property
    def headers(self) -> HTTPHeaders:
        if self._headers is None:
            self._headers = HTTPHeaders(_header_pairs(self.raw))
        return self._headers

    @property
    def version(self) -> str:
        """ "HTTP/1.1", "HTTP/1.0", "HTTP/2" or "HTTP/3"."""
        return self.received[:8].rstrip().decode("latin-1").partition(" ")[0]


class Addressed(Protocol):
    """The request behind a response; computes the absolute address on demand."""

    method: str

    @property
    def address(self) -> str: ...


class HTTPResponse(CallResult, msgspec.Struct, eq=False, gc=False):
    """One answered call. Stamps are `time.perf_counter` readings.

    `started` is when the first hop's first request byte was sent, `first_byte` and `ended` belong
    to the last hop, `hops` counts the exchanges of this response.
    """

    protocol: ClassVar[str] = "http"

    status_code: int
    """The status of the last hop."""
    head: ResponseHead
    raw_body: bytes
    source: Addressed
    started: float
    first_byte: float
    ended: float
    hops: int = 1
    # Seconds for name, TCP and TLS if this exchange opened its connection.
    setup: tuple[float, float, float] | None = None
    _body: bytes | None = None
    # The value of the last `json()`, and the decoder that made it.
    _decoded: Any = None
    _decoded_by: msgspec.json.Decoder[Any] | None = None

    @property
    def ok(self) -> bool:
        """Whether the status is 200 to 399. `expect` of the step does not change it."""
        return 200 <= self.status_code < 400

    @property
    def url(self) -> str:
        """The absolute address that answered, after redirects."""
        return self.source.address

    @property
    def request(self) -> str:
        """Like "POST https://shop.test/orders": what was answered, after redirects."""
        return f"{self.source.method} {self.source.address}"

    @property
    def status_text(self) -> str:
        """Like "503 Service Unavailable"; the standard phrase where there is one."""
        try:
            phrase = HTTPStatus(self.status_code).phrase
        except ValueError:
            phrase = self.reason
        return f"{self.status_code} {phrase}".rstrip()

    @property
    def reason(self) -> str:
        """The phrase the server wrote, which may be empty."""
        return _status_line(self.head.received).partition(" ")[2].partition(" ")[2].strip()

    @property
    def headers(self) -> HTTPHeaders:
        """The response headers; names are case-insensitive."""
        return self.head.headers

    @property
    def cookies(self) -> dict[str, str]:
        """The cookies that this response sets, whether or not the jar accepts them."""
        found: dict[str, str] = {}
        for line in self.headers.get_all("set-cookie"):
            name, equals, value = line.partition(";")[0].partition("=")
            if equals:
                found[name.strip()] = value.strip()
        return found

    @property
    def body(self) -> bytes:
        """The content, decompressed on first access if the server compressed it."""
        if self._body is None:
            encoding = self.head.encoding
            self._body = decoded(self.raw_body, encoding) if encoding else self.raw_body
        return self._body

    @property
    def text(self) -> str:
        """The content as text, in the charset of its `Content-Type`, else in UTF-8."""
        return self.body.decode(_charset(self.headers.get("content-type", "")), "replace")

    @overload
    def json(self) -> Any: ...
    @overload
    def json(self, type: type[T]) -> T: ...
    def json(self, type: Any = None) -> Any:
        """The content as JSON: plain dicts and lists, or an object of `type` (a dataclass, a
        TypedDict, a msgspec.Struct, `list[Item]`), which is faster and checks the fields.

        The content is decoded once; a second call returns the same object. Raises a `ValueError`
        that says where the content is malformed or not of that type, and how it starts."""
        decoder = _PLAIN_DECODER if type is None else _DECODERS.get(type) or _decoder_of(type)
        if decoder is self._decoded_by:
            return self._decoded
        try:
            value = decoder.decode(self.body.removeprefix(b"\xef\xbb\xbf"))
        except msgspec.DecodeError as error:
            # In a second line: the first one is the key under which failures are counted.
            start = self.text[:BODY_START]
            shown = f"the body starts with {start!r}" if start else "the body is empty"
            status = f"status {self.status_code}, {self.headers.get('content-type', 'no type')}"
            raise msgspec.DecodeError(f"{error}\n{shown} ({status})") from None
        self._decoded = value
        self._decoded_by = decoder
        return value

    @property
    def timings(self) -> HTTPTimings:
        """How long name lookup, connect, TLS, the first byte and the whole exchange took."""
        dns_s, connect_s, tls_s = self.setup or (0.0, 0.0, 0.0)
        first_byte_s = self.first_byte - self.started
        return HTTPTimings(dns_s, connect_s, tls_s, first_byte_s, self.ended - self.started)

    def raise_for_status(self) -> None:
        """Raises `StatusError` unless the status is 200 to 399."""
        if not self.ok:
            raise StatusError(self.status_text, self)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.status_text}, {len(self.raw_body)} B, {self.url}>"


class HTTP2Response(HTTPResponse, eq=False, gc=False):
    """One answered call of `self.client.http2`. It has what an `HTTPResponse` has, and trailers."""

    protocol: ClassVar[str] = "http2"

    raw_trailers: tuple[tuple[bytes, bytes], ...] = ()

    @property
    def trailers(self) -> HTTPHeaders:
        """The headers that the server sent after the body; names are case-insensitive."""
        return _trailers(self.raw_trailers)


class HTTP3Response(HTTPResponse, eq=False, gc=False):
    """One answered call of `self.client.http3`. It has what an `HTTPResponse` has, and trailers.
    In `timings`, `tls_s` is the whole QUIC handshake and `connect_s` is 0."""

    protocol: ClassVar[str] = "http3"

    raw_trailers: tuple[tuple[bytes, bytes], ...] = ()

    @property
    def trailers(self) -> HTTPHeaders:
        """The headers that the server sent after the body; names are case-insensitive."""
        return _trailers(self.raw_trailers)


def _trailers(pairs: tuple[tuple[bytes, bytes], ...]) -> HTTPHeaders:
    return HTTPHeaders([(name.decode("latin-1"), value.decode("latin-1")) for name, value in pairs])


RESPONSES: dict[str, type[HTTPResponse]] = {
    "http": HTTPResponse,
    "http2": HTTP2Response,
    "http3": HTTP3Response,
}
"""What a measured step of each protocol returns."""


class CallOptions(TypedDict, total=False):
    """The keywords of every verb: each takes a plain value or a prepared argument."""

    headers: Headers | None
    """Headers of this request."""
    params: Params | None
    """Query parameters, added to the query of the URL."""
    cookies: Cookies | None
    """Cookies of this request, added to those of the user."""
    auth: Auth | None
    """Credentials; they replace an `Authorization` header."""
    path: Mapping[str, str | float] | None
    """Values for the `{name}` parts of the URL; they are percent-encoded."""
    timeout: str | float | None
    """Limit for this call, such as `"5s"`, instead of the limit of the step or workflow."""
    redirects: int | None
    """How many redirects to follow, 10 by default; 0 returns the redirect itself."""
    name: str | None
    """Gives this call a row of its own in the results."""


class BodyOptions(CallOptions, total=False):
    """The keywords of a verb that may send a body."""

    data: Data | File | None
    """A body: a dict or list is sent as JSON, text, bytes and files are sent unchanged."""
    json: Any
    """A body that is sent as JSON."""
    form: Form | None
    """A body of form fields; may be combined with `files`."""
    files: Mapping[str, File] | None
    """Files of a multipart body, by the name of their field."""


class HTTPVerbs(Protocol):
    """`self.client.http`: one method per HTTP verb, `request` for any other.

    Every verb sends one request on a connection of the user, follows redirects, stores cookies and
    returns the response, whatever its status. It raises `TransportError` if there is no answer.
    """

    async def get(self, url: URL, **options: Unpack[CallOptions]) -> HTTPResponse:
        """Sends a GET request. A GET has no body; `request("GET", ...)` can send one."""
        ...

    async def head(self, url: URL, **options: Unpack[CallOptions]) -> HTTPResponse:
        """Sends a HEAD request: the response has headers and no body."""
        ...

    async def options(self, url: URL, **options: Unpack[CallOptions]) -> HTTPResponse:
        """Sends an OPTIONS request."""
        ...

    async def post(self, url: URL, **options: Unpack[BodyOptions]) -> HTTPResponse:
        """Sends a POST request, with a body if one of `json`, `data`, `form` and `files` is given.
        A POST is never repeated, not even when a reused connection turns out to be closed."""
        ...

    async def put(self, url: URL, **options: Unpack[BodyOptions]) -> HTTPResponse:
        """Sends a PUT request; takes the bodies of `post`."""
        ...

    async def patch(self, url: URL, **options: Unpack[BodyOptions]) -> HTTPResponse:
        """Sends a PATCH request; takes the bodies of `post`."""
        ...

    async def delete(self, url: URL, **options: Unpack[BodyOptions]) -> HTTPResponse:
        """Sends a DELETE request; takes the bodies of `post`."""
        ...

    async def request(self, method: str, url: URL, **options: Unpack[BodyOptions]) -> HTTPResponse:
        """Sends a request with any method, such as `"PURGE"`. Only CONNECT is refused."""
        ...


class HTTP2Verbs(Protocol):
    """`self.client.http2`: the verbs of `self.client.http` over HTTP/2.

    `https://` negotiates HTTP/2 in the handshake, `http://` speaks it without asking (prior
    knowledge). Calls of a user that run at the same time are streams of one connection.
    """

    async def get(self, url: URL, **options: Unpack[CallOptions]) -> HTTP2Response:
        """Sends a GET request. A GET has no body; `request("GET", ...)` can send one."""
        ...

    async def head(self, url: URL, **options: Unpack[CallOptions]) -> HTTP2Response:
        """Sends a HEAD request: the response has headers and no body."""
        ...

    async def options(self, url: URL, **options: Unpack[CallOptions]) -> HTTP2Response:
        """Sends an OPTIONS request."""
        ...

    async def post(self, url: URL, **options: Unpack[BodyOptions]) -> HTTP2Response:
        """Sends a POST request, with a body if one of `json`, `data`, `form` and `files` is given.
        A POST is repeated only if the server says that it did not handle it."""
        ...

    async def put(self, url: URL, **options: Unpack[BodyOptions]) -> HTTP2Response:
        """Sends a PUT request; takes the bodies of `post`."""
        ...

    async def patch(self, url: URL, **options: Unpack[BodyOptions]) -> HTTP2Response:
        """Sends a PATCH request; takes the bodies of `post`."""
        ...

    async def delete(self, url: URL, **options: Unpack[BodyOptions]) -> HTTP2Response:
        """Sends a DELETE request; takes the bodies of `post`."""
        ...

    async def request(self, method: str, url: URL, **options: Unpack[BodyOptions]) -> HTTP2Response:
        """Sends a request with any method, such as `"PURGE"`. Only CONNECT is refused."""
        ...


class HTTP3Verbs(Protocol):
    """`self.client.http3`: the verbs of `self.client.http` over HTTP/3, which is HTTP over QUIC.

    Addresses begin with `https://`. Calls of a user that run at the same time are streams of one
    connection.
    """

    async def get(self, url: URL, **options: Unpack[CallOptions]) -> HTTP3Response:
        """Sends a GET request. A GET has no body; `request("GET", ...)` can send one."""
        ...

    async def head(self, url: URL, **options: Unpack[CallOptions]) -> HTTP3Response:
        """Sends a HEAD request: the response has headers and no body."""
        ...

    async def options(self, url: URL, **options: Unpack[CallOptions]) -> HTTP3Response:
        """Sends an OPTIONS request."""
        ...

    async def post(self, url: URL, **options: Unpack[BodyOptions]) -> HTTP3Response:
        """Sends a POST request, with a body if one of `json`, `data`, `form` and `files` is given.
        A POST is repeated only if the server says that it did not handle it."""
        ...

    async def put(self, url: URL, **options: Unpack[BodyOptions]) -> HTTP3Response:
        """Sends a PUT request; takes the bodies of `post`."""
        ...

    async def patch(self, url: URL, **options: Unpack[BodyOptions]) -> HTTP3Response:
        """Sends a PATCH request; takes the bodies of `post`."""
        ...

    async def delete(self, url: URL, **options: Unpack[BodyOptions]) -> HTTP3Response:
        """Sends a DELETE request; takes the bodies of `post`."""
        ...

    async def request(self, method: str, url: URL, **options: Unpack[BodyOptions]) -> HTTP3Response:
        """Sends a request with any method, such as `"PURGE"`. Only CONNECT is refused."""
        ...


_PLAIN_DECODER: msgspec.json.Decoder[Any] = msgspec.json.Decoder()
# Making a decoder costs as much as a hundred small bodies.
_DECODERS: dict[Any, msgspec.json.Decoder[Any]] = {}
# Authors have a handful of types; one that is made anew for every call must not fill the memory.
_MOST_DECODERS = 256


def _decoder_of(kind: Any) -> msgspec.json.Decoder[Any]:
    if len(_DECODERS) >= _MOST_DECODERS:
        _DECODERS.clear()
    decoder = _DECODERS[kind] = msgspec.json.Decoder(kind)
    return decoder


def decoded(body: bytes, encodings: str) -> bytes:
    """The body with the listed content encodings undone, last one first."""
    for encoding in reversed([part.strip().lower() for part in encodings.split(",")]):
        if not body or encoding in ("", "identity"):
            continue
        try:
            body = _undo(body, encoding)
        except CallError:
            raise
        except Exception as error:
            raise CallError(f"response body is not valid {encoding}") from error
    return body


def _undo(body: bytes, encoding: str) -> bytes:
    if encoding in ("gzip", "x-gzip"):
        return _gunzip(body)
    if encoding == "deflate":
        try:
            return zlib.decompress(body)
        except zlib.error:
            # Some servers send the bare stream without the zlib wrapper.
            return zlib.decompress(body, -zlib.MAX_WBITS)
    if encoding == "br":
        for module in ("brotli", "brotlicffi"):
            try:
                return bytes(import_module(module).decompress(body))
            except ModuleNotFoundError:
                continue
        raise CallError("response body is br-compressed; to read it, pip install brotli")
    raise CallError(f'response body has the unknown encoding "{encoding}"')


def _gunzip(body: bytes) -> bytes:
    parts: list[bytes] = []
    while body:
        stream = zlib.decompressobj(zlib.MAX_WBITS | 16)
        parts.append(stream.decompress(body))
        if not stream.eof:
            raise ValueError("the gzip stream is cut off")
        body = stream.unused_data.lstrip(b"\0")
    return b"".join(parts)


def _charset(content_type: str) -> str:
    for parameter in content_type.split(";")[1:]:
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "charset":
            charset = value.strip().strip("\"'")
            try:
                "".encode(charset)
            except LookupError:
                break
            return charset
    return "utf-8"


def _status_line(raw: bytes) -> str:
    return raw.partition(b"\n")[0].decode("latin-1").rstrip("\r")


def _header_pairs(raw: bytes) -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    for line in raw.decode("latin-1").split("\n")[1:]:
        if line[:1] in (" ", "\t") and pairs:
            # A folded line continues the value above it (obsolete, still seen).
            name, value = pairs[-1]
            pairs[-1] = (name, f"{value} {line.strip()}".strip())
            continue
        name, colon, value = line.partition(":")
        if colon:
            pairs.append((name.strip(), value.strip()))
    return pairs
