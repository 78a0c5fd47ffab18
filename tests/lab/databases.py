"""PostgreSQL and MariaDB servers of the tests' own, with a password, on free ports.

`postgres_database` and `mariadb_database` are empty databases: on the servers of this machine if
these let everybody in, else on one of the tests' own.

Own servers do not sync to disk. Both refuse to run as root, so their files belong to another user
then, outside of pytest's folders, which only the own user may enter.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pwd
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
import warnings
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import pytest

from tests.lab.ports import free_ports

STARTS_WITHIN_S = 120.0
PASSWORD = "geheim%40-pass:wort"
"""With characters that mean something in a URL."""


@dataclass(frozen=True)
class DatabaseServer:
    port: int
    username: str = "squall"
    password: str = PASSWORD
    restart: Callable[[], None] = lambda: None
    """Kills the server and starts it again on the same port."""


def missing(what: str) -> None:
    if os.environ.get("CI"):
        pytest.fail(what)
    pytest.skip(what)


@contextmanager
def postgres_server(certificate: Path | None = None) -> Iterator[DatabaseServer]:
    """With TLS if there is a file with a certificate and its key."""
    initdb = _program("initdb", "/usr/lib/postgresql/*/bin")
    user = _unprivileged("postgres")
    with _folder(user) as folder:
        secret = folder / "password"
        secret.write_text(PASSWORD)
        _own(secret, user)
        data = folder / "data"
        options = ["--no-sync", "-A", "scram-sha-256", "-U", "squall", f"--pwfile={secret}"]
        _run([initdb, *options, "-D", str(data)], user)
        tls: list[str] = []
        if certificate is not None:
            pem = _copied(certificate, folder, user)
            tls = ["-c", "ssl=on", "-c", f"ssl_cert_file={pem}", "-c", f"ssl_key_file={pem}"]
        with _running(
            lambda port: [
                *(str(Path(initdb).with_name("postgres")), "-D", str(data), "-p", str(port)),
                *("-h", "127.0.0.1", "-c", "unix_socket_directories=", "-c", "fsync=off"),
                *tls,
            ],
            # It listens before it takes connections.
            lambda port: (
                subprocess.run(
                    [Path(initdb).with_name("pg_isready"), "-q", "-h127.0.0.1", f"-p{port}"]
                ).returncode
                == 0
            ),
            user,
            folder,
        ) as (port, restart):
            yield DatabaseServer(port, restart=restart)


@contextmanager
def mariadb_server(certificate: Path | None = None) -> Iterator[DatabaseServer]:
    """With an empty database `results`; with TLS if there is a file with a certificate and its
    key."""
    server = _program("mariadbd", "/usr/sbin")
    install = _program("mariadb-install-db", "/usr/bin")
    user = _unprivileged("mysql")
    with _folder(user) as folder:
        data = folder / "data"
        options = ["--skip-test-db", "--auth-root-authentication-method=normal"]
        _run([install, "--no-defaults", f"--datadir={data}", *options], user)
        tls: list[str] = []
        if certificate is not None:
            pem = _copied(certificate, folder, user)
            tls = [f"--ssl-cert={pem}", f"--ssl-key={pem}"]
        start = folder / "start.sql"
        start.write_text(
            "CREATE DATABASE results;\n"
            f"CREATE USER squall@'%' IDENTIFIED BY '{PASSWORD}';\n"
            "GRANT ALL ON results.* TO squall@'%';"
        )
        _own(start, user)
        with _running(
            lambda port: [
                *(server, "--no-defaults", f"--datadir={data}", f"--port={port}"),
                *("--bind-address=127.0.0.1", f"--socket={folder}/socket", "--skip-name-resolve"),
                *(f"--init-file={start}", f"--pid-file={folder}/pid"),
                # What was committed survives a kill of the server.
                "--innodb-flush-log-at-trx-commit=2",
                *tls,
            ],
            # Connections wait until it has read its file.
            _listens,
            user,
            folder,
        ) as (port, restart):
            yield DatabaseServer(port, restart=restart)


def _program(name: str, places: str) -> str:
    found = shutil.which(name)
    others = sorted(Path("/").glob(f"{places.lstrip('/')}/{name}"))
    if found is None and not others:
        missing(f"{name} is not installed")
    # A link may stand apart from the programs that belong to it.
    return str(Path(found or others[-1]).resolve())


def _unprivileged(name: str) -> str | None:
    """Another user, if this one is root."""
    if os.geteuid() != 0:
        return None
    with contextlib.suppress(KeyError):
        return pwd.getpwnam(name).pw_name
    return "nobody"


@contextmanager
def _folder(user: str | None) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="squall-tests-database-"))
    try:
        _own(folder, user)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _copied(certificate: Path, folder: Path, user: str | None) -> Path:
    """Readable by the server alone, as it demands."""
    pem = folder / "server.pem"
    pem.write_bytes(certificate.read_bytes())
    pem.chmod(0o600)
    _own(pem, user)
    return pem


def _own(place: Path, user: str | None) -> None:
    if user is not None:
        shutil.chown(place, user)


def _run(command: list[str], user: str | None) -> None:
    done = subprocess.run(
        command, user=user, cwd="/", capture_output=True, text=True, timeout=STARTS_WITHIN_S
    )
    assert done.returncode == 0, done.stdout + done.stderr


@contextmanager
def _running(
    command: Callable[[int], list[str]],
    is_ready: Callable[[int], bool],
    user: str | None,
    folder: Path,
) -> Iterator[tuple[int, Callable[[], None]]]:
    """The port, and a function that restarts the server. Starts it again elsewhere if another
    process took the port first."""
    process: list[subprocess.Popen[bytes]] = []

    def start(port: int) -> bool:
        with open(folder / "log", "wb") as log:
            process[:] = [
                subprocess.Popen(command(port), user=user, cwd="/", stdout=log, stderr=log)
            ]
        return _becomes_ready(process[0], port, is_ready)

    def kill() -> None:
        process[0].kill()
        process[0].wait()

    def restart() -> None:
        kill()
        # Children of a killed server may keep its files for a moment.
        while not start(port):
            kill()

    for _ in range(3):
        (port,) = free_ports(1)
        try:
            if start(port):
                yield port, restart
                return
        finally:
            kill()
    raise AssertionError((folder / "log").read_text(errors="replace"))


def _becomes_ready(
    process: subprocess.Popen[bytes], port: int, is_ready: Callable[[int], bool]
) -> bool:
    deadline = time.monotonic() + STARTS_WITHIN_S
    while process.poll() is None:
        if is_ready(port):
            return True
        assert time.monotonic() < deadline, "the server does not become ready"
        time.sleep(0.05)
    return False


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 10.0):
        return True
    return False


@contextmanager
def postgres_database() -> Iterator[str]:
    """The URL of an empty database."""
    name = f"squall_tests_{secrets.token_hex(6)}"
    with ExitStack() as stack:
        server = "postgres://postgres@127.0.0.1:5432"
        if not _reaches(_on_postgres, f"{server}/postgres"):
            own = stack.enter_context(postgres_server())
            server = (
                f"postgres://{own.username}:{quote(own.password, safe='')}@127.0.0.1:{own.port}"
            )
        on_postgres(f"{server}/postgres", f"CREATE DATABASE {name}")
        stack.callback(on_postgres, f"{server}/postgres", f"DROP DATABASE {name} WITH (FORCE)")
        yield f"{server}/{name}"


@contextmanager
def mariadb_database() -> Iterator[str]:
    """The URL of an empty database."""
    name = f"squall_tests_{secrets.token_hex(6)}"
    with ExitStack() as stack:
        server = "mysql://root@127.0.0.1:3306"
        if _reaches(_on_mysql, server):
            on_mysql(server, f"CREATE DATABASE {name}")
            stack.callback(on_mysql, server, f"DROP DATABASE {name}")
            yield f"{server}/{name}"
            return
        own = stack.enter_context(mariadb_server())
        password = quote(own.password, safe="")
        yield f"mysql://{own.username}:{password}@127.0.0.1:{own.port}/results"


def on_postgres(url: str, statement: str) -> Any:
    """Runs a statement apart from Squall, in a thread of its own; returns its first value."""
    return _in_thread(_on_postgres(url, statement))


def on_mysql(url: str, statement: str) -> Any:
    return _in_thread(_on_mysql(url, statement))


async def _on_postgres(url: str, statement: str) -> Any:
    import asyncpg

    connection = await asyncpg.connect(url)
    try:
        return await connection.fetchval(statement)
    finally:
        await connection.close()


async def _on_mysql(url: str, statement: str) -> Any:
    import aiomysql

    parts = urlsplit(url)
    connection = await aiomysql.connect(
        host=parts.hostname,
        port=parts.port,
        user=parts.username,
        password=unquote(parts.password or ""),
        db=parts.path.strip("/") or None,
        autocommit=True,
    )
    try:
        async with connection.cursor() as cursor:
            with warnings.catch_warnings(action="ignore"):
                await cursor.execute(statement)
            row = await cursor.fetchone()
            return row[0] if row else None
    finally:
        connection.close()


def _reaches(run: Callable[[str, str], Coroutine[Any, Any, Any]], url: str) -> bool:
    try:
        return _in_thread(run(url, "SELECT 1")) == 1
    except Exception:
        # No server, or one that does not let us in.
        return False


def _in_thread(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """A test may run a loop of its own."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, coroutine).result(60)
