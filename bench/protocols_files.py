"""Mails, files and pages on one core: our clients against the bare libraries that they stand on.

Compared is the number of operations per second of CPU time. The servers (aiosmtpd, pyftpdlib,
asyncssh, the built-in target) have core 0. A peer is the library alone, in a loop of as many users.
Pages have no peer: their cost is that of Chromium, with its driver and the core process.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import uvloop

import generators

USERS = 8
CORE = "0"
START_TIMEOUT_S = 20.0
BAR, PAGES_BAR = 0.85, 8.0
ROUNDS = 3
SAMPLE_S = 0.1
NAMES = {
    "Smtp": "SMTP against aiosmtplib",
    "Ftp": "FTP, 1 kB against aioftp",
    "Sftp": "SFTP, 1 kB against asyncssh",
    "Scp": "SCP, 1 kB against asyncssh",
}
MESSAGE = b"From: a@x.test\r\nTo: b@x.test\r\nSubject: \r\n\r\n" + b"x" * 60 + b"\r\n"

Row = tuple[str, float, float | None, float]


class Ports(NamedTuple):
    smtp: int
    ftp: int
    ssh: int
    http: int


def rows(seconds: float, rounds: int) -> list[Row]:
    """(Name, our operations per second of CPU time, those of the peer, bar)."""
    whole = max(round(seconds), 1)
    found: list[Row] = []
    with _running() as ports:
        for name, shown in NAMES.items():
            port = {"Smtp": ports.smtp, "Ftp": ports.ftp}.get(name, ports.ssh)
            # Each round has both, one after the other: they had the same machine.
            pairs = [(_ours(name, port, whole), _bare(name, port, whole)) for _ in range(rounds)]
            ours = median(pair[0] for pair in pairs)
            ratio = median(pair[0] / pair[1] for pair in pairs)
            found.append((shown, ours, ours / ratio, BAR))
        found.append(("Browser, warm pages", _pages(ports.http, max(whole, 3)), None, PAGES_BAR))
    return found


def _run(name: str, port: int, users: int, seconds: int) -> generators.Outcome:
    os.environ["TARGET"] = f"127.0.0.1:{port}"
    done = generators.squall(
        "http://127.0.0.1", users, seconds, "--only", name, "--insecure", file="hello_files.py"
    )
    if done.failed_checks:
        raise RuntimeError(f"{name}: {done.failed_checks} calls failed")
    return done


def _ours(name: str, port: int, seconds: int) -> float:
    return 1 / _run(name, port, USERS, seconds).cost_s


def _pages(port: int, seconds: int) -> float:
    """Pages per second of CPU time of all processes, without what the start of them costs: that of
    a long run less that of a short one."""
    spent: list[tuple[int, float]] = []
    for length in (1, seconds + 1):
        with _watched_family() as cpu_s:
            pages = _run("Browser", port, 1, length).requests
        spent.append((pages, sum(cpu_s.values())))
    (few, little_s), (many, much_s) = spent
    return (many - few) / (much_s - little_s)


@contextmanager
def _watched_family() -> Generator[dict[int, float]]:
    """The CPU time of each process that descends from this one and is started inside. Those of
    Chromium are not waited for by their parents, so the kernel does not add them up."""
    spent: dict[int, float] = {}
    before = {pid for pid, _ in _family(os.getpid())}
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(SAMPLE_S):
            spent.update((pid, cpu_s) for pid, cpu_s in _family(os.getpid()) if pid not in before)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield spent
    finally:
        ended.set()
        thread.join()


def _family(root: int) -> list[tuple[int, float]]:
    """(Process, its CPU time) of all descendants."""
    children: dict[int, list[int]] = {}
    cpu_s: dict[int, float] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        children.setdefault(int(fields[1]), []).append(int(entry.name))
        cpu_s[int(entry.name)] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    found: list[int] = []
    left = [root]
    while left:
        below = children.get(left.pop(), [])
        found += below
        left += below
    return [(pid, cpu_s[pid]) for pid in found]


def _bare(name: str, port: int, seconds: int) -> float:
    words = [sys.executable, __file__, "load", name, str(port), str(seconds)]
    return float(generators.run(words))


@contextmanager
def _running() -> Generator[Ports]:
    folder = Path(tempfile.mkdtemp(prefix="squall-bench-"))
    (folder / "file").write_bytes(os.urandom(1024))
    ports = Ports(*(_free_port() for _ in Ports._fields))
    ftp = ["-m", "pyftpdlib", "-i", "127.0.0.1", "-p", str(ports.ftp), "-d", str(folder)]
    target = str(Path(sys.executable).with_name("squall"))
    commands = [
        [sys.executable, __file__, "serve", "smtp", str(ports.smtp), str(folder)],
        [sys.executable, "-W", "ignore", *ftp],
        [sys.executable, __file__, "serve", "ssh", str(ports.ssh), str(folder)],
        [target, "target", "--port", str(ports.http)],
    ]
    processes: list[subprocess.Popen[bytes]] = []
    try:
        processes += [
            subprocess.Popen(
                ["taskset", "-c", CORE, *command],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            for command in commands
        ]
        for port in ports:
            _wait_for(port)
        yield ports
    finally:
        for process in processes:
            process.terminate()
            process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _wait_for(port: int) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except OSError as error:
            if time.monotonic() > deadline:
                raise RuntimeError(f"no server listens on port {port}") from error
            time.sleep(0.02)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def _serve(kind: str, port: int, folder: str) -> None:
    if kind == "smtp":
        from aiosmtpd.smtp import SMTP

        class Handler:
            async def handle_DATA(self, *_: Any) -> str:
                return "250 OK"

        loop = asyncio.get_running_loop()
        await loop.create_server(lambda: SMTP(Handler(), loop=loop), "127.0.0.1", port)
    else:
        import asyncssh

        class Session(asyncssh.SSHServer):
            def begin_auth(self, username: str) -> bool:
                return False

        await asyncssh.create_server(
            Session,
            "127.0.0.1",
            port,
            server_host_keys=[asyncssh.generate_private_key("ssh-ed25519")],
            sftp_factory=lambda channel: asyncssh.SFTPServer(channel, chroot=os.fsencode(folder)),
            allow_scp=True,
        )
    await asyncio.Event().wait()


async def _load(name: str, port: int, seconds: float) -> None:
    """Prints the operations of a bare library per second of CPU time, with its log-ins, as ours."""
    import_module(MODULES[name])
    began, until = time.process_time(), time.perf_counter() + seconds
    opened = await asyncio.gather(*(LIBRARIES[name](port) for _ in range(USERS)))
    done = 0

    async def user(call: Callable[[], Awaitable[Any]]) -> None:
        nonlocal done
        while time.perf_counter() < until:
            await call()
            done += 1

    await asyncio.gather(*map(user, opened))
    print(done / (time.process_time() - began))


async def _smtp(port: int) -> Callable[[], Awaitable[Any]]:
    import aiosmtplib

    client = aiosmtplib.SMTP(hostname="127.0.0.1", port=port, start_tls=False)
    await client.connect()
    return lambda: client.sendmail("a@x.test", ["b@x.test"], MESSAGE)


async def _ftp(port: int) -> Callable[[], Awaitable[Any]]:
    import aioftp

    client = aioftp.Client()
    await client.connect("127.0.0.1", port)
    await client.login()

    async def get() -> bytes:
        async with client.download_stream("/file") as stream:
            return await stream.read()

    return get


async def _sftp(port: int) -> Callable[[], Awaitable[Any]]:
    connection = await _ssh(port)
    client = await connection.start_sftp_client()

    async def get() -> Any:
        async with client.open("/file", "rb") as file:
            return await file.read()

    return get


async def _scp(port: int) -> Callable[[], Awaitable[Any]]:
    import asyncssh

    connection = await _ssh(port)
    # It has no way to keep the content in memory.
    return lambda: asyncssh.scp((connection, "/file"), "/dev/shm/squall-bench-scp")


async def _ssh(port: int) -> Any:
    import asyncssh

    return await asyncssh.connect(
        "127.0.0.1", port, username="ada", password="x", known_hosts=None, config=None
    )


MODULES = {"Smtp": "aiosmtplib", "Ftp": "aioftp", "Sftp": "asyncssh", "Scp": "asyncssh"}
LIBRARIES = {"Smtp": _smtp, "Ftp": _ftp, "Sftp": _sftp, "Scp": _scp}


def main() -> int:
    if sys.argv[1:2] == ["load"]:
        uvloop.run(_load(sys.argv[2], int(sys.argv[3]), float(sys.argv[4])))
        return 0
    if sys.argv[1:2] == ["serve"]:
        uvloop.run(_serve(sys.argv[2], int(sys.argv[3]), sys.argv[4]))
        return 0
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--check", action="store_true", help="exit code 1 if a bar is missed")
    options = parser.parse_args()
    holds = True
    for name, ours, peer, bar in rows(options.seconds, options.rounds):
        value = ours / peer if peer else ours
        peers = f"{peer:10,.0f}  {value:6.2f}" if peer else f"{'':18}"
        print(f"{name:32} {ours:10,.1f} {peers}  bar {bar:.2f}")
        holds = holds and value >= bar
    return 1 if options.check and not holds else 0


if __name__ == "__main__":
    sys.exit(main())
