"""Checks the options that say how to connect: proxy, authorities, client certificate, addresses.

They are checked before anything starts. A file that is no PEM would otherwise fail in the core
processes, or pass unnoticed where no request uses TLS.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable, Mapping
from typing import NamedTuple
from urllib.parse import urlsplit

from squall.api.errors import CallError, UsageError
from squall.engine.run_options import CLIENT_CERTIFICATE, PROXY_AUTH
from squall.runtime.real.pem_files import PemError, load_authorities

Named = Callable[[str], str]
"""Turns the name of an option into what the user wrote: `cert_key` into `--cert-key`."""


class ConnectionOptions(NamedTuple):
    proxy: str
    """Without credentials."""
    ca_file: str
    secrets: dict[str, str]
    """Credentials for the proxy and the client's certificate: sealed on a cluster, shown
    nowhere."""


def connection_options(
    named: Named, *, proxy: str = "", cacert: str = "", cert: str = "", cert_key: str = ""
) -> ConnectionOptions:
    """Raises a `UsageError` that names the option."""
    secrets: dict[str, str] = {}
    if cert:
        secrets[CLIENT_CERTIFICATE] = _client_certificate(named, cert, cert_key)
    elif cert_key:
        raise UsageError(
            f"{named('cert_key')} {cert_key} is the key of which certificate? "
            f"name its file ({named('cert')})"
        )
    _check_authorities(named("cacert"), cacert)
    place, auth = _proxy(named("proxy"), proxy)
    if auth:
        secrets[PROXY_AUTH] = auth
    return ConnectionOptions(place, cacert, secrets)


def check_resolve(shown: str, entries: Mapping[str, str]) -> None:
    """Raises a `UsageError` unless each key is "host:port"."""
    for place, address in entries.items():
        host, _, port = place.rpartition(":")
        if not host or not _is_port(port) or not address:
            hint = "write host:port:address, such as shop.test:443:127.0.0.1"
            raise UsageError(f"{shown} {place}:{address}: {hint}")


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdecimal() and 0 < int(text) < 65536


def _check_authorities(shown: str, path: str) -> None:
    if not path:
        return
    try:
        load_authorities(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), path)
    except PemError as error:
        raise UsageError(f"{shown} {error}") from None


def _client_certificate(named: Named, path: str, key_path: str) -> str:
    pem = _pem(named("cert"), path)
    if key_path:
        pem += _pem(named("cert_key"), key_path)
    if "PRIVATE KEY" not in pem:
        raise UsageError(
            f"{named('cert')} {path} has no private key; name its file ({named('cert_key')})"
        )
    # Loaded only here: a command line without a certificate is read without the HTTP client.
    from squall.clients.shared.tls_context import use_certificate

    try:
        use_certificate(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), pem)
    except CallError as error:
        raise UsageError(f"{named('cert')} {path}: {error.reason}") from None
    return pem


def _pem(shown: str, path: str) -> str:
    try:
        with open(path, encoding="ascii") as file:
            text = file.read()
    except OSError as error:
        raise UsageError(f"{shown} {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        text = ""
    if "-----BEGIN " not in text:
        raise UsageError(f"{shown} {path}: not a PEM file with a certificate or a private key")
    return text if text.endswith("\n") else text + "\n"


def _proxy(shown: str, text: str) -> tuple[str, str]:
    """(`http://host:port`, `user:password`)."""
    if not text:
        return "", ""
    match = re.fullmatch(r"(?:http://)?(?:([^@/]*)@)?([^@/\s]+)/?", text)
    place = f"http://{match[2]}" if match else ""
    try:
        parts = urlsplit(place)
        is_place = bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_place = False
    if match is None or not is_place:
        # Not quoted: it may have a password.
        raise UsageError(f"{shown}: write http://host:port or http://user:password@host:port")
    return place, match[1] or ""
