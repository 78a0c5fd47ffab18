"""Every kind of output can be written in Python, with a configuration of its own."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import squall
from squall import Reporter, ReporterTypes, reporters
from squall.api.errors import ConfigError, UsageError
from squall.api.reporting import is_live_reporter, is_reporter
from squall.reporters import PostgresConfig, SQLiteConfig, StatsDConfig
from squall.reporting.outputs.registry import KINDS, check_reporters
from squall.reporting.outputs.targets import resolved, secrets_in, wanted_config
from squall.stats.manifest import FileManifest, WorkflowManifest
from tests.services.reporting.lab.document import report_document


def deliver(reporter: Reporter[Any], document: dict[str, Any]) -> None:
    async def run() -> None:
        await reporter.connect()
        await reporter.submit(document)
        await reporter.close()

    asyncio.run(run())


def test_there_is_a_type_for_every_kind() -> None:
    assert {each.value for each in ReporterTypes} == set(KINDS)


def test_every_configuration_can_be_imported_here() -> None:
    wanted = {wanted_config(kind.factory_function) for kind in KINDS.values()} - {str}
    assert wanted == {
        getattr(reporters, name) for name in reporters.__all__ if name.endswith("Config")
    }


def test_the_form_of_three_calls(tmp_path: Path) -> None:
    path = tmp_path / "results.db"
    reporter = Reporter[SQLiteConfig](
        reporter_type=ReporterTypes.SQLite, config=SQLiteConfig(str(path))
    )
    deliver(reporter, report_document())
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT run_id FROM squall_runs").fetchall() == [("01J9Z4",)]
    connection.close()


def test_a_file_has_its_path_as_configuration(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    deliver(Reporter(reporter_type="json", config=path), report_document())
    assert json.loads(path.read_text()) == report_document()


def test_a_live_kind_without_a_run_sends_the_final_numbers() -> None:
    received: list[bytes] = []

    class Listener(asyncio.DatagramProtocol):
        def datagram_received(self, data: bytes, addr: Any) -> None:
            received.append(data)

    async def run() -> None:
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_datagram_endpoint(Listener, ("127.0.0.1", 0))
        host, port = transport.get_extra_info("sockname")
        reporter = Reporter(
            reporter_type=ReporterTypes.StatsD, config=StatsDConfig(f"{host}:{port}")
        )
        assert is_live_reporter(reporter) and is_reporter(reporter)
        await reporter.connect()
        await reporter.submit(report_document())
        await reporter.close()
        async with asyncio.timeout(30.0):
            while not received:
                await asyncio.sleep(0.01)
        transport.close()

    asyncio.run(run())
    assert b"squall" in b"".join(received)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ({}, r"^Reporter: write Reporter\(reporter_type=\.\.\., config=\.\.\.\), or a subclass"),
        ({"reporter_type": "oracle"}, "^Reporter: there is no output oracle; known: json, csv"),
        (
            {"reporter_type": "postgres", "config": SQLiteConfig("x")},
            "^Reporter: the config of postgres is a PostgresConfig, not SQLiteConfig$",
        ),
        (
            {"reporter_type": "json", "config": 3},
            "^Reporter: the config of json is a text, not int$",
        ),
    ],
)
def test_a_wrong_argument_is_one_line(arguments: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError, match=line):
        Reporter(**arguments)


def test_secrets_are_read_by_the_process_that_delivers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = tmp_path / "password"
    config = PostgresConfig(host="db", password=f"@{secret}")
    reporter = Reporter(reporter_type="postgres", config=config)
    # Another machine has no such file: there the reporter is only made.
    assert reporter.secrets == ()
    secret.write_text("geheim\n")
    assert resolved(config).password == "geheim"
    assert reporter.secrets == ("geheim",)
    monkeypatch.setenv("PGPASSWORD", "other-geheim")
    assert secrets_in(resolved(PostgresConfig(host="db"))) == ("other-geheim",)


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.name)
def test_a_secret_is_no_part_of_how_a_configuration_looks(kind: Any) -> None:
    """A traceback or a log line may show one."""
    wanted = wanted_config(kind.factory_function)
    if not dataclasses.is_dataclass(wanted):
        return
    fields: dict[str, Any] = {
        each.name: "geheim"
        for each in dataclasses.fields(wanted)
        if "password" in each.name or "key" in each.name or each.default is dataclasses.MISSING
    }
    shown = repr(wanted(**fields))
    hidden = [name for name in fields if "password" in name or name in ("key", "secret_key")]
    assert not any(f"{name}=" in shown for name in hidden), shown


def test_a_reporter_of_a_file_needs_its_library_before_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    manifest = FileManifest(
        path="shop.py", workflows=[WorkflowManifest(name="Shop", outputs=["postgres"])]
    )
    check_reporters(manifest)
    monkeypatch.setattr("squall.reporting.outputs.registry.find_spec", lambda _: None)
    with pytest.raises(
        UsageError,
        match=r"^reporting of Shop: needs asyncpg, which is not installed: "
        r"pip install 'squall\[postgres\]'$",
    ):
        check_reporters(manifest)


def test_a_subclass_has_a_submit_of_its_own() -> None:
    class Own(squall.Reporter[None]):
        async def submit(self, document: dict[str, Any]) -> None:
            self.run = document["run"]["id"]

    class Empty(squall.Reporter[None]):
        pass

    own = Own()
    deliver(own, report_document())
    assert own.run == "01J9Z4"
    assert not is_live_reporter(own)
    with pytest.raises(NotImplementedError, match="Empty has no submit"):
        deliver(Empty(), report_document())


def test_importing_reporters_loads_no_library_of_a_backend() -> None:
    code = (
        "import sys, squall.reporters as r; r.PostgresConfig; r.KafkaConfig; r.S3Config; "
        "print([m for m in ('asyncpg', 'aiokafka', 'aiobotocore', 'grpc', 'pymongo', 'redis') "
        "if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
