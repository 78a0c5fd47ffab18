"""Live outputs of runs on a cluster hold the totals of the document: through a manager, after the
loss of a worker, through gates, and where the client itself splits the run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from squall.api.errors import ExitCode
from tests.cluster.lab.gates import GatedDatacenters
from tests.cluster.lab.nodes import Cluster, cluster
from tests.lab.exit_codes import check_code
from tests.lab.outputs import LiveFiles, RecordingServer, recording_server, wait_for
from tests.lab.target import running_target

STEADY = """
class Load(Workflow):
    vus = 4
    duration = "5s"
    think = "20ms"

    @step()
    async def get(self, url: URL = "/?status=200:3,503:1") -> HTTPResponse:
        return await self.client.http.get(url, headers=SENDER)
"""
OPEN = STEADY.replace("vus = 4", 'rate = "60/s"').replace("5s", "12s").replace("think", "grace")


@pytest.fixture
def server() -> Iterator[RecordingServer]:
    with recording_server() as found:
        yield found


def test_a_run_and_its_watcher(dc: Cluster, server: RecordingServer) -> None:
    files = LiveFiles(dc.folder, server)
    running = dc.run(dc.write(STEADY.replace("5s", "90s")), "--workers", "2", *files.words)
    dc.wait_load(20)
    [job] = [each["job"] for each in dc.jobs() if each["state"] == "running"]
    watching = dc.begin("watch", job, "--to", dc.addresses, "-q", "-o", "jsonl=watched.jsonl")
    watched = dc.folder / "watched.jsonl"
    wait_for(lambda: files.seconds > 1, "live seconds of the run")
    wait_for(lambda: watched.exists() and b'"type":"second"' in watched.read_bytes(), "a second")
    running.interrupt()
    ended = running.end()
    assert ended.code == watching.end().code == ExitCode.INTERRUPTED
    files.check(ended.document)
    lines = watched.read_bytes().splitlines()
    assert lines[0].startswith(b'{"type":"start"') and b'"status":"interrupted"' in lines[-1]


@pytest.mark.nightly
def test_a_run_that_loses_a_worker(tmp_path: Path, server: RecordingServer) -> None:
    with running_target() as target, cluster(tmp_path, target, workers=2, cores=1) as made:
        files = LiveFiles(made.folder, server)
        running = made.run(made.write(OPEN), *files.words)
        made.wait_load(100)
        made.kill("w2")
        ended = running.end()
        assert ended.document["losses"], ended.err
        files.check(ended.document)


@pytest.mark.nightly
def test_a_run_whose_managers_change(tmp_path: Path, server: RecordingServer) -> None:
    with running_target() as target, cluster(tmp_path, target, managers=3, workers=2) as made:
        files = LiveFiles(made.folder, server)
        running = made.run(made.write(OPEN), *files.words)
        made.wait_load(100)
        made.kill(made.leader())
        ended = running.end()
        check_code(ended)
        files.check(ended.document)


@pytest.mark.nightly
def test_a_run_through_a_gate(tmp_path: Path, server: RecordingServer) -> None:
    with running_target() as target, GatedDatacenters(tmp_path, target, gates=1) as made:
        files = LiveFiles(made.folder, server)
        ended = made.run(made.write(STEADY), *files.words, "--dc", "eu=50%,us=50%").end()
        check_code(ended)
        files.check(ended.document)
        assert {each["name"] for each in ended.document["datacenters"]} == {"eu", "us"}


@pytest.mark.nightly
def test_a_run_that_the_client_splits(tmp_path: Path, server: RecordingServer) -> None:
    folders = [tmp_path / name for name in ("eu", "us")]
    for folder in folders:
        folder.mkdir()
    with (
        running_target() as target,
        cluster(folders[0], target, workers=1) as eu,
        cluster(folders[1], target, workers=1) as us,
    ):
        files = LiveFiles(eu.folder, server)
        where = f"eu={eu.addresses},us={us.addresses}"
        ended = eu.run(eu.write(STEADY), *files.words, to=where).end()
        check_code(ended)
        files.check(ended.document)
        assert {each["name"] for each in ended.document["datacenters"]} == {"eu", "us"}
