"""A broker of librdkafka's mock cluster, which speaks Kafka's protocol and keeps headers. `kcat`
runs it and consumes its topic at the same time: what was sent, in its own words.

It starts in milliseconds, and has neither consumer groups that last nor passwords. TLS is that of
a proxy in front of it.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import ssl
import subprocess
import tempfile
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from tests.lab.brokers import missing

TOPIC = "squall"
_STARTS_WITHIN_S = 60.0
_SEPARATOR = "\x1f"
_FORMAT = _SEPARATOR.join(("%p", "%o", "%k", "%h", "%s")) + "\n"


class KafkaServer:
    """`topic` is the one whose messages are read."""

    topic = TOPIC

    def __init__(self, port: int, received: Path) -> None:
        self.port = port
        self._received = received

    @property
    def url(self) -> str:
        return f"kafka://127.0.0.1:{self.port}"

    @property
    def messages(self) -> list[dict[str, str]]:
        names = ("partition", "offset", "key", "headers", "value")
        lines = self._received.read_text().splitlines()
        return [dict(zip(names, line.split(_SEPARATOR), strict=True)) for line in lines]


@contextmanager
def running_kafka_server() -> Generator[KafkaServer]:
    if shutil.which("kcat") is None:
        missing("kcat: apt-get install kcat")
    with tempfile.TemporaryDirectory(prefix="squall-kafka-") as folder:
        received, log = Path(folder) / "received", Path(folder) / "log"
        command = ["kcat", "-C", "-u", "-X", "test.mock.num.brokers=1", "-b", "127.0.0.1:1"]
        command += ["-t", TOPIC, "-o", "beginning", "-f", _FORMAT, "-d", "mock"]
        with received.open("wb") as output, log.open("wb") as errors:
            process = subprocess.Popen(command, stdout=output, stderr=errors)
        try:
            yield KafkaServer(_port_of(process, log), received)
        finally:
            process.kill()
            process.wait()


def _port_of(process: subprocess.Popen[bytes], log: Path) -> int:
    deadline = time.monotonic() + _STARTS_WITHIN_S
    while True:
        text = log.read_text(errors="replace")
        found = re.search(r"bootstrap\.servers=127\.0\.0\.1:(\d+)\n", text)
        if found is not None:
            return int(found[1])
        assert process.poll() is None, f"kcat ended:\n{text}"
        assert time.monotonic() < deadline, f"no broker:\n{text}"
        time.sleep(0.01)


class TLSProxy:
    """Decrypts for a server on the same port of 127.0.0.1, and counts its connections."""

    host = "127.0.0.2"

    def __init__(self, port: int) -> None:
        self.port = port
        self.connections = 0

    async def pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        of_server = await asyncio.open_connection("127.0.0.1", self.port)
        await asyncio.gather(_copied(reader, of_server[1]), _copied(of_server[0], writer))


async def _copied(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    writer.close()


@asynccontextmanager
async def running_tls_proxy(port: int, certificate: ssl.SSLContext) -> AsyncGenerator[TLSProxy]:
    proxy = TLSProxy(port)
    async with await asyncio.start_server(proxy.pass_on, proxy.host, port, ssl=certificate):
        yield proxy
