"""Message brokers against their bare libraries in a loop: messages per second of CPU time.

Each message is acknowledged before the next one. NATS and Mosquitto are started here, on core 0;
RabbitMQ is that of this machine, and Kafka the address in KAFKA_URL. A row is left out if its
broker is not there.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import urlsplit

import generators

# Of the library. That of Kafka needs 8 us for a message of a batch, less than an iteration costs.
BARS = {"Nats": 0.85, "Mqtt": 0.85, "Amqp": 0.85, "Kafka": 0.30}
# Users with a connection of their own; those of Kafka share a producer.
USERS = {"Nats": 8, "Mqtt": 8, "Amqp": 8, "Kafka": 200}
RABBITMQ = "amqp://guest:guest@127.0.0.1:5672"
BODY = b"x" * 64
PLACE = "squall-bench"
START_TIMEOUT_S = 20.0

Row = tuple[str, float, float | None, float]


def rows(seconds: float, rounds: int) -> list[Row]:
    """(Name, our messages per second of CPU time, those of the library, bar)."""
    found: list[Row] = []
    with _urls() as urls:
        for name, url in urls.items():
            os.environ["TARGET"] = url
            made: list[tuple[float, float]] = []
            for _ in range(rounds):
                # The file takes the address from the environment.
                host, words = "http://127.0.0.1", ("--only", name)
                done = generators.squall(
                    host, USERS[name], round(seconds), *words, file="hello_brokers.py"
                )
                if done.failed_checks:
                    raise RuntimeError(f"{done.failed_checks} messages failed")
                command = [sys.executable, __file__, "--bare", name, url, str(seconds)]
                made.append((1 / done.cost_s, float(generators.run(command))))
            ours = median(each[0] for each in made)
            ratio = median(each[0] / each[1] for each in made)
            found.append((f"{name} against its library", ours, ours / ratio, BARS[name]))
    return found


@contextmanager
def _urls() -> Iterator[dict[str, str]]:
    """The address of each broker that is there."""
    with tempfile.TemporaryDirectory() as folder:
        nats, mqtt = _free_port(), _free_port()
        config = Path(folder, "mosquitto.conf")
        config.write_text(f"listener {mqtt} 127.0.0.1\nallow_anonymous true\n")
        mosquitto = shutil.which("mosquitto") or "/usr/sbin/mosquitto"
        commands = {
            "Nats": (nats, ["nats-server", "-a", "127.0.0.1", "-p", str(nats)]),
            "Mqtt": (mqtt, [mosquitto, "-c", str(config)]),
        }
        urls: dict[str, str] = {}
        processes: list[subprocess.Popen[bytes]] = []
        try:
            for name, (port, command) in commands.items():
                if shutil.which(command[0]):
                    quiet = subprocess.DEVNULL
                    words = ["taskset", "-c", "0", *command]
                    processes.append(subprocess.Popen(words, stdout=quiet, stderr=quiet))
                    deadline = time.monotonic() + START_TIMEOUT_S
                    while not _listens(port):
                        if time.monotonic() > deadline:
                            raise RuntimeError(f"{command[0]} does not start")
                        time.sleep(0.02)
                    urls[name] = f"{name.lower()}://127.0.0.1:{port}"
            if _listens(5672):
                urls["Amqp"] = RABBITMQ
            if "KAFKA_URL" in os.environ:
                urls["Kafka"] = os.environ["KAFKA_URL"]
            yield urls
        finally:
            for process in processes:
                process.terminate()
                process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


async def _nats(url: str, index: int, ends: float) -> int:
    import nats

    client, count = await nats.connect(url), 0
    while time.perf_counter() < ends:
        await client.publish(PLACE, BODY)
        await client.flush()
        count += 1
    await client.close()
    return count


async def _mqtt(url: str, index: int, ends: float) -> int:
    import aiomqtt

    where, count = urlsplit(url), 0
    version = aiomqtt.ProtocolVersion.V5
    async with aiomqtt.Client(
        str(where.hostname), where.port or 1883, identifier=f"bare{index}", protocol=version
    ) as client:
        while time.perf_counter() < ends:
            await client.publish(PLACE, BODY, qos=1)
            count += 1
    return count


async def _amqp(url: str, index: int, ends: float) -> int:
    import aiormq

    connection, count = await aiormq.connect(url), 0
    channel = await connection.channel()
    while time.perf_counter() < ends:
        await channel.basic_publish(BODY, routing_key=PLACE)
        count += 1
    await connection.close()
    return count


_producers: dict[str, Any] = {}


async def _kafka(url: str, index: int, ends: float) -> int:
    from aiokafka import AIOKafkaProducer

    if not index:
        where = urlsplit(url).netloc
        made = AIOKafkaProducer(bootstrap_servers=where, acks=1)
        await made.start()
        _producers[url] = made
    while url not in _producers:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    producer, count = _producers[url], 0
    while time.perf_counter() < ends:
        await (await producer.send(PLACE, BODY))
        count += 1
    if not index:
        await producer.stop()
    return count


async def _bare(name: str, url: str, seconds: float) -> float:
    """Messages per second of CPU time."""
    send = {"Nats": _nats, "Mqtt": _mqtt, "Amqp": _amqp, "Kafka": _kafka}[name]
    ends = time.perf_counter() + seconds
    began = _cpu_s()
    counts = await asyncio.gather(*(send(url, index, ends) for index in range(USERS[name])))
    return sum(counts) / (_cpu_s() - began)


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--bare", nargs=3, metavar=("NAME", "URL", "SECONDS"))
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if options.bare:
        import uvloop

        name, url, seconds = options.bare
        print(uvloop.run(_bare(name, url, float(seconds))))
    else:
        for row in rows(options.seconds, options.rounds):
            print(f"{row[0]:<32}{row[1]:>10.0f}{row[2]:>10.0f}{row[1] / (row[2] or 1):>8.2f}")
