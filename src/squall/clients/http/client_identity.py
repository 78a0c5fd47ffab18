"""How a client gets to a target that does not talk to everyone: proxies and certificates."""

from __future__ import annotations

import ssl
import tempfile
from urllib.parse import urlsplit

from squall.api.errors import CallError
from squall.clients.http.encode import auth_of
from squall.clients.http.origin import Proxy


def proxy_of(url: str, auth: str) -> Proxy:
    """`auth` is `user:password`, or empty."""
    parts = urlsplit(url)
    line = b""
    if auth:
        user, _, password = auth.partition(":")
        line = b"Proxy-" + auth_of((user, password)).line
    return Proxy(parts.hostname or "", parts.port or 3128, line)


def use_certificate(context: ssl.SSLContext, pem: str) -> None:
    """Shows the certificate to servers that ask for one. `pem` holds it with its private key."""
    # OpenSSL reads files only. This one is private to the user and gone afterwards.
    with tempfile.NamedTemporaryFile("w", encoding="ascii", suffix=".pem") as file:
        file.write(pem)
        file.flush()
        try:
            context.load_cert_chain(file.name)
        except (OSError, ssl.SSLError) as error:
            reason = getattr(error, "reason", None) or str(error)
            raise CallError(
                f"cannot use the client certificate: {str(reason).replace('_', ' ').lower()}; "
                "it needs the certificate and its private key, without a password"
            ) from error
