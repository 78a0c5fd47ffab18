"""Turns an author's plain values into the bytes of a request head.

Every value that reaches the wire passes a check here: a line break in a header, cookie
or address is refused, never sent. Mistakes are `CallError` with a short reason; before
the run the caller reports them as mistakes in the file.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from typing import Any, cast
from urllib.parse import quote, quote_plus

from squall.api.arguments import Prepared
from squall.api.errors import CallError

# A header line with its name in lower case, for lookups and for overriding.
Field = tuple[str, bytes]

_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_BREAK = re.compile(r"[\r\n\0]")
_COOKIE_END = re.compile(r"[\x00-\x1f\x7f;]")


class PreparedHeaders(Prepared):
    __slots__ = ("fields",)

    def __init__(self, value: Any, fields: tuple[Field, ...]) -> None:
        super().__init__(value)
        self.fields = fields


class PreparedParams(Prepared):
    """The query text without its question mark."""

    __slots__ = ("query",)

    def __init__(self, value: Any, query: bytes) -> None:
        super().__init__(value)
        self.query = query


class PreparedCookies(Prepared):
    """The value of a Cookie header."""

    __slots__ = ("line",)

    def __init__(self, value: Any, line: bytes) -> None:
        super().__init__(value)
        self.line = line


class PreparedAuth(Prepared):
    """The whole Authorization line."""

    __slots__ = ("line",)

    def __init__(self, value: Any, line: bytes) -> None:
        super().__init__(value)
        self.line = line


def headers_of(value: Any) -> PreparedHeaders:
    pairs = _mapping(value, "headers")
    return PreparedHeaders(value, tuple(field(name, text) for name, text in pairs.items()))


def params_of(value: Any) -> PreparedParams:
    return PreparedParams(value, urlencoded(_mapping(value, "params")))


def cookies_of(value: Any) -> PreparedCookies:
    pairs: list[str] = []
    for name, item in _mapping(value, "cookies").items():
        text = plain_text(item)
        if not _TOKEN.fullmatch(name):
            raise CallError(f"cookie name {name!r} has characters that are not allowed")
        if _COOKIE_END.search(text):
            raise CallError(f'cookie "{name}" has a control character or ";" in its value')
        pairs.append(f"{name}={text}")
    return PreparedCookies(value, "; ".join(pairs).encode())


def auth_of(value: Any) -> PreparedAuth:
    """`("user", "password")` is basic, a text is `Scheme credentials`."""
    if isinstance(value, str) and " " in value.strip():
        credentials = value.strip()
    elif _is_pair(value):
        user, password = cast("Sequence[str]", value)
        if ":" in user:
            raise CallError('a user name for basic auth cannot contain ":"')
        pair = base64.b64encode(f"{user}:{password}".encode())
        credentials = "Basic " + pair.decode()
    else:
        # The value may be a secret, so it is not repeated.
        raise CallError('auth is neither ("user", "password") nor "Scheme credentials"')
    try:
        return PreparedAuth(value, field("Authorization", credentials)[1])
    except CallError:
        raise CallError("auth contains a line break") from None


def field(name: str, value: Any) -> Field:
    """One header line, checked."""
    if not isinstance(name, str) or not _TOKEN.fullmatch(name):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise CallError(f"header name {name!r} has characters that are not allowed")
    text = plain_text(value)
    if _BREAK.search(text):
        raise CallError(f'header "{name}" has a line break in its value')
    lowered = name.lower()
    if lowered == "transfer-encoding":
        raise CallError('header "Transfer-Encoding" cannot be set: bodies are sent whole')
    try:
        encoded = text.encode("latin-1")
    except UnicodeEncodeError:
        encoded = text.encode()
    return lowered, b"%b: %b\r\n" % (name.encode(), encoded)


def urlencoded(pairs: Mapping[str, Any]) -> bytes:
    """`a=1&b=x+y`; a list repeats its name."""
    parts: list[str] = []
    for name, value in pairs.items():
        values = cast("Sequence[Any]", value) if isinstance(value, list | tuple) else (value,)
        key = quote_plus(plain_text(name))
        parts.extend(f"{key}={quote_plus(plain_text(item))}" for item in values)
    return "&".join(parts).encode("ascii")


def path_segment(value: Any) -> bytes:
    """One value put into a URL; slashes and everything special are escaped."""
    return quote(plain_text(value), safe="").encode("ascii")


def plain_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        return value.decode("latin-1")
    return str(value)


def _mapping(value: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise CallError(f"{what} must be a mapping such as {{...}}, not {type(value).__name__}")
    return cast("Mapping[str, Any]", value)


def _is_pair(value: Any) -> bool:
    if not isinstance(value, list | tuple):
        return False
    items = cast("Sequence[Any]", value)
    return len(items) == 2 and all(isinstance(item, str) for item in items)
