"""Reads an author's URL once: origin, encoded target, placeholders, credentials.

What is sent is decided here: fragments are dropped, host names are lower-cased and
IDNA-encoded, characters that a request line cannot hold are percent-encoded and an
existing `%41` is left alone. Placeholders (`{id}`) may stand in path and query only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urljoin, urlsplit

from squall.api.arguments import Prepared
from squall.api.errors import CallError
from squall.api.http import ResponseHead
from squall.clients.calls.address import without_credentials
from squall.clients.http.encode import NO_OPENING, PreparedAuth, auth_of, path_segment
from squall.clients.http.origin import DEFAULT_PORTS, Origin, Origins

if TYPE_CHECKING:
    from squall.clients.http.request import Request, RequestTemplate

_PLACEHOLDER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
_KEPT = "/?:@!$&'()*+,;=%-._~"
_STRAY_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})")
# A WebSocket begins as a request to the same origin, and gRPC is HTTP/2.
_OVER_HTTP = {"ws": "http", "wss": "https", "grpc": "http", "grpcs": "https"}
_CONTROL = re.compile(r"[\x00-\x20\x7f]")


class PreparedURL(Prepared):
    """A URL ready to send.

    `lane` is the origin if a plain `get(url)` may send `get_raw` as it is, and None for
    a template, whose target changes from call to call.
    """

    __slots__ = (
        "answer",
        "auth",
        "get_raw",
        "lane",
        "method",
        "opening",
        "origin",
        "pieces",
        "plain_get",
        "requests",
        "target",
        "templates",
    )

    def __init__(
        self, text: str, origin: Origin, target: bytes, pieces: tuple[bytes | str, ...]
    ) -> None:
        super().__init__(text)
        self.origin = origin
        self.target = target
        self.pieces = pieces
        self.auth: PreparedAuth | None = None
        self.lane: Origin | None = None
        self.opening = NO_OPENING
        self.get_raw = b""
        # The same request for protocols that do not send `get_raw`, once one of them was asked.
        self.plain_get: Request | None = None
        # Of the plain call that sends `get_raw`; a `Request` has its own.
        self.method = "GET"
        # The head that answered last: a guess at the next one.
        self.answer: ResponseHead | None = None
        self.requests: dict[Any, Request] = {}
        self.templates: dict[Any, RequestTemplate] = {}

    @property
    def address(self) -> str:
        return self.origin.text + self.target.decode("ascii")

    def filled(self, path: Mapping[str, str | float] | None) -> bytes:
        """The target with its placeholders replaced."""
        if not self.pieces:
            return self.target
        values = path or {}
        parts: list[bytes] = []
        for piece in self.pieces:
            if isinstance(piece, bytes):
                parts.append(piece)
            elif piece in values:
                parts.append(path_segment(values[piece]))
            else:
                raise CallError(f'url "{self.value}" needs path={{"{piece}": ...}}')
        return b"".join(parts)


def read_url(text: Any, host: str, origins: Origins, *, literal: bool = False) -> PreparedURL:
    """Reads a URL. `host` completes one that starts with a slash; `literal` text has no
    placeholders."""
    if not isinstance(text, str):
        raise CallError(f"a URL must be text, not {type(text).__name__}")
    whole = _completed(text.strip(), host)
    # Messages must not show a password.
    shown = without_credentials(text)
    try:
        parts = urlsplit(whole)
        name, port = parts.hostname, parts.port
    except ValueError as error:
        if shown != text:
            raise CallError(f'"{shown}" is not a URL: percent-encode user and password') from None
        raise CallError(f'"{text}" is not a URL: {error}') from error
    scheme = _OVER_HTTP.get(parts.scheme, parts.scheme)
    if scheme not in DEFAULT_PORTS:
        hint = "" if "://" in text else ", or with / for a path of the host"
        raise CallError(f'"{shown}" is not a URL: it must start with http:// or https://{hint}')
    if port == 0:
        raise CallError(f'"{shown}" is not a URL: there is no port 0')
    if not name or _PLACEHOLDER.search(parts.netloc):
        raise CallError(f'"{shown}" is not a URL: it has no fixed host name')
    origin = origins.get(scheme, _ascii_host(name, shown), port or DEFAULT_PORTS[scheme])
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    pieces = () if literal else _split(target)
    url = PreparedURL(text, origin, _encoded(target), pieces)
    if parts.username is not None:
        url.auth = auth_of((unquote(parts.username), unquote(parts.password or "")))
    return url


def join(base: str, location: str) -> str:
    """The absolute address a Location header points to."""
    return urljoin(base, location.strip())


def _completed(text: str, host: str) -> str:
    if not text.startswith("/") or text.startswith("//"):
        if text.startswith("//") and host:
            return f"{urlsplit(host).scheme or 'http'}:{text}"
        return text
    if not host:
        raise CallError(
            f'"{text}" is relative and there is no host: set host = "http://..." or pass --host'
        )
    if "://" not in host:
        raise CallError(f'host "{host}" must start with http:// or https://')
    return host.rstrip("/") + text


def _split(target: str) -> tuple[bytes | str, ...]:
    """Splits a target into bytes to send and names of placeholders; empty without any."""
    if _PLACEHOLDER.search(target) is None:
        return ()
    pieces: list[bytes | str] = []
    for index, piece in enumerate(_PLACEHOLDER.split(target)):
        if index % 2:
            pieces.append(piece)
        elif piece:
            pieces.append(_encoded(piece))
    return tuple(pieces)


def _encoded(target: str) -> bytes:
    kept = _STRAY_PERCENT.sub("%25", target)
    return quote(kept, safe=_KEPT).encode("ascii")


def _ascii_host(name: str, text: str) -> str:
    if _CONTROL.search(name):
        raise CallError(f'"{text}" is not a URL: the host name contains a blank')
    if name.isascii():
        return name.lower()
    try:
        return name.encode("idna").decode("ascii").lower()
    except UnicodeError as error:
        raise CallError(f'"{text}" is not a URL: "{name}" is not a host name') from error
