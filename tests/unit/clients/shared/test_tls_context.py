"""TLS contexts of clients: what they trust, and from where."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
import trustme

from squall.api.errors import CallError
from squall.clients.shared.tls_context import client_context


def trusted(context: ssl.SSLContext) -> int:
    return context.cert_store_stats()["x509"]


def write_authorities(path: Path, count: int) -> list[trustme.CA]:
    made = [trustme.CA() for _ in range(count)]
    path.write_bytes(b"".join(authority.cert_pem.bytes() for authority in made))
    return made


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of the system's authorities, empty; there is no file of them."""
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "missing.pem"))
    return tmp_path


def test_insecure_verifies_nothing_and_loads_nothing() -> None:
    context = client_context(verify=False, ca_file=None, certificate="")
    assert context.verify_mode is ssl.CERT_NONE and not context.check_hostname
    assert trusted(context) == 0


def test_a_ca_file_replaces_the_authorities_of_the_system(folder: Path) -> None:
    write_authorities(folder / "ca-certificates.crt", 3)
    write_authorities(folder / "own.pem", 1)
    context = client_context(verify=True, ca_file=str(folder / "own.pem"), certificate="")
    assert context.verify_mode is ssl.CERT_REQUIRED and context.check_hostname
    assert trusted(context) == 1


def test_a_missing_ca_file_is_named(folder: Path) -> None:
    with pytest.raises(CallError, match=r"cannot use the CA file .*nowhere\.pem"):
        client_context(verify=True, ca_file=str(folder / "nowhere.pem"), certificate="")


def test_the_bundle_stands_for_its_directory(folder: Path) -> None:
    write_authorities(folder / "ca-certificates.crt", 2)
    (folder / "01234567.0").touch()
    context = client_context(verify=True, ca_file=None, certificate="")
    assert trusted(context) == 2


def test_a_file_of_the_user_and_the_bundle_are_both_trusted(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_authorities(folder / "ca-certificates.crt", 2)
    write_authorities(folder / "corporate.pem", 1)
    monkeypatch.setenv("SSL_CERT_FILE", str(folder / "corporate.pem"))
    context = client_context(verify=True, ca_file=None, certificate="")
    assert trusted(context) == 3


@pytest.mark.parametrize("bundled", [0, 1])
def test_an_authority_that_only_the_directory_has_is_trusted(
    folder: Path, bundled: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The directory is searched by OpenSSL during the handshake, so its use shows in the call."""
    loaded: list[bool] = []
    default = ssl.SSLContext.load_default_certs
    monkeypatch.setattr(
        ssl.SSLContext,
        "load_default_certs",
        lambda context, *purpose: (loaded.append(True), default(context, *purpose)),
    )
    if bundled:
        write_authorities(folder / "ca-certificates.crt", bundled)
    for name in ("01234567.0", "89abcdef.0"):
        (folder / name).touch()
    client_context(verify=True, ca_file=None, certificate="")
    assert loaded
