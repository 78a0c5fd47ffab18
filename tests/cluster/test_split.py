"""One run in two datacenters of real processes, without gates: the client splits and merges."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cluster.lab.nodes import Cluster, Command
from tests.lab.exit_codes import check_code
from tests.lab.target import TargetHandle, running_target

FLOW = """
class Setup(Workflow):
    @step()
    async def prepare(self, url: URL = "/setup") -> None:
        await self.client.http.get(url, headers=SENDER)

@depends("Setup")
class Load(Workflow):
    vus = 5
    iterations = 60
    row = Feed(list(range(60)), take="once")

    @step()
    async def get(self) -> HTTPResponse:
        path = f"/?delay=10ms&row={self.row}&user={self.vu.id}"
        return await self.client.http.get(path, headers=SENDER)
"""
STEADY = """
class Load(Workflow):
    rate = "40/s"
    duration = "60s"

    @step()
    async def get(self, url: URL = "/") -> HTTPResponse:
        return await self.client.http.get(url, headers=SENDER)
"""


@dataclass
class Pair:
    eu: Cluster
    us: Cluster
    target: TargetHandle

    @property
    def to(self) -> str:
        return f"eu={self.eu.addresses},us={self.us.addresses}"

    def run(self, text: str, *words: str, to: str = "") -> Command:
        return self.eu.run(self.eu.write(text), *words, to=to or self.to)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folders: list[Path] = [tmp_path_factory.mktemp(name) for name in ("eu", "us")]
    counted = ["--count-field", "row", "--count-field", "user"]
    with (
        running_target(counted) as target,
        Cluster(folders[0], target, workers=2) as eu,
        Cluster(folders[1], target, workers=1) as us,
    ):
        yield Pair(eu, us, target)


@pytest.fixture
def pair(two: Pair) -> Pair:
    two.target.reset()
    return two


def test_the_parts_are_one_result_with_the_counts_of_the_target(pair: Pair) -> None:
    words = ("--split", "eu=60%,us=40%", "--threshold", "us: get.count == 24")
    ended = pair.run(FLOW, *words).end()
    check_code(ended)
    document, counts = ended.document, pair.target.counts()
    (load,) = [each for each in document["workflows"] if each["name"] == "Load"]
    assert load["iteration"]["count"] == counts["paths"]["/"] == 60
    assert counts["paths"]["/setup"] == 2, "set-up runs in each datacenter"
    fields = counts["fields"]
    assert sorted(map(int, fields["row"])) == list(range(60)), "each row once, over both"
    assert set(fields["row"].values()) == {1}
    assert len(fields["user"]) == 5
    parts = {each["name"]: each for each in document["datacenters"]}
    made = {name: _count(each["steps"], "get") for name, each in parts.items()}
    assert made == {"eu": 36, "us": 24}
    assert [each["passed"] for each in document["thresholds"]] == [True]
    assert "BY DATACENTER" in ended.out
    assert "eu: created by" not in ended.err and "eu  created by" in ended.err


def _count(steps: list[dict[str, object]], name: str) -> object:
    (found,) = [each["count"] for each in steps if each["name"] == name]
    return found


def test_nothing_starts_if_a_datacenter_cannot_be_reached(pair: Pair) -> None:
    ended = pair.run(FLOW, "--patience", "1s", to=f"eu={pair.eu.addresses},us=127.0.0.1:1").end()
    assert ended.code == 3
    (line,) = [text for text in ended.err.splitlines() if text.strip()]
    assert line.startswith("us: ") and line.endswith("nothing was started")
    assert pair.target.counts()["total"] == 0
    twice = pair.run(FLOW, to=f"eu={pair.eu.addresses},us={pair.eu.addresses}").end()
    assert (twice.code, twice.out) == (2, "")
    assert "eu and us are the same datacenter; nothing was started" in twice.err


def test_ctrl_c_ends_the_load_in_both(pair: Pair) -> None:
    command = pair.run(STEADY)
    pair.eu.wait_load(40)
    command.interrupt()
    ended = command.end()
    check_code(ended, 105)
    assert [each["state"] for each in ended.document["datacenters"]] == ["cancelled"] * 2
    sent = sum(each["requests"]["sent"] for each in ended.document["workflows"])
    assert sent == pair.target.counts()["total"]
    pair.eu.wait_quiet()


def test_a_datacenter_that_is_lost_is_a_loss_of_the_result(pair: Pair) -> None:
    text = STEADY.replace("60s", "6s")
    command = pair.run(text, "--patience", "2s")
    pair.eu.wait_load(40)
    pair.us.pause("m1")
    try:
        ended = command.end()
    finally:
        pair.us.resume("m1")
    assert ended.code == 98, ended.err
    document = ended.document
    assert (document["verdict"]["state"], document["status"]) == ("INVALID", "partial")
    (loss,) = document["losses"]
    assert (loss["datacenter"], loss["worker"]) == ("us", "")
    eu, us = document["datacenters"]
    assert (eu["state"], us["state"]) == ("completed", "lost")
    assert eu["requests"]["sent"] == 120
    counted = sum(each["requests"]["sent"] for each in document["workflows"])
    pair.eu.wait_quiet()
    assert counted <= pair.target.counts()["total"] <= counted + loss["unknown_requests"]


def test_a_manager_takes_no_job_for_several_datacenters(pair: Pair) -> None:
    ended = pair.run(FLOW, "--dc", "eu,us", to=pair.eu.addresses).end()
    assert ended.code != 0
    assert "not a gate, and chooses no datacenters: leave out --dc" in ended.err
    assert len(ended.err.strip().splitlines()) == 1
