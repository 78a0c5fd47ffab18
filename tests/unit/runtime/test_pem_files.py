"""Certificates and keys that cannot be used are refused with the name of the file that is wrong, in
every place that loads them, and nothing asks for a password."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from squall.api.errors import ConfigError
from squall.coordination.stores.redis.connection import RedisAddress
from squall.runtime.real.tls import client_tls


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pem")
    authority = trustme.CA()
    issued, other = authority.issue_cert("m1.test"), authority.issue_cert("m2.test")
    authority.cert_pem.write_to_path(folder / "ca.pem")
    issued.cert_chain_pems[0].write_to_path(folder / "good.pem")
    issued.private_key_pem.write_to_path(folder / "good.key")
    other.private_key_pem.write_to_path(folder / "other.key")
    key = load_pem_private_key(issued.private_key_pem.bytes(), None)
    encrypted = BestAvailableEncryption(b"secret")
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encrypted)
    (folder / "encrypted.key").write_bytes(pem)
    (folder / "folder").mkdir()
    (folder / "garbage.pem").write_bytes(b"\xff\x00garbage")
    (folder / "empty.pem").write_bytes(b"")
    return folder


def on_cluster(certificate: Path, key: Path, authority: Path) -> None:
    client_tls(certificate, key, authority)


def on_redis(certificate: Path, key: Path, authority: Path) -> None:
    files = f"ssl_certfile={certificate}&ssl_keyfile={key}&ssl_ca_certs={authority}"
    RedisAddress.of(f"rediss://localhost/0?{files}")


OWN = [
    ("none.pem", "good.key", "none.pem: No such file or directory"),
    ("folder", "good.key", "folder: Is a directory"),
    ("garbage.pem", "good.key", "garbage.pem: not a PEM file with a certificate"),
    ("empty.pem", "good.key", "empty.pem: not a PEM file with a certificate"),
    ("good.pem", "none.key", "none.key: No such file or directory"),
    ("good.pem", "folder", "folder: Is a directory"),
    ("good.pem", "good.pem", "good.pem: not a PEM file with a private key"),
    ("good.pem", "other.key", "other.key: not the private key of "),
    ("good.pem", "encrypted.key", "encrypted.key: the private key is encrypted"),
]
AUTHORITIES = [
    ("none.pem", "none.pem: No such file or directory"),
    ("folder", "folder: Is a directory"),
    ("garbage.pem", "garbage.pem: not a PEM file with certificates"),
    ("empty.pem", "empty.pem: not a PEM file with certificates"),
    ("good.key", "good.key: not a PEM file with certificates"),
]


@pytest.mark.parametrize("load", [on_cluster, on_redis])
def test_files_that_belong_together_are_loaded(
    load: Callable[[Path, Path, Path], None], files: Path
) -> None:
    load(files / "good.pem", files / "good.key", files / "ca.pem")


@pytest.mark.parametrize("load", [on_cluster, on_redis])
@pytest.mark.parametrize(("certificate", "key", "said"), OWN)
def test_a_certificate_or_key_that_cannot_be_used_is_named(
    load: Callable[[Path, Path, Path], None], certificate: str, key: str, said: str, files: Path
) -> None:
    with pytest.raises((ConfigError, ValueError)) as caught:
        load(files / certificate, files / key, files / "ca.pem")
    assert f"{files}/{said}" in str(caught.value)


@pytest.mark.parametrize("load", [on_cluster, on_redis])
@pytest.mark.parametrize(("authority", "said"), AUTHORITIES)
def test_authorities_that_cannot_be_used_are_named(
    load: Callable[[Path, Path, Path], None], authority: str, said: str, files: Path
) -> None:
    with pytest.raises((ConfigError, ValueError)) as caught:
        load(files / "good.pem", files / "good.key", files / authority)
    assert f"{files}/{said}" in str(caught.value)


def test_a_password_in_the_url_opens_the_key(files: Path) -> None:
    url = f"rediss://localhost/0?ssl_certfile={files}/good.pem&ssl_keyfile={files}/encrypted.key"
    assert isinstance(RedisAddress.of(f"{url}&ssl_password=secret").tls, ssl.SSLContext)
    with pytest.raises(ValueError, match=r"encrypted\.key: the password is wrong"):
        RedisAddress.of(f"{url}&ssl_password=other")
