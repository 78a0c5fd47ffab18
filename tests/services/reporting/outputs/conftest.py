"""Servers that the tests of outputs share, each started when the first test asks for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.databases import (
    DatabaseServer,
    mariadb_server,
    postgres_server,
)
from tests.services.coordination.lab.places import redis_url, s3_endpoint

__all__ = ["redis_url", "s3_endpoint"]


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A delivery that fails leaves the document in the current folder."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="session")
def postgres() -> Iterator[DatabaseServer]:
    with postgres_server() as server:
        yield server


@pytest.fixture(scope="session")
def mariadb() -> Iterator[DatabaseServer]:
    with mariadb_server() as server:
        yield server
