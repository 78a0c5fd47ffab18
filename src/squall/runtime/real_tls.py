"""TLS of connections between nodes: who is asked for a certificate, and what it says.

Both sides always show a certificate of the cluster's own authority (mutual TLS), and no
version below 1.3 is spoken: both ends are Squall. It must never fall back to an
unverified peer; a name that is not checked is asked for by the caller, in words.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from squall.api.errors import ConfigError


@dataclass(frozen=True)
class RealTLS:
    """One side's context. `server_name` is checked in place of the dialled host: nodes
    are often dialled by number, which certificates seldom carry."""

    context: ssl.SSLContext
    server_name: str = ""


def server_tls(certificate: Path, key: Path, authority: Path) -> RealTLS:
    """For listeners: a peer without a certificate of `authority` is not let in."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = ssl.CERT_REQUIRED
    return RealTLS(_load(context, certificate, key, authority))


def client_tls(
    certificate: Path,
    key: Path,
    authority: Path,
    *,
    server_name: str = "",
    verify_hostname: bool = True,
) -> RealTLS:
    """For dialling. Without `verify_hostname` any certificate of `authority` is taken:
    the role claims in it decide then."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = verify_hostname
    return RealTLS(_load(context, certificate, key, authority), server_name)


def names_in(certificate: Mapping[str, Any] | None) -> tuple[str, ...]:
    """The alternative names of a verified certificate: "DNS:gate-1", "URI:squall:worker"."""
    if not certificate:
        return ()
    return tuple(f"{kind}:{value}" for kind, value in certificate.get("subjectAltName", ()))


def _load(context: ssl.SSLContext, certificate: Path, key: Path, authority: Path) -> ssl.SSLContext:
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    try:
        context.load_cert_chain(certificate, key)
        context.load_verify_locations(authority)
    except OSError as error:
        files = f"{certificate}, {key} and {authority}"
        raise ConfigError(
            f"cannot use {files} for TLS: {error}; give a PEM certificate, its key and "
            "the certificate of the authority that signed the cluster's nodes"
        ) from error
    return context
