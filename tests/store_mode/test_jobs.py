"""The commands of a cluster work the same with agents behind a store."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import squall
from squall.reporting.run_result import Result
from tests.cluster.lab.judge import Load, problems
from tests.cluster.lab.nodes import Command
from tests.lab.exit_codes import check_code
from tests.lab.target import TargetHandle
from tests.services.coordination.lab.faulty_s3 import FaultyS3
from tests.store_mode.lab.agents import BUCKET, Moto, RedisPlace, StoreLab, listening_ports

FLOW = """
class Load(Workflow):
    vus = 4
    duration = "{seconds}s"

    @step()
    async def get(self, url: URL = "/?delay=20ms") -> HTTPResponse:
        return await self.client.http.get(url, headers=SENDER)
"""
SHORT = """
class Load(Workflow):
    vus = 1
    iterations = 5

    @step()
    async def get(self, url: URL = "/") -> HTTPResponse:
        return await self.client.http.get(url, headers=SENDER)
"""


class Finished(NamedTuple):
    """A result as `check_code` wants it."""

    code: int
    document: dict[str, Any]
    err: str = ""


@pytest.fixture(scope="module")
def shared_lab(
    tmp_path_factory: pytest.TempPathFactory, store_target: TargetHandle
) -> Iterator[StoreLab]:
    """Two agents with two cores each on a Redis of their own; no job runs between tests. They
    have the timers of real ones, because nobody is hurt here and a machine may be busy."""
    folder = tmp_path_factory.mktemp("store")
    place = RedisPlace(folder)
    with StoreLab(folder, store_target, place, agents=2, cores=2, timers="lan") as made:
        yield made


@pytest.fixture
def lab(shared_lab: StoreLab, counting: TargetHandle) -> StoreLab:
    return shared_lab


def test_agents_and_their_core_processes_listen_nowhere(lab: StoreLab) -> None:
    for node in lab.nodes.values():
        assert listening_ports(node.pid) == []
        for pid in node.children():
            # A spare process may end meanwhile.
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                assert listening_ports(pid) == []


def test_two_jobs_run_at_once_and_each_counts_its_own(lab: StoreLab) -> None:
    file = lab.write(FLOW.format(seconds=4))
    both = [lab.run(file, "-u", "1"), lab.run(file, "-u", "1")]
    ended = [command.end() for command in both]
    for each in ended:
        check_code(each)
    assert [each.document["status"] for each in ended] == ["completed", "completed"]
    counted = [each.document["workflows"][0]["requests"]["sent"] for each in ended]
    assert sum(counted) == lab.target.counts()["total"]
    assert min(counted) > 0.2 * max(counted)


def test_ten_jobs_that_are_queued_all_end_once(
    lab: StoreLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in lab.environment.items():
        monkeypatch.setenv(name, value)
    file = str(lab.folder / lab.write(SHORT, "short.py"))

    async def submitted() -> list[Result]:
        async with squall.Client(store=lab.place.url) as client:
            jobs = [await client.submit(file, host=lab.target.url) for _ in range(10)]
            assert len({job.id for job in jobs}) == 10
            return [await job.result() for job in jobs]

    for result in asyncio.run(submitted()):
        check_code(Finished(result.exit_code, result.document))
    assert lab.target.counts()["total"] == 50


def test_a_key_gives_the_same_job_and_watch_shows_the_same_result(lab: StoreLab) -> None:
    file = lab.write(SHORT, "short.py")
    words = ("submit", file, *lab.reach, "--host", lab.target.url, "--key", "one")
    first, again = lab.squall(*words), lab.squall(*words)
    assert (first.code, again.code) == (0, 0), first.err
    job = first.out.strip()
    assert again.out.strip() == job and "submitted before" in again.err
    shown = [lab.squall("watch", job, *lab.reach, "--json") for _ in range(2)]
    documents = [json.loads(each.out) for each in shown]
    assert documents[0] == documents[1]
    assert documents[0]["workflows"][0]["requests"]["sent"] == 5
    assert lab.target.counts()["total"] == 5


def test_a_job_is_adjusted_explained_and_cancelled_while_it_runs(lab: StoreLab) -> None:
    command = lab.run(lab.write(FLOW.format(seconds=300)))
    lab.wait_load(20)
    job = next(each for each in lab.jobs() if each["state"] == "running")["job"]
    assert lab.squall("adjust", job, *lab.reach, "--pause").code == 0
    lab.wait_quiet()
    paused = lab.target.counts()["total"]
    assert lab.squall("adjust", job, *lab.reach, "--resume").code == 0
    lab.wait_load(paused + 20)
    why = lab.squall("why", job, *lab.reach)
    assert why.code == 0 and "leads the managers" in why.out
    assert lab.squall("cancel", job, *lab.reach).code == 0
    ended = command.end()
    assert ended.code == 105, ended.err
    assert ended.document["status"] == "interrupted"
    found = problems(ended.document, lab.target.counts(), Load(users=4), worker_lost=False)
    assert not found


def _line_with(command: Command, words: str) -> str:
    """The line of its messages that has these words, as soon as it is there."""
    assert command.process.stderr is not None
    for line in command.process.stderr:
        if words in line:
            return line
    raise AssertionError(f"it ended without: {words}")


def test_a_wrong_secret_is_one_line_and_nothing_runs(lab: StoreLab, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("quite another secret than theirs")
    file = lab.write(SHORT, "short.py")
    ended = lab.squall("run", file, *lab.reach, "--secret-file", str(other))
    assert ended.code == 3
    assert ended.err.strip().splitlines()[-1].startswith(f"{lab.place.url}: ")
    assert "wrong secret" in ended.err
    agent = lab.squall("agent", *lab.reach, "--secret-file", str(other), "--cores", "1")
    assert agent.code == 104
    assert "another secret" in agent.err.strip().splitlines()[-1]
    assert lab.target.counts()["total"] == 0


def test_a_run_before_any_agent_waits_and_says_so(tmp_path: Path, counting: TargetHandle) -> None:
    place = RedisPlace(tmp_path)
    lab = StoreLab(tmp_path, counting, place, agents=1, timers="lan")
    try:
        place.start()
        file = lab.write(SHORT)
        asked = lab.squall("jobs", *lab.reach)
        assert asked.code == 3 and "start one with: squall agent" in asked.err
        command = lab.run(file)
        # It says that it waits before it can know that an agent will come.
        waits = _line_with(command, "no agent was ever there; waiting for one")
        assert command.process.poll() is None
        lab.start("a1")
        ended = command.end()
        check_code(ended)
        assert ended.document["status"] == "completed"
        assert waits
        assert lab.stop("a1") == 0, lab.logs()
    finally:
        lab.__exit__()


def test_a_store_without_conditional_writes_is_refused(
    tmp_path: Path, moto: Moto, counting: TargetHandle
) -> None:
    proxy = FaultyS3(moto.endpoint)
    proxy.ignored_header = "if-none-match"
    url = f"s3://{BUCKET}/unsafe?endpoint={proxy.endpoint}&region=us-east-1"
    plain = _Plain(tmp_path, counting)
    try:
        file = plain.write(SHORT)
        for words in (("agent", "--store", url), ("run", file, "--store", url)):
            ended = plain.squall(*words)
            assert ended.code == 104, ended.err
            assert "is not safe for coordination" in ended.err.strip().splitlines()[-1]
    finally:
        proxy.close()
    assert counting.counts()["total"] == 0


class _Plain(StoreLab):
    """Commands alone."""

    def __init__(self, folder: Path, target: TargetHandle) -> None:
        super().__init__(folder, target, RedisPlace(folder), agents=0)
