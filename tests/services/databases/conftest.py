"""A database of each kind, for all tests of a session."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from tests.lab.databases import mariadb_database, postgres_database
from tests.lab.mongodb_server import MongoDBServer, running_mongodb_server
from tests.lab.tcp_proxy import TCPProxy, running_tcp_proxy
from tests.services.databases.lab.sql import MYSQL, POSTGRES, SQLDatabase


@pytest.fixture(scope="session")
def postgres() -> Iterator[SQLDatabase]:
    with postgres_database() as url:
        yield SQLDatabase(url, POSTGRES)


@pytest.fixture(scope="session")
def mysql() -> Iterator[SQLDatabase]:
    with mariadb_database() as url:
        yield SQLDatabase(url, MYSQL)


@pytest.fixture(params=["postgres", "mysql"])
def database(request: pytest.FixtureRequest) -> SQLDatabase:
    """Each of the two, with an empty table `orders (id, item)`."""
    found: SQLDatabase = request.getfixturevalue(request.param)
    found.empty()
    return found


@pytest.fixture
def proxy(database: SQLDatabase) -> Iterator[TCPProxy]:
    """Stands in front of the database."""
    with running_tcp_proxy(urlsplit(database.url).port or 0) as found:
        yield found


@pytest.fixture
def mongodb() -> Iterator[MongoDBServer]:
    with running_mongodb_server() as server:
        yield server
