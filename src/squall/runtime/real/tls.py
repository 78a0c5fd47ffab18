"""Mutual TLS between nodes.

Both sides show a certificate of the cluster's own authority, and no version below 1.3 is
spoken: both ends are Squall. An unverified peer is never accepted. Host names are not
checked, because nodes are mostly dialled by number: the role claims in the certificate
decide instead (`squall.cluster.wire.seal.certificate_claims`).
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from squall.api.errors import ConfigError
from squall.runtime.interfaces import Address, TLSRefused
from squall.runtime.real.pem_files import PemError, load_authorities, load_certificate

Report = Callable[[Address, TLSRefused], None]


def _ignore(address: Address, error: TLSRefused) -> None:
    pass


@dataclass(frozen=True)
class RealTLS:
    """The TLS context of one side; a listener calls `refused` for each failed handshake."""

    context: ssl.SSLContext
    refused: Report = _ignore

    def reporting(self, refused: Report) -> RealTLS:
        return replace(self, refused=refused)


def server_tls(certificate: Path, key: Path, authority: Path) -> RealTLS:
    """For listeners: a peer must show a certificate of `authority`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = ssl.CERT_REQUIRED
    return RealTLS(_load(context, certificate, key, authority))


def client_tls(certificate: Path, key: Path, authority: Path) -> RealTLS:
    """For diallers: any certificate of `authority` is accepted; its claims decide."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    return RealTLS(_load(context, certificate, key, authority))


def names_in(certificate: Mapping[str, Any] | None) -> tuple[str, ...]:
    """The alternative names of a verified certificate: "DNS:m1", "URI:squall:worker"."""
    if not certificate:
        return ()
    return tuple(f"{kind}:{value}" for kind, value in certificate.get("subjectAltName", ()))


def refusal_of(error: OSError) -> TLSRefused:
    """What a failed TLS handshake means, in words for an operator."""
    match getattr(error, "reason", ""):
        case "CERTIFICATE_VERIFY_FAILED":
            why = getattr(error, "verify_message", "")
            text = f"its certificate is not signed by our authority, [tls] ca ({why})"
        case "PEER_DID_NOT_RETURN_A_CERTIFICATE":
            text = "it shows no certificate"
        case "WRONG_VERSION_NUMBER":
            text = "it does not speak TLS: set certificate, key and ca under [tls] there"
        case _:
            why = str(error) or type(error).__name__
            text = f"it ended the TLS handshake: it lacks [tls], or rejects our certificate ({why})"
    return TLSRefused(text)


def _load(context: ssl.SSLContext, certificate: Path, key: Path, authority: Path) -> ssl.SSLContext:
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    try:
        load_certificate(context, certificate, key)
        load_authorities(context, authority)
    except PemError as error:
        raise ConfigError(
            f"TLS: {error}; give a PEM certificate, its key and "
            "the certificate of the authority that signed the cluster's nodes"
        ) from error
    return context
