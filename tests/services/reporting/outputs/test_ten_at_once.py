"""One run with ten outputs at once, and three that cannot work: all hold the same totals."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from squall.engine.load import drivers
from squall.reporting.outputs.live import delivery
from tests.cluster.lab.nodes import cluster
from tests.lab.databases import DatabaseServer
from tests.lab.ports import free_ports
from tests.lab.target import TargetHandle
from tests.runs.lab.command import CommandLab
from tests.services.reporting.lab.all_outputs import (
    SECRETS,
    Servers,
    TenOutputs,
    check_secrets,
    servers,
)
from tests.services.reporting.lab.command_lines import ProcessList
from tests.services.reporting.lab.kafka_server import kafka_server

SHOP = """
    class Shop(Workflow):
        @step()
        async def home(self, url: URL = "/?delay=1ms") -> HTTPResponse:
            return await self.client.http.get(url)

        @then()
        async def pay(self, url: URL = "/?status=200:1,503:1&delay=3ms") -> HTTPResponse:
            return await self.client.http.get(url)
"""
LOAD = """
class Load(Workflow):
    rate = "60/s"
    duration = "12s"
    grace = "20ms"

    @step()
    async def get(self, url: URL = "/?status=200:3,503:1") -> HTTPResponse:
        return await self.client.http.get(url, headers=SENDER)
"""


@pytest.fixture
def places(
    tmp_path: Path, postgres: DatabaseServer, mariadb: DatabaseServer, redis_url: str
) -> Iterator[Servers]:
    with servers(tmp_path, postgres, mariadb, redis_url) as found:
        yield found


def test_ten_outputs_hold_the_totals_of_the_document(
    places: Servers, target: TargetHandle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drivers, "DROP_AFTER_S", 60.0)
    # The others may come later; only the one that hangs takes all of it.
    monkeypatch.setattr(delivery, "FINISH_S", 1.0)
    folder = tmp_path / "run"
    folder.mkdir()
    command, ten = CommandLab(folder, target), TenOutputs(folder, places)
    words = ("--host", target.url, "-r", "40/s", "-d", "1s")
    ended = command.load(command.write(SHOP), *words, *ten.words, **ten.environment)
    assert ended.code == 0, ended.err
    assert ended.document["passed"] and ended.document["exit_code"] == 0
    ten.check(ended.document, ended.err + ended.out)
    assert target.counts()["total"] == sum(
        step["count"] for step in ended.document["workflows"][0]["steps"]
    )


def test_a_password_is_in_no_file_and_no_process_but_the_one_that_was_typed(
    target: TargetHandle, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    command = CommandLab(folder, target)
    (dead,) = free_ports(1)
    files = ("json=results.json", "html=report.html", "jsonl=lines.jsonl", "xml=results.xml")
    outputs = (*files, f"postgres=postgresql://me:{SECRETS[2]}@127.0.0.1:{dead}/x")
    words = ("run", command.write(SHOP), "--host", target.url, "-r", "40/s", "-d", "1s")
    with ProcessList() as processes:
        running = command.start(*words, *(w for each in outputs for w in ("-o", each)))
        ended = running.end()
    assert ended.code == ended.document["exit_code"], ended.err
    [line] = [each for each in ended.lines if ": -o " in each]
    assert line.endswith("; to write it again: squall report results.json -o postgres=...")
    own = processes.others(running.process.pid)
    assert any("squall" in each for each in own), "its core processes are in the list"
    check_secrets(ended.err + ended.out, folder, own)


@pytest.fixture
def all_places(
    tmp_path: Path, postgres: DatabaseServer, mariadb: DatabaseServer, redis_url: str
) -> Iterator[Servers]:
    with kafka_server() as broker, servers(tmp_path, postgres, mariadb, redis_url, broker) as found:
        yield found


@pytest.mark.nightly
def test_ten_outputs_of_the_command_with_kafka(
    all_places: Servers, target: TargetHandle, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    command, ten = CommandLab(folder, target), TenOutputs(folder, all_places)
    words = ("run", command.write(SHOP), "--host", target.url, "--vus", "4", "-i", "800")
    with ProcessList() as processes:
        running = command.start(*words, "--json", "results.json", *ten.words, **ten.environment)
        ended = running.end()
    assert ended.code == 0, ended.err
    ten.check(ended.document, ended.err + ended.out)
    check_secrets(ended.err, folder, processes.others(running.process.pid))


@pytest.mark.nightly
def test_ten_outputs_of_a_cluster_that_loses_a_worker(
    all_places: Servers, target: TargetHandle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    ten = TenOutputs(folder, all_places)
    for name, value in ten.environment.items():
        monkeypatch.setenv(name, value)
    with cluster(folder, target, workers=2, cores=1) as made:
        with ProcessList() as processes:
            running = made.run(made.write(LOAD), *ten.words)
            made.wait_load(100)
            made.kill("w2")
            ended = running.end()
    assert ended.document["losses"], ended.err
    ten.check(ended.document, ended.err + ended.out)
    check_secrets(ended.err, folder, processes.others(running.process.pid))
