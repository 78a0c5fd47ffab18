"""Composes a request, and derives the next one from a redirect.

The order of lines is Host, defaults, the author's headers, Authorization, content,
Cookie. A header of the author replaces the default of the same name; `auth=` replaces an
Authorization header; the length of the body is always computed.
"""

from __future__ import annotations

from collections.abc import Iterable

from squall.api.http import HTTPResponse, ResponseHead
from squall.clients.http.body import PreparedBody
from squall.clients.http.encode import (
    NO_OPENING,
    Field,
    Opening,
    PreparedAuth,
    PreparedHeaders,
    field,
    opening_of,
)
from squall.clients.http.origin import Origin
from squall.clients.http.url import PreparedURL

# RFC 9110, 9.2.2: sent twice they have the effect of one, so a lost one may be repeated.
REPEATABLE = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE"})
REDIRECTS = frozenset({301, 302, 303, 307, 308})

_WITH_BODY = frozenset({"POST", "PUT", "PATCH"})
_OF_CONTENT = frozenset({"content-type", "content-length", "content-encoding", "content-language"})
# Headers of the author that `compose` merges or leaves out.
_MERGED = frozenset({"cookie", "content-length"})
_OF_ORIGIN = frozenset({"authorization", "cookie", "proxy-authorization", "host"})


class Request:
    """A request ready to send, except for the cookies of the user's jar."""

    __slots__ = (
        "_extra",
        "_opening",
        "answer",
        "body",
        "cookie",
        "head",
        "header_block",
        "method",
        "origin",
        "raw",
        "target",
    )

    def __init__(
        self,
        method: str,
        origin: Origin,
        target: bytes,
        opening: Opening,
        extra: list[Field],
        cookie: bytes,
        body: bytes,
    ) -> None:
        self.method = method
        self.origin = origin
        self.target = target
        self.cookie = cookie
        self.body = body
        # The head that answered last: a guess at the next one.
        self.answer: ResponseHead | None = None
        # The head without cookies as HTTP/2 sends it, once it was sent that way.
        self.header_block = b""
        self._opening = opening
        self._extra = extra
        lines = b"".join([line for _, line in extra]) if extra else b""
        self.head = head = b"%b %b%b HTTP/1.1\r\n%b%b" % (
            method.encode(),
            origin.prefix,
            target,
            opening.block,
            lines,
        )
        self.raw = self.with_cookies(b"") if cookie else b"%b\r\n%b" % (head, body)

    @property
    def fields(self) -> list[Field]:
        return [*self._opening.fields, *self._extra]

    @property
    def address(self) -> str:
        return self.origin.text + self.target.decode("ascii")

    @property
    def path(self) -> str:
        return self.target.partition(b"?")[0].decode("ascii")

    def cookies(self, stored: bytes) -> bytes:
        """The value of the Cookie header; empty without any."""
        cookie = self.cookie
        if stored:
            cookie = _merged(cookie, stored) if cookie else stored
        return cookie

    def with_cookies(self, stored: bytes) -> bytes:
        """The bytes to send. The request's own cookies replace stored ones of the same name."""
        cookie = self.cookies(stored)
        if cookie:
            return b"%bCookie: %b\r\n\r\n%b" % (self.head, cookie, self.body)
        return b"%b\r\n%b" % (self.head, self.body)


class RequestTemplate:
    """The bytes of all requests to one URL whose headers have the same names.

    `form % (*values, length, content)` is a request with a body, `form % values` one without.
    It stands for the request behind a response: the address is the same for all of them.
    """

    __slots__ = ("answer", "form", "method", "origin", "target")

    def __init__(self, request: Request, form: bytes) -> None:
        self.method = request.method
        self.origin = request.origin
        self.target = request.target
        self.form = form
        # The head that answered last: a guess at the next one.
        self.answer: ResponseHead | None = None

    @property
    def address(self) -> str:
        return self.origin.text + self.target.decode("ascii")


