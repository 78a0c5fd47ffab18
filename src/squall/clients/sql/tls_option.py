"""Reads from the address of a database whether its connections are encrypted."""

from __future__ import annotations

import ssl
from collections.abc import Mapping

from squall.api.errors import CallError
from squall.clients.calls.arrivals import LibraryOpening
from squall.clients.http.shared import NO_ALPN

# As the databases' own clients call it.
_NAMES = ("sslmode", "ssl-mode", "ssl", "tls")
_OFF = ("disable", "disabled", "false", "0", "no", "off", "allow", "prefer", "preferred")
_ON = (
    *("require", "required", "verify-ca", "verify_ca", "verify-full", "verify_identity"),
    *("true", "1", "yes", "on"),
)


def tls_of(opening: LibraryOpening) -> ssl.SSLContext | None:
    """The context to connect with; None for a connection in clear."""
    wanted = _wanted(opening.address.query)
    return opening.shared.tls_context(NO_ALPN) if wanted or opening.tls else None


def _wanted(query: Mapping[str, str]) -> bool:
    for name in _NAMES:
        value = query.get(name, "").lower()
        if value in _ON:
            return True
        if value and value not in _OFF:
            advice = f"write {name}=require or {name}=disable"
            raise CallError(f"{name}={value} in the address is not known; {advice}")
    return False
