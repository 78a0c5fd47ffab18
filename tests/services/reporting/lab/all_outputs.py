"""Ten outputs of one run, and three that cannot work: what each of them holds in the end."""

from __future__ import annotations

import asyncio
import csv
import json
import re
import socket
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote
from xml.etree import ElementTree

from tests.lab.databases import DatabaseServer
from tests.lab.outputs import (
    ENDS_WITHIN_S,
    RecordingServer,
    otlp_totals,
    recording_server,
    step_totals,
    wait_for,
)
from tests.lab.ports import free_ports
from tests.lab.prometheus_server import PrometheusServer, prometheus_server

Totals = dict[tuple[str, str, str], float]

OWN = """
import json

class Own:
    def __init__(self, path: str) -> None:
        self.path = path

    async def connect(self) -> None: ...

    async def submit(self, document) -> None:
        with open(self.path, "w") as file:
            json.dump(document, file)

    async def close(self) -> None: ...
"""
SECRETS = ("geheim%40-pass:wort", quote("geheim%40-pass:wort", safe=""), "hunter2", "hunter3")
"""No message and no file may show one of them; the first is the password of the databases."""


@dataclass(frozen=True)
class Servers:
    """Where the outputs go."""

    postgres: DatabaseServer
    mariadb: DatabaseServer
    redis_url: str
    prometheus: PrometheusServer
    otlp: RecordingServer
    statsd: StatsDListener
    silent: str
    """Takes connections and never answers."""
    kafka: str = ""


