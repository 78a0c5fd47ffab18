"""Loads certificates and keys from PEM files into TLS contexts, and names the file that is wrong.

OpenSSL reports none of that: the number of a line in its own source, or a question for the
password of an encrypted key, which would stop a process that has a terminal.
"""

from __future__ import annotations

import os
import ssl

Path = str | os.PathLike[str]

ENCRYPTED = (
    "the private key is encrypted; write it without a password: openssl pkey -in KEY -out NEW"
)


class PemError(Exception):
    """A file that cannot be used, and why."""


def load_authorities(context: ssl.SSLContext, path: Path) -> None:
    """Trusts the certificates of a file."""
    try:
        context.load_verify_locations(path)
    except ssl.SSLError:
        raise PemError(f"{os.fspath(path)}: not a PEM file with certificates") from None
    except OSError as error:
        raise PemError(f"{os.fspath(path)}: {error.strerror or error}") from None


def load_certificate(
    context: ssl.SSLContext, certificate: Path, key: Path | None = None, password: str = ""
) -> None:
    """Shows a certificate to the other side. Without `key`, its file has the private key too."""
    certificate, key = os.fspath(certificate), os.fspath(key or certificate)
    if b"CERTIFICATE-----" not in _read(certificate):
        raise PemError(f"{certificate}: not a PEM file with a certificate")
    key_pem = _read(key)
    if b"PRIVATE KEY-----" not in key_pem:
        raise PemError(f"{key}: not a PEM file with a private key")
    try:
        # A password, though empty: without one OpenSSL asks for it in the terminal.
        context.load_cert_chain(certificate, key, password=password)
    except OSError as error:
        raise PemError(_refusal(error, certificate, key, key_pem, password)) from None


def _refusal(error: OSError, certificate: str, key: str, key_pem: bytes, password: str) -> str:
    reason = getattr(error, "reason", None) or error.strerror or str(error)
    if reason in ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH"):
        return f"{key}: not the private key of {certificate}"
    if b"ENCRYPTED" in key_pem:
        return f"{key}: " + ("the password is wrong" if password else ENCRYPTED)
    return f"{certificate}: OpenSSL refuses it or its key: {reason.replace('_', ' ').lower()}"


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise PemError(f"{path}: {error.strerror or error}") from None
