"""S3 servers in separate processes: moto, which simulates S3, and SeaweedFS, a real server.

SeaweedFS takes a lock per object for a conditional write, and a waiting writer polls the lock
once a second: many concurrent writers of one object take seconds there. It answers as S3 does.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

from tests.lab import atomic_moto
from tests.services.coordination.lab.places import make_bucket, s3_credentials

SEAWEEDFS = Path(sys.executable).with_name("weed")
GRPC_BEYOND = 10_000
"""A server of SeaweedFS has a second port so far above its own."""
PORTS = range(12_000, 22_000)


@contextmanager
def moto_server() -> Iterator[str]:
    """Gives its endpoint."""
    port = _free_ports(1)[0]
    with _running([*atomic_moto.PROGRAM, "-p", str(port)], port) as endpoint:
        yield endpoint


@contextmanager
def seaweedfs_server() -> Iterator[str]:
    """Gives its endpoint. One volume server, one filer, all in one process and one folder."""
    with tempfile.TemporaryDirectory() as folder:
        ports = _free_ports(4)
        identity = {
            "name": "tests",
            "credentials": [{"accessKey": "testing", "secretKey": "testing"}],
            "actions": ["Admin", "Read", "Write", "List"],
        }
        settings = Path(folder, "s3.json")
        settings.write_text(json.dumps({"identities": [identity]}))
        master, volume, filer, s3 = ports
        command = [
            *(str(SEAWEEDFS), "server", f"-dir={folder}"),
            *("-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-filer", "-s3", f"-s3.config={settings}"),
            *(f"-master.port={master}", f"-volume.port={volume}", f"-filer.port={filer}"),
            *(f"-s3.port={s3}", "-s3.port.iceberg=0", "-s3.port.lance=0", "-s3.iam=false"),
            *(f"-filer.localSocket={folder}/filer", f"-s3.localSocket={folder}/s3"),
            *("-master.volumeSizeLimitMB=64", "-volume.max=50"),
        ]
        try:
            with _running(command, s3, logs_in=folder) as endpoint:
                yield endpoint
        finally:
            # It is killed, since it takes half a minute to end: these it puts nowhere else.
            for port in ports:
                for left in Path("/tmp").glob(f"seaweedfs-*-{port + GRPC_BEYOND}.sock"):
                    left.unlink()


SERVERS: dict[str, Callable[[], AbstractContextManager[str]]] = {
    "moto": moto_server,
    "seaweedfs": seaweedfs_server,
}


@contextmanager
def _running(command: list[str], port: int, *, logs_in: str | None = None) -> Iterator[str]:
    endpoint = f"http://127.0.0.1:{port}"
    with s3_credentials():
        environment = os.environ if logs_in is None else os.environ | {"TMPDIR": logs_in}
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment
        )
        try:
            make_bucket(endpoint)
            yield endpoint
        finally:
            process.kill()
            process.wait()


def _free_ports(count: int) -> list[int]:
    """Below those that the system gives to outgoing connections, and with the second ones free."""
    found: list[int] = []
    with ExitStack() as stack:
        # Processes that start one after the other look in places of their own: a port is only
        # taken once its server runs.
        begin = PORTS.start + os.getpid() * 16 % len(PORTS)
        for port in (*range(begin, PORTS.stop), *range(PORTS.start, begin)):
            try:
                for each in (port, port + GRPC_BEYOND):
                    taken = stack.enter_context(socket.socket())
                    taken.bind(("127.0.0.1", each))
            except OSError:
                continue
            found.append(port)
            if len(found) == count:
                return found
    raise RuntimeError("no free port")
