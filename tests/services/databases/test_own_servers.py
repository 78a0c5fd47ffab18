"""PostgreSQL and MariaDB with TLS and a password, killed and started again under load."""

from __future__ import annotations

import asyncio
from pathlib import Path
from urllib.parse import quote

import pytest
import trustme

from squall.api.errors import TransportError
from tests.lab.databases import DatabaseServer, mariadb_server, postgres_server
from tests.services.databases.lab.sql import MYSQL, POSTGRES, SQLDatabase, user_of
from tests.services.http.lab.servers import on_uvloop

ROWS = 400

pytestmark = pytest.mark.nightly


def database_of(server: DatabaseServer, kind: str) -> SQLDatabase:
    login = f"{server.username}:{quote(server.password, safe='')}"
    name = "postgres" if kind == "postgres" else "results"
    url = f"{kind}://{login}@127.0.0.1:{server.port}/{name}"
    return SQLDatabase(url, POSTGRES if kind == "postgres" else MYSQL)


@on_uvloop
async def check_tls(database: SQLDatabase, ca_file: str) -> None:
    url = f"{database.url}?sslmode=require"
    async with user_of(database, url, ca_file=ca_file) as user:
        first = await user.insert(1)
        second = await user.insert(2)
        assert first.ok and second.ok and second.bytes_received > 0
        assert second.timings.first_byte_s > 0
        is_encrypted = (
            "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()"
            if user.words is POSTGRES
            else "SHOW SESSION STATUS LIKE 'Ssl_cipher'"
        )
        assert (await user.query(is_encrypted)).rows[0][-1]
    async with user_of(database, url) as user:
        with pytest.raises(TransportError, match="TLS: certificate verify failed"):
            await user.insert(3)
    async with user_of(database, url.replace(":geheim", ":falsch"), verify=False) as user:
        with pytest.raises(TransportError) as caught:
            await user.insert(3)
        expected = "invalid password (28P01): ", "access denied (1045, 28000): "
        assert caught.value.reason.startswith(expected)


@on_uvloop
async def check_restart(database: SQLDatabase, server: DatabaseServer) -> None:
    async with user_of(database) as user:
        inserted = failed = number = 0
        restart = None
        while inserted < ROWS:
            number += 1
            if inserted == ROWS // 2 and restart is None:
                restart = asyncio.ensure_future(asyncio.to_thread(server.restart))
            try:
                inserted += (await user.insert(number)).ok
            except TransportError:
                failed += 1
                await asyncio.sleep(0.02)
        assert failed and restart is not None
        await restart
        # A commit may be lost with its answer, and only that one.
        assert inserted <= await asyncio.to_thread(lambda: database.rows) <= inserted + 1


@pytest.mark.parametrize("kind", ["postgres", "mysql"])
def test_a_server_with_tls_and_a_password_is_killed_under_load(kind: str, tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    pem = tmp_path / "server.pem"
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(pem)
    with (postgres_server if kind == "postgres" else mariadb_server)(pem) as server:
        database = database_of(server, kind)
        database.empty()
        check_tls(database, str(tmp_path / "ca.pem"))
        database.empty()
        check_restart(database, server)
