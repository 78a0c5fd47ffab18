"""Certificates that claim roles, signed by an authority made for one test."""

from __future__ import annotations

from pathlib import Path

import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key


class Authority:
    """Issues certificates into a folder; `ca` is its own certificate."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._made = trustme.CA()
        self.ca = folder / "ca.pem"
        self._made.cert_pem.write_to_path(self.ca)

    def issue(self, name: str, *claims: str) -> tuple[Path, Path]:
        """Certificate and key; a claim is "node", "worker:w1" or "client:alice"."""
        issued = self._made.issue_cert(f"{name}.test")
        certificate, key = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        issued.private_key_pem.write_to_path(key)
        certificate.write_bytes(self._with_claims(issued, claims))
        return certificate, key

    def _with_claims(self, issued: trustme.LeafCert, claims: tuple[str, ...]) -> bytes:
        # trustme writes no URIs, so the certificate is signed once more with them.
        plain = x509.load_pem_x509_certificate(issued.cert_chain_pems[0].bytes())
        signing = load_pem_private_key(self._made.private_key_pem.bytes(), None)
        names = [x509.UniformResourceIdentifier(f"squall:{claim}") for claim in claims]
        builder = (
            x509.CertificateBuilder()
            .subject_name(plain.subject)
            .issuer_name(plain.issuer)
            .public_key(plain.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(plain.not_valid_before_utc)
            .not_valid_after(plain.not_valid_after_utc)
        )
        for extension in plain.extensions:
            value = extension.value
            if isinstance(value, x509.SubjectAlternativeName):
                value = x509.SubjectAlternativeName([*value, *names])
            builder = builder.add_extension(value, extension.critical)
        signed = builder.sign(signing, hashes.SHA256())  # type: ignore[arg-type]
        return signed.public_bytes(Encoding.PEM)
