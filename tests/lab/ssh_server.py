"""SSH servers: one on the package `asyncssh` in a thread of its own, which counts, and OpenSSH's.

Both serve SFTP and SCP.
"""

from __future__ import annotations

import asyncio
import os
import pwd
import socket
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import asyncssh
import pytest

from tests.lab.ports import free_ports

USER, PASSWORD = "ada", "swordfish"
SSHD = "/usr/sbin/sshd"
_START_TIMEOUT_S = 20.0


class SSHServer:
    """What the server saw: connections, logins, and files by what happened to them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = 0
        self.host_key = asyncssh.generate_private_key("ssh-ed25519")
        self.client_key = asyncssh.generate_private_key("ssh-ed25519")
        self.connections = 0
        self.logins: Counter[str] = Counter()
        self.files: Counter[str] = Counter()
        self.open: set[Any] = set()

    def url(self, scheme: str = "sftp") -> str:
        return f"{scheme}://{USER}:{PASSWORD}@127.0.0.1:{self.port}"

    @property
    def key_text(self) -> str:
        return self.client_key.export_private_key().decode()

    def write_known_hosts(self, path: Path) -> Path:
        public = self.host_key.export_public_key().decode()
        path.write_text(f"[127.0.0.1]:{self.port} {public}")
        return path


class _Session(asyncssh.SSHServer):
    def __init__(self, server: SSHServer) -> None:
        self._server = server

    def connection_made(self, conn: Any) -> None:
        self._server.connections += 1
        self._server.open.add(conn)

    def begin_auth(self, username: str) -> bool:
        return True

    def password_auth_supported(self) -> bool:
        return True

    def validate_password(self, username: str, password: str) -> bool:
        accepted = (username, password) == (USER, PASSWORD)
        self._server.logins["password" if accepted else "refused"] += 1
        return accepted

    def public_key_auth_supported(self) -> bool:
        return True

    def validate_public_key(self, username: str, key: Any) -> bool:
        return key == self._server.client_key.convert_to_public()

    def auth_completed(self) -> None:
        self._server.logins["all"] += 1


@contextmanager
def running_ssh_server(
    folder: Path, *, port: int = 0, server: SSHServer | None = None
) -> Generator[SSHServer]:
    """The server of a folder. `server` continues the counts of an earlier one."""
    server = server or SSHServer(folder)
    ready = threading.Event()
    loop = asyncio.new_event_loop()
    stopped = asyncio.Event()

    class Files(asyncssh.SFTPServer):
        def __init__(self, channel: Any) -> None:
            super().__init__(channel, chroot=os.fsencode(folder))

        def open(self, path: bytes, pflags: int, attrs: Any) -> Any:
            opened = super().open(path, pflags, attrs)
            server.files["written" if pflags & asyncssh.FXF_WRITE else "read"] += 1
            return opened

        def remove(self, path: bytes) -> Any:
            server.files["removed"] += 1
            return super().remove(path)

    async def main() -> None:
        made = await asyncssh.create_server(
            lambda: _Session(server),
            "127.0.0.1",
            port,
            server_host_keys=[server.host_key],
            sftp_factory=Files,
            allow_scp=True,
            login_timeout=0,
        )
        server.port = made.sockets[0].getsockname()[1]
        ready.set()
        await stopped.wait()
        made.close()
        for conn in server.open:
            conn.abort()
        server.open.clear()
        await asyncio.sleep(0)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()

    def run() -> None:
        loop.run_until_complete(main())
        loop.run_until_complete(asyncio.sleep(0))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert ready.wait(10)
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(stopped.set)
        thread.join(10)
        loop.close()


_SSHD_CONFIG = """\
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/authorized_keys
PidFile {folder}/sshd.pid
StrictModes no
UsePAM no
PermitRootLogin yes
PasswordAuthentication no
LogLevel VERBOSE
MaxStartups 200:30:400
Subsystem sftp internal-sftp
"""


@contextmanager
def running_openssh(folder: Path) -> Generator[tuple[SSHServer, str]]:
    """OpenSSH's server with a configuration of its own, and who may log in with the client's key:
    the user of this process. Its log is `sshd.log`."""
    if not os.path.exists(SSHD):
        message = f"{SSHD} is missing: apt-get install openssh-server"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    if os.geteuid() == 0:
        # Where it separates its privileges.
        os.makedirs("/run/sshd", exist_ok=True)
    server = SSHServer(folder)
    (server.port,) = free_ports(1)
    key = folder / "host_key"
    key.write_bytes(server.host_key.export_private_key())
    key.chmod(0o600)
    public = server.client_key.export_public_key()
    (folder / "authorized_keys").write_bytes(public)
    config = folder / "sshd_config"
    config.write_text(_SSHD_CONFIG.format(port=server.port, folder=folder))
    # An absolute path: it starts itself again for every connection.
    process = subprocess.Popen([SSHD, "-D", "-f", str(config), "-E", str(folder / "sshd.log")])
    try:
        wait_for_port(server.port, process)
        yield server, pwd.getpwuid(os.geteuid()).pw_name
    finally:
        process.terminate()
        process.wait(10)


def wait_for_port(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _START_TIMEOUT_S
    while True:
        assert process.poll() is None and time.monotonic() < deadline, "sshd did not start"
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except OSError:
            time.sleep(0.02)
