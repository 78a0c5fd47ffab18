"""Secrets of authors in the log: only this cluster's managers can read them."""

from __future__ import annotations

import os

import pytest

from squall.api.errors import SquallError
from squall.cluster.group.sealed_secrets import SecretSealer
from squall.cluster.wire.seal.secrets import Secrets

OLD, NEW = "the first secret of all", "the second secret of all"
VALUES = {"API_TOKEN": "hush-hush", "PIN": "4711"}


def vault(sending: str, *accepted: str, cluster: str = "eu") -> SecretSealer:
    return SecretSealer(Secrets.of_node(sending, accepted), cluster, os.urandom)


def test_what_is_sealed_is_opened_and_shows_nothing() -> None:
    sealed = vault(OLD).seal(VALUES, "ann/key-1")
    assert b"hush" not in sealed and b"API_TOKEN" not in sealed
    assert vault(OLD).open(sealed, "ann/key-1") == VALUES


def test_nothing_is_nothing() -> None:
    assert vault(OLD).seal({}, "ann/key-1") == b""
    assert vault(OLD).open(b"", "ann/key-1") == {}


def test_a_job_survives_the_rotation_of_the_secret() -> None:
    sealed = vault(OLD).seal(VALUES, "ann/key-1")
    assert vault(NEW, OLD).open(sealed, "ann/key-1") == VALUES
    with pytest.raises(SquallError, match="submit the job again"):
        vault(NEW).open(sealed, "ann/key-1")


def test_a_ciphertext_belongs_to_one_job_of_one_cluster() -> None:
    sealed = vault(OLD).seal(VALUES, "ann/key-1")
    for other in (("ann/key-2", "eu"), ("ann/key-1", "us")):
        with pytest.raises(SquallError):
            vault(OLD, cluster=other[1]).open(sealed, other[0])