class StatsDListener:
    """Adds up the counters that arrive over UDP."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
        self._socket.bind(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"
        self.totals: Totals = {}
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        while (data := self._socket.recv(65536)) != b"end":
            for line in data.decode().splitlines():
                name, value = line.split(":", 1)
                parts = name.split(".")
                if parts[1] == "executions":
                    key = (parts[-3], parts[-2], parts[-1])
                    grown = float(value.partition("|")[0])
                    self.totals[key] = self.totals.get(key, 0.0) + grown

    def close(self) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as closing:
            closing.sendto(b"end", self._socket.getsockname())
        self._thread.join()
        self._socket.close()


@contextmanager
def servers(
    folder: Path,
    postgres: DatabaseServer,
    mariadb: DatabaseServer,
    redis_url: str,
    kafka: str = "",
) -> Iterator[Servers]:
    with ExitStack() as stack:
        data = folder / "prometheus"
        data.mkdir()
        listener = StatsDListener()
        stack.callback(listener.close)
        hanging = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        yield Servers(
            postgres,
            mariadb,
            redis_url,
            stack.enter_context(prometheus_server(data)),
            stack.enter_context(recording_server()),
            listener,
            f"127.0.0.1:{hanging.getsockname()[1]}",
            kafka,
        )


class TenOutputs:
    """The words of a command for all outputs, and the check of what they hold."""

    def __init__(self, folder: Path, places: Servers) -> None:
        self._folder = folder
        self._places = places
        self._prefix = f"squall-tests-{id(self)}"
        (self._dead,) = free_ports(1)
        (folder / "own.py").write_text(OWN)

    @property
    def environment(self) -> dict[str, str]:
        return {"MYSQL_PWD": self._places.mariadb.password}

    @property
    def words(self) -> tuple[str, ...]:
        places = self._places
        user = f"{places.postgres.username}:{quote(places.postgres.password, safe='')}"
        outputs = [
            "csv=table",
            "xml=results.xml",
            "html=report.html",
            "markdown=report.md",
            "junit=junit.xml",
            "jsonl=lines.jsonl",
            "sqlite=results.db",
            f"postgres=postgresql://{user}@127.0.0.1:{places.postgres.port}/postgres",
            f"mariadb=mariadb://squall@127.0.0.1:{places.mariadb.port}/results",
            f"redis={places.redis_url},prefix={self._prefix},expire=1h",
            f"remote-write={places.prometheus.url}/api/v1/write,token=hunter3",
            f"otlp={places.otlp.url},headers=x-key=hunter3",
            f"statsd={places.statsd.address}",
            "own.py:Own=own.json",
            # A closed port, and two that hang: one after the run, one while it goes on.
            f"timescaledb=postgresql://me:hunter2@127.0.0.1:{self._dead}/x",
            f"mysql=mysql://me:hunter2@{places.silent}/x,timeout_s=1",
            f"influx=http://me:hunter2@{places.silent}/x",
        ]
        if places.kafka:
            outputs.append(f"kafka={places.kafka},topic={self._prefix}")
        return tuple(word for each in outputs for word in ("-o", each))

    def check(self, document: dict[str, Any], said: str) -> None:
        """All hold the totals of the document; those that cannot work are a line each."""
        wanted = {key: float(value) for key, value in step_totals(document).items()}
        run = document["run"]["id"]
        for name, read in self._stored(run).items():
            assert read() == wanted, name
        # These may show the last numbers a moment after the command has ended.
        grown = {key: value for key, value in wanted.items() if value}
        prometheus, otlp = self._places.prometheus, self._places.otlp
        wait_for(lambda: prometheus.step_totals(f"run={run!r}") == wanted, "remote write")
        wait_for(lambda: bool(otlp.requests), "OTLP")
        wait_for(lambda: otlp_totals(otlp.requests[-1].body) == wanted, "the totals over OTLP")
        wait_for(lambda: self._places.statsd.totals == grown, "the totals of StatsD")
        lines = [line for line in said.splitlines() if ": -o " in line]
        names = sorted(re.findall(r": -o ([\w.:-]+): ", "\n".join(lines)))
        assert names == ["influx", "mysql", "timescaledb"], said
        check_secrets(said, self._folder)

    def _stored(self, run: str) -> dict[str, Callable[[], Totals]]:
        """How to read what each output has when the command has ended."""
        folder, places = self._folder, self._places
        found: dict[str, Callable[[], Totals]] = {
            "csv": lambda: _of_csv(folder / "table_steps.csv"),
            "xml": lambda: _of_xml(folder / "results.xml"),
            "jsonl": lambda: _of_lines(folder / "lines.jsonl"),
            "own": lambda: _totals(json.loads((folder / "own.json").read_text())),
            "sqlite": lambda: _of_sqlite(folder / "results.db", run),
            "postgres": lambda: asyncio.run(_of_postgres(places.postgres, run)),
            "mariadb": lambda: _of_mariadb(places.mariadb, run),
            "redis": lambda: _of_redis(places.redis_url, f"{self._prefix}:run:{run}"),
        }
        if places.kafka:
            found["kafka"] = lambda: asyncio.run(_of_kafka(places.kafka, self._prefix))
        return found


def check_secrets(said: str, folder: Path, processes: Sequence[str] = ()) -> None:
    """None of them is in what the command said, in what it and its nodes wrote (documents, the
    HTML, logs, journals), or in the process list."""
    written = {
        str(each): each.read_bytes().decode(errors="replace")
        for each in folder.rglob("*")
        if each.is_file()
    }
    for secret in SECRETS:
        assert secret not in said
        assert [path for path, text in written.items() if secret in text] == []
        assert [line for line in processes if secret in line] == []


def _totals(document: dict[str, Any]) -> Totals:
    return {key: float(value) for key, value in step_totals(document).items()}


def _of_rows(rows: Sequence[tuple[str, str, Any, Any]]) -> Totals:
    return {
        (workflow, step, result): float(value)
        for workflow, step, ok, failed in rows
        for result, value in (("ok", ok), ("failed", failed))
    }


def _of_csv(path: Path) -> Totals:
    with open(path, newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["step"] != "iteration"]
    return _of_rows([(row["workflow"], row["step"], row["ok"], row["failed"]) for row in rows])


def _of_xml(path: Path) -> Totals:
    rows = [
        (workflow.attrib["name"], step.attrib["name"], step.get("ok"), step.get("failed"))
        for workflow in ElementTree.parse(path).getroot().iter("workflow")
        for step in workflow.iterfind("steps/*")
    ]
    return _of_rows(rows)


def _of_lines(path: Path) -> Totals:
    return _totals(json.loads(path.read_bytes().splitlines()[-1])["document"])


_STEPS = "SELECT workflow, step, ok, failed FROM squall_steps WHERE NOT is_iteration AND run_id = "


def _of_sqlite(path: Path, run: str) -> Totals:
    connection = sqlite3.connect(path)
    try:
        return _of_rows(connection.execute(f"{_STEPS}'{run}'").fetchall())
    finally:
        connection.close()


async def _of_postgres(server: DatabaseServer, run: str) -> Totals:
    import asyncpg

    connection = await asyncpg.connect(
        host="127.0.0.1",
        port=server.port,
        user=server.username,
        password=server.password,
        database="postgres",
        timeout=ENDS_WITHIN_S,
    )
    try:
        return _of_rows([tuple(row) for row in await connection.fetch(f"{_STEPS}'{run}'")])
    finally:
        await connection.close()


def _of_mariadb(server: DatabaseServer, run: str) -> Totals:
    import pymysql

    connection = pymysql.connect(
        host="127.0.0.1",
        port=server.port,
        user=server.username,
        password=server.password,
        database="results",
    )
    with connection, connection.cursor() as cursor:
        cursor.execute(f"{_STEPS}'{run}'")
        return _of_rows(cursor.fetchall())


def _of_redis(url: str, key: str) -> Totals:
    import redis

    client = redis.Redis.from_url(url, decode_responses=True)
    try:
        rows = json.loads(client.hget(key, "steps"))
        prefix = key.partition(":")[0]
        client.delete(key, f"{prefix}:runs")
    finally:
        client.close()
    return _of_objects(rows)


def _of_objects(rows: list[dict[str, Any]]) -> Totals:
    return _of_rows(
        [
            (row["workflow"], row["step"], row["ok"], row["failed"])
            for row in rows
            if not row["is_iteration"]
        ]
    )


async def _of_kafka(broker: str, topic: str) -> Totals:
    import aiokafka

    consumer = aiokafka.AIOKafkaConsumer(
        topic, bootstrap_servers=broker, auto_offset_reset="earliest", group_id=None
    )
    await consumer.start()
    rows: dict[str, dict[str, Any]] = {}
    try:
        async with asyncio.timeout(ENDS_WITHIN_S):
            async for message in consumer:
                row = json.loads(message.value)
                rows[row["id"]] = row
                counts = next((each["rows"] for each in rows.values() if "rows" in each), None)
                # Partitions have no common order.
                if counts is not None and sum(counts.values()) == len(rows):
                    break
    finally:
        await consumer.stop()
    return _of_objects([row for row in rows.values() if row["table"] == "steps"])
