"""Who may see the page and who may control the run. Pure but for making tokens.

- Every request must name this machine as its host. This stops DNS rebinding: a foreign page whose
  domain points to this address.
- No other site can make requests for data or control: a request that a browser marks as cross-site,
  or that has another origin, is refused. The page never sets a cookie.
- On a loopback address every user of this machine may view; elsewhere viewing needs a token.
- Control needs the control token in a header, which a form of another site cannot send.
"""

from __future__ import annotations

import hmac
import ipaddress
import secrets
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

Role = Literal["none", "view", "control"]

TOKEN_HEADER = "x-squall-token"
_TOKEN_BYTES = 24
_OWN_SITE = ("same-origin", "none")

PAGE_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; frame-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "cache-control": "no-store",
}

# The report has its script in itself. `sandbox` gives it an origin of its own, from which it cannot
# reach the page's interface, whatever a response of the target has written into it.
REPORT_HEADERS = PAGE_HEADERS | {
    "content-security-policy": (
        "sandbox allow-scripts allow-downloads; default-src 'none'; script-src 'unsafe-inline'; "
        "style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'self'"
    ),
    "x-frame-options": "SAMEORIGIN",
}


def _new_token() -> str:
    return secrets.token_urlsafe(_TOKEN_BYTES)


@dataclass(frozen=True)
class Refusal:
    status: int
    text: str


@dataclass(frozen=True)
class Access:
    """The tokens of one page and the names under which it is served."""

    is_loopback: bool
    names: frozenset[str] = frozenset()
    control_token: str = field(default_factory=_new_token, repr=False)
    view_token: str = field(default_factory=_new_token, repr=False)

    def refusal(self, method: str, headers: Mapping[str, str]) -> Refusal | None:
        """Why a request is refused whatever its route is; None if it may go on."""
        host = headers.get("host", "")
        if not self._is_own_name(_without_port(host)):
            return Refusal(403, "this page is not served under that name")
        site = headers.get("sec-fetch-site")
        if site is not None and site not in _OWN_SITE:
            # A link from elsewhere may open the page itself, which holds no data.
            if method == "GET" and headers.get("sec-fetch-mode") == "navigate":
                return None
            return Refusal(403, "a request of another site")
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2].lower() != host.lower():
            return Refusal(403, "a request of another site")
        return None

    def role(self, headers: Mapping[str, str], key: str = "") -> Role:
        """The role of a request. `key` comes from the address of a link, which others can see, so
        it never grants control."""
        token = headers.get(TOKEN_HEADER, "")
        if _same(token, self.control_token):
            return "control"
        if self.is_loopback or _same(token, self.view_token) or _same(key, self.view_token):
            return "view"
        return "none"

    def _is_own_name(self, name: str) -> bool:
        return name in self.names or _is_ip(name)


def access_for(host: str) -> Access:
    """The access of a page on this address; names besides IP addresses are those of the machine."""
    names = {"localhost", host.lower(), socket.gethostname().lower()}
    return Access(is_loopback=is_loopback(host), names=frozenset(names - {""}))


def is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def header_map(raw: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in raw}


def _same(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode(), wanted.encode())


def _without_port(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdecimal() else host).lower()


def _is_ip(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True
