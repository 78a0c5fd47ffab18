"""Origins: scheme, host and port, with all addresses that the name resolves to.

A name is resolved once per process share and kept; virtual users are spread over its
addresses. Two URLs with the same scheme, host and port always share one `Origin`
object, so a connection is matched by identity. Nothing here opens a connection.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Mapping
from time import perf_counter
from typing import NamedTuple
from urllib.parse import urlsplit

from squall.api.errors import TransportError
from squall.clients.http.encode import auth_of

DEFAULT_PORTS = {"http": 80, "https": 443}


class Address(NamedTuple):
    family: int
    ip: str


class Proxy(NamedTuple):
    """An HTTP proxy: plain requests name the whole address, TLS goes through a tunnel."""

    host: str
    port: int
    auth: bytes
    """The whole Proxy-Authorization line; empty without credentials."""


def proxy_of(url: str, auth: str) -> Proxy:
    """`auth` is `user:password`, or empty."""
    parts = urlsplit(url)
    line = b""
    if auth:
        user, _, password = auth.partition(":")
        line = b"Proxy-" + auth_of((user, password)).line
    return Proxy(parts.hostname or "", parts.port or 3128, line)


class Origin:
    """Scheme, host and port of a URL. `addresses` is empty until the name is resolved; with a
    proxy they are those of the proxy, and `dial_port` is its port."""

    __slots__ = (
        "addresses",
        "authority",
        "dial_port",
        "host",
        "port",
        "prefix",
        "proxy",
        "resolving",
        "text",
        "tls",
        "where",
    )

    def __init__(
        self, scheme: str, host: str, port: int, proxy: Proxy | None = None, *, tls: bool = False
    ) -> None:
        self.tls = tls or scheme == "https"
        self.host = host
        self.port = port
        shown = f"[{host}]" if ":" in host else host
        self.authority = shown if port == DEFAULT_PORTS.get(scheme) else f"{shown}:{port}"
        # What is connected to, always with the port, for messages.
        self.where = f"{shown}:{port}" if proxy is None else f"proxy {proxy.host}:{proxy.port}"
        self.text = f"{scheme}://{self.authority}"
        self.proxy = proxy
        self.dial_port = port if proxy is None else proxy.port
        # What a request line has before its target.
        self.prefix = b"" if proxy is None or self.tls else self.text.encode()
        self.addresses: tuple[Address, ...] = ()
        self.resolving: asyncio.Future[None] | None = None

    def __repr__(self) -> str:
        return f"<Origin {self.text}>"


class Origins:
    """Keeps the origins of a share and resolves their names."""

    __slots__ = ("_known", "overrides", "proxy")

    def __init__(
        self, overrides: Mapping[tuple[str, int], str], proxy: Proxy | None = None
    ) -> None:
        self.proxy = proxy
        self._known: dict[tuple[str, str, int], Origin] = {}
        self.overrides = {(host.lower(), port): ip for (host, port), ip in overrides.items()}

    def get(self, scheme: str, host: str, port: int) -> Origin:
        key = (scheme, host, port)
        origin = self._known.get(key)
        if origin is None:
            origin = self._known[key] = Origin(*key, self.proxy)
        return origin

    def direct(self, scheme: str, host: str, port: int, *, tls: bool) -> Origin:
        """The origin of a server that is not HTTP, which an HTTP proxy does not reach."""
        key = (scheme, host, port)
        origin = self._known.get(key)
        if origin is None:
            origin = self._known[key] = Origin(*key, tls=tls)
        return origin

    def override(self, host: str, port: int) -> str | None:
        """What `--resolve` says about a name and port; None if it says nothing."""
        return self.overrides.get((host.lower(), port))

    async def resolve(self, origin: Origin) -> float:
        """Fills `addresses`. Returns the seconds of the lookup, 0 if another caller made it."""
        if origin.addresses:
            return 0.0
        place = (origin.host, origin.port)
        if origin.proxy is not None:
            place = origin.proxy[:2]
        name = self.overrides.get(place, place[0])
        literal = _literal(name)
        if literal is not None:
            origin.addresses = (literal,)
            return 0.0
        if origin.resolving is not None:
            # Shielded: one caller's cancellation must not end the lookup of the others.
            await asyncio.shield(origin.resolving)
            return 0.0
        began = perf_counter()
        origin.resolving = asyncio.ensure_future(_fill(origin, name))
        await asyncio.shield(origin.resolving)
        return perf_counter() - began


async def _fill(origin: Origin, name: str) -> None:
    try:
        what = "name" if origin.proxy is None else "name of the proxy"
        origin.addresses = await _lookup(what, name, origin.dial_port)
    finally:
        origin.resolving = None


def _literal(name: str) -> Address | None:
    try:
        literal = ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return None
    family = socket.AF_INET6 if literal.version == 6 else socket.AF_INET
    return Address(family, str(literal))


async def _lookup(what: str, name: str, port: int) -> tuple[Address, ...]:
    began = perf_counter()
    try:
        found = await asyncio.get_running_loop().getaddrinfo(
            name, port, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG
        )
    except (OSError, UnicodeError) as error:
        raise TransportError(
            f"{what} does not resolve: {name}", started=began, ended=perf_counter()
        ) from error
    addresses = (Address(family, str(where[0])) for family, _, _, _, where in found)
    # A dict keeps the resolver's order and drops duplicates.
    return tuple(dict.fromkeys(addresses))
