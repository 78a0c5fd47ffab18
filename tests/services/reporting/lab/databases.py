"""PostgreSQL and MariaDB servers of the tests' own, with a password, on free ports.

They do not sync to disk. Both refuse to run as root, so their files belong to another user then,
outside of pytest's folders, which only the own user may enter.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

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


def missing(what: str) -> None:
    if os.environ.get("CI"):
        pytest.fail(what)
    pytest.skip(what)


@contextmanager
def postgres_server() -> Iterator[DatabaseServer]:
    initdb = _program("initdb", "/usr/lib/postgresql/*/bin")
    user = _unprivileged("postgres")
    with _folder(user) as folder:
        secret = folder / "password"
        secret.write_text(PASSWORD)
        _own(secret, user)
        data = folder / "data"
        options = ["--no-sync", "-A", "scram-sha-256", "-U", "squall", f"--pwfile={secret}"]
        _run([initdb, *options, "-D", str(data)], user)
        with _running(
            lambda port: [
                *(str(Path(initdb).with_name("postgres")), "-D", str(data), "-p", str(port)),
                *("-h", "127.0.0.1", "-c", "unix_socket_directories=", "-c", "fsync=off"),
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
        ) as port:
            yield DatabaseServer(port)


@contextmanager
def mariadb_server() -> Iterator[DatabaseServer]:
    """With an empty database `results`."""
    server = _program("mariadbd", "/usr/sbin")
    install = _program("mariadb-install-db", "/usr/bin")
    user = _unprivileged("mysql")
    with _folder(user) as folder:
        data = folder / "data"
        options = ["--skip-test-db", "--auth-root-authentication-method=normal"]
        _run([install, "--no-defaults", f"--datadir={data}", *options], user)
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
                "--innodb-flush-log-at-trx-commit=0",
            ],
            # Connections wait until it has read its file.
            _listens,
            user,
            folder,
        ) as port:
            yield DatabaseServer(port)


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
) -> Iterator[int]:
    """Starts it again elsewhere if another process took the port first."""
    for _ in range(3):
        (port,) = free_ports(1)
        with open(folder / "log", "wb") as log:
            process = subprocess.Popen(command(port), user=user, cwd="/", stdout=log, stderr=log)
        try:
            if _becomes_ready(process, port, is_ready):
                yield port
                return
        finally:
            process.kill()
            process.wait()
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
