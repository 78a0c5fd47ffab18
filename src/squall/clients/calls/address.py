"""Reads the address of a server that is not HTTP: `redis://user:password@host:port/path?query`.

An address may have a password, so messages never quote it: results, logs and `--once` show
`shown`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, unquote, urlsplit

from squall.api.arguments import Prepared
from squall.api.errors import CallError
from squall.clients.registry import SCHEMES

if TYPE_CHECKING:
    from squall.clients.http.origin import Origin, Origins

_CREDENTIALS = re.compile(r"://.*@", re.DOTALL)
_SCHEME = re.compile(r"\s*([A-Za-z][A-Za-z0-9+.-]*)://")


class PreparedAddress(Prepared):
    """The address of a server, ready to connect to. `str()` of it has no password."""

    __slots__ = (
        "host",
        "origin",
        "password",
        "path",
        "port",
        "protocol",
        "query",
        "scheme",
        "shown",
        "tls",
        "user",
    )

    def __init__(self, text: str, protocol: str, origin: Origin, scheme: str) -> None:
        super().__init__(text)
        # The name of its client.
        self.protocol = protocol
        self.scheme = scheme
        self.origin = origin
        self.host = origin.host
        self.port = origin.port
        self.tls = origin.tls
        self.user = ""
        self.password = ""
        # As it was written, with its slash; empty if there is none.
        self.path = ""
        self.query: Mapping[str, str] = {}
        self.shown = origin.text

    def __str__(self) -> str:
        return self.shown

    def __repr__(self) -> str:
        return f"<PreparedAddress {self.shown}>"


def scheme_of(value: object) -> str:
    """The scheme of an address in small letters; empty if it has none."""
    match = _SCHEME.match(value) if isinstance(value, str) else None
    return match[1].lower() if match else ""


def without_credentials(text: str) -> str:
    """A URL as messages show it; a password with a slash in it is hidden, too."""
    return _CREDENTIALS.sub("://***@", text)


def read_address(text: str, origins: Origins) -> PreparedAddress:
    """Reads an address of a known scheme. Raises a `CallError` that does not quote it."""
    name = scheme_of(text)
    protocol, scheme = SCHEMES[name]
    try:
        parts = urlsplit(text.strip())
        host, port = parts.hostname, parts.port
    except ValueError:
        parts, host, port = None, "", 0
    if parts is None or not host or port == 0 or re.search(r"[\s\x00-\x1f\x7f]", host):
        raise CallError(
            f"the address is not valid: write {name}://host:port, or "
            f"{name}://user:password@host:port with special characters percent-encoded"
        )
    if not (port or scheme.port):
        raise CallError(f"the address has no port: write {name}://host:port")
    origin = origins.direct(name, host.lower(), port or scheme.port, tls=scheme.tls)
    address = PreparedAddress(text, protocol, origin, name)
    address.user = unquote(parts.username or "")
    address.password = unquote(parts.password or "")
    address.path = parts.path
    address.query = dict(parse_qsl(parts.query, keep_blank_values=True))
    user = f"{parts.username}@" if parts.username else ""
    # Without the query, which may have a password too.
    address.shown = f"{name}://{user}{origin.authority}{parts.path}"
    return address
