"""TLS contexts of clients, built so that a handshake costs little.

OpenSSL 3.0 lists the default directory of authorities in every handshake whose issuer it does not
know. So a context holds the bundle file that stands for this directory, or nothing at all if
nothing is verified.
"""

from __future__ import annotations

import os
import re
import ssl
import tempfile

from squall.api.errors import CallError
from squall.runtime.real.pem_files import ENCRYPTED

# The bundle beside the single certificates, as Debian, Alpine and Arch name it. Both are written by
# one command (update-ca-certificates), so they hold the same authorities.
_BUNDLE = "ca-certificates.crt"
# The names under which OpenSSL looks for an issuer in a directory.
_HASHED = re.compile(r"[0-9a-f]{8}\.[0-9]+")


def client_context(*, verify: bool, ca_file: str | None, certificate: str) -> ssl.SSLContext:
    """A context for connections to servers. `ca_file` replaces the authorities of the system,
    `certificate` is a PEM text that is shown to servers which ask for one."""
    if verify:
        try:
            context = ssl.create_default_context(cafile=ca_file) if ca_file else _system_context()
        except OSError as error:
            raise CallError(f"cannot use the CA file {ca_file}: {error}") from error
    else:
        context = _unverified_context()
    if certificate:
        use_certificate(context, certificate)
    return context


def use_certificate(context: ssl.SSLContext, pem: str) -> None:
    """Shows the certificate to servers that ask for one. `pem` holds it with its private key."""
    # OpenSSL reads files only. This one is private to the user and gone afterwards.
    with tempfile.NamedTemporaryFile("w", encoding="ascii", suffix=".pem") as file:
        file.write(pem)
        file.flush()
        try:
            # A password, though empty: without one OpenSSL asks for it in the terminal.
            context.load_cert_chain(file.name, password="")
        except (OSError, ssl.SSLError) as error:
            reason = str(getattr(error, "reason", None) or error).replace("_", " ").lower()
            if "ENCRYPTED" in pem:
                reason = ENCRYPTED
            elif "mismatch" in reason:
                reason = "the private key belongs to another certificate"
            raise CallError(f"cannot use the client certificate: {reason}") from error


def _unverified_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    # As `create_default_context` does, for those who decrypt a capture.
    if key_log := os.environ.get("SSLKEYLOGFILE"):
        context.keylog_filename = key_log
    return context


def _system_context() -> ssl.SSLContext:
    """Trusts what OpenSSL trusts by default, from files instead of its directory if they have all
    of it."""
    paths = ssl.get_default_verify_paths()
    files = [paths.cafile] if paths.cafile else []
    in_directory = 0
    if paths.capath:
        in_directory = sum(map(bool, map(_HASHED.fullmatch, os.listdir(paths.capath))))
        bundle = os.path.join(paths.capath, _BUNDLE)
        if os.path.isfile(bundle) and not (files and os.path.samefile(bundle, files[0])):
            files.append(bundle)
    if not files:
        return ssl.create_default_context()
    context = ssl.create_default_context(cafile=files[0])
    for file in files[1:]:
        context.load_verify_locations(cafile=file)
    if in_directory > context.cert_store_stats()["x509"]:
        # Somebody added an authority to the directory alone.
        context.load_default_certs()
    return context