def template_of(
    method: str, url: PreparedURL, names: tuple[str, ...] | PreparedHeaders, content_type: bytes
) -> RequestTemplate | None:
    """The template of calls with these header names, or with these prepared headers. An empty
    content type means that there is no body. None if a header does not become a line of its own."""
    if isinstance(names, PreparedHeaders):
        fields = names.fields
    else:
        fields = tuple(_marked(field(name, "")) for name in names)
    given = {name for name, _ in fields}
    if given & _MERGED or (url.auth is not None and "authorization" in given):
        return None
    body = PreparedBody(None, b"", content_type) if content_type else None
    request = compose(method, url, url.target, fields, b"", None, body)
    head = request.head.replace(b"%", b"%%").replace(b"\0", b"%b")
    if body is None:
        return RequestTemplate(request, head + b"\r\n")
    # `compose` writes the length last.
    opening = head.removesuffix(b"Content-Length: 0\r\n")
    return RequestTemplate(request, opening + b"Content-Length: %d\r\n\r\n%b")


def _marked(line: Field) -> Field:
    """Puts a byte in the place of the value that no header can contain."""
    return line[0], line[1].removesuffix(b"\r\n") + b"\0\r\n"


def compose(
    method: str,
    url: PreparedURL,
    target: bytes,
    given: tuple[Field, ...],
    cookie: bytes,
    auth: PreparedAuth | None,
    body: PreparedBody | None,
) -> Request:
    auth = auth or url.auth
    opening, extra, typed = url.opening, list[Field](), False
    for item in given:
        name = item[0]
        if name in opening.names:
            opening = opening_of(tuple(other for other in opening.fields if other[0] != name))
        if name == "cookie":
            value = item[1].partition(b":")[2].strip()
            cookie = _merged(cookie, value) if cookie else value
        elif name == "content-type":
            typed = True
            extra.append(item)
        elif name != "content-length" and not (name == "authorization" and auth is not None):
            extra.append(item)
    if auth is not None:
        extra.append(("authorization", auth.line))
    content = b""
    if body is not None:
        content = body.content
        if body.content_type and not typed:
            extra.append(("content-type", b"Content-Type: %b\r\n" % body.content_type))
    if body is not None or method in _WITH_BODY:
        extra.append(("content-length", b"Content-Length: %d\r\n" % len(content)))
    return Request(method, url.origin, target, opening, extra, cookie, content)


def redirected(request: Request, response: HTTPResponse, url: PreparedURL) -> Request:
    """The request that a browser would send after the redirect (RFC 9110, 15.4)."""
    method, body, dropped = request.method, request.body, frozenset[str]()
    status = response.status_code
    to_get = status == 303 and method != "HEAD"
    if to_get or (status in (301, 302) and method == "POST"):
        method, body = "GET", b""
        dropped |= _OF_CONTENT
    cookie = request.cookie
    elsewhere = url.origin is not request.origin
    if elsewhere:
        dropped |= _OF_ORIGIN
        cookie = b""
    fields = [item for item in request.fields if item[0] not in dropped]
    if elsewhere:
        fields[:0] = origin_fields(url.origin)
    if url.auth is not None:
        fields = [item for item in fields if item[0] != "authorization"]
        fields.append(("authorization", url.auth.line))
    return Request(method, url.origin, url.target, NO_OPENING, fields, cookie, body)


def default_fields(extra: Iterable[tuple[str, str]], *, close: bool) -> tuple[Field, ...]:
    """The headers of every request that the author does not replace."""
    fields = {"user-agent": field("User-Agent", "squall"), "accept": field("Accept", "*/*")}
    if close:
        fields["connection"] = field("Connection", "close")
    for name, value in extra:
        fields[name.lower()] = field(name, value)
    return tuple(fields.values())


def origin_fields(origin: Origin) -> tuple[Field, ...]:
    """The headers that belong to an origin: its name, and credentials for its proxy."""
    host = ("host", b"Host: %b\r\n" % origin.authority.encode())
    if origin.proxy is None or origin.tls or not origin.proxy.auth:
        return (host,)
    return (host, ("proxy-authorization", origin.proxy.auth))


def _merged(own: bytes, stored: bytes) -> bytes:
    names = {pair.partition(b"=")[0] for pair in own.split(b"; ")}
    rest = [pair for pair in stored.split(b"; ") if pair.partition(b"=")[0] not in names]
    return b"; ".join([own, *rest])
