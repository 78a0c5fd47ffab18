"""Turns an author's plain values into the bytes of a request head.

Every value is checked here before it is sent: a line break in a header, cookie or address is
refused. A mistake raises a `CallError` with a short reason; before the run the caller reports it
as a mistake in the file.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast
from urllib.parse import quote, quote_plus

from squall.api.arguments import Prepared
from squall.api.errors import CallError

# A header line with its name in lower case, for lookups and for overriding.
Field = tuple[str, bytes]

# Cache: header name -> its lower case, and the start of its header line.
_NAMES: dict[str, tuple[str, bytes]] = {}
_MOST_NAMES = 512

_UNRESERVED = re.compile(r"[A-Za-z0-9_.~-]*")
_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_BREAK = re.compile(r"[\r\n\0]")
_COOKIE_END = re.compile(r"[\x00-\x1f\x7f;]")


class Opening(NamedTuple):
    """The header lines that every request to an origin begins with, ready to send."""

    fields: tuple[Field, ...]
    block: bytes
    names: frozenset[str]


NO_OPENING = Opening((), b"", frozenset())


def opening_of(fields: tuple[Field, ...]) -> Opening:
    return Opening(fields, b"".join([line for _, line in fields]), frozenset(dict(fields)))


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
        if not isinstance(cast(object, name), str) or not _TOKEN.fullmatch(name):
            raise CallError(f"cookie name {name!r} has characters that are not allowed")
        if _COOKIE_END.search(text):
            raise CallError(f'cookie "{name}" has a control character or ";" in its value')
        pairs.append(f"{name}={text}")
    return PreparedCookies(value, "; ".join(pairs).encode())


def auth_of(value: Any) -> PreparedAuth:
    """`("user", "password")` is basic authentication, a text is `Scheme credentials`."""
    if isinstance(value, str) and " " in value.strip():
        credentials = value.strip()
    elif _is_pair(value):
        user, password = cast("Sequence[str]", value)
        if ":" in user:
            raise CallError('a user name for basic auth cannot contain ":"')
        pair = base64.b64encode(f"{user}:{password}".encode())
        credentials = "Basic " + pair.decode()
    else:
        # The value may be a secret, so the message names its kind only.
        kind = "str without a scheme" if isinstance(value, str) else _kinds(value)
        raise CallError(f'auth must be ("user", "password") or "Scheme credentials", not {kind}')
    try:
        return PreparedAuth(value, field("Authorization", credentials)[1])
    except CallError:
        raise CallError("auth contains a line break") from None


def field(name: str, value: Any) -> Field:
    """One header line, checked."""
    known = _NAMES.get(name) or _name(name)
    text = value if isinstance(value, str) else plain_text(value)
    if not text.isprintable() and _BREAK.search(text):
        raise CallError(f'header "{name}" has a line break in its value')
    try:
        return known[0], b"%b: %b\r\n" % (known[1], text.encode("latin-1"))
    except UnicodeEncodeError:
        return known[0], b"%b: %b\r\n" % (known[1], text.encode())


def _name(name: Any) -> tuple[str, bytes]:
    if not isinstance(name, str) or not _TOKEN.fullmatch(name):
        raise CallError(f"header name {name!r} has characters that are not allowed")
    lowered = name.lower()
    if lowered == "transfer-encoding":
        raise CallError('header "Transfer-Encoding" cannot be set: bodies are sent whole')
    if len(_NAMES) >= _MOST_NAMES:
        _NAMES.clear()
    known = _NAMES[name] = (lowered, name.encode())
    return known


def urlencoded(pairs: Mapping[str, Any]) -> bytes:
    """`a=1&b=x+y`; a list repeats its name."""
    parts: list[str] = []
    for name, value in pairs.items():
        key = _quoted_plus(name)
        if isinstance(value, list | tuple):
            items = cast("Sequence[Any]", value)
            parts.extend(f"{key}={_quoted_plus(item)}" for item in items)
        else:
            parts.append(f"{key}={_quoted_plus(value)}")
    return "&".join(parts).encode("ascii")


def _quoted_plus(value: Any) -> str:
    text = plain_text(value)
    return text if _UNRESERVED.fullmatch(text) else quote_plus(text)


def path_segment(value: Any) -> bytes:
    """One value put into a URL; slashes and everything special are escaped."""
    text = plain_text(value)
    return (text if _UNRESERVED.fullmatch(text) else quote(text, safe="")).encode("ascii")


def plain_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        return value.decode("latin-1")
    return str(value)


def _mapping(value: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict) and not isinstance(value, Mapping):
        raise CallError(f"{what} must be a mapping such as {{...}}, not {type(value).__name__}")
    return cast("Mapping[str, Any]", value)


def _kinds(value: Any) -> str:
    """`int`, or `tuple (str, int)`."""
    kind = type(value).__name__
    if not isinstance(value, list | tuple):
        return kind
    items = cast("Sequence[Any]", value)
    return f"{kind} ({', '.join(type(item).__name__ for item in items[:5])})"


def _is_pair(value: Any) -> bool:
    if not isinstance(value, list | tuple):
        return False
    items = cast("Sequence[Any]", value)
    return len(items) == 2 and all(isinstance(item, str) for item in items)
