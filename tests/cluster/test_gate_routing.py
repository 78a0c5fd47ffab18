"""A gate that chooses among real datacenters: what it shows, and what it does without one."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from tests.cluster.lab.gates import GatedDatacenters, wait_for
from tests.lab.target import running_target

FLOW = """
from squall import URL, HTTPResponse, Workflow, step

class Shop(Workflow):
    vus = 2
    iterations = 20

    @step()
    async def home(self, url: URL = "/") -> HTTPResponse:
        return await self.client.http.get(url)
"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Generator[GatedDatacenters]:
    with running_target() as target:
        lab = GatedDatacenters(tmp_path_factory.mktemp("gates"), target, gates=1)
        with lab:
            lab.write(FLOW)
            yield lab


def health_of(lab: GatedDatacenters, datacenter: str) -> str:
    views = lab.ask("nodes")["datacenters"]
    return next(each["health"] for each in views if each["name"] == datacenter)


def submitted(lab: GatedDatacenters, *words: str) -> str:
    done = lab.squall("submit", "flow.py", "--host", lab.target.url, *words, *lab.reach)
    assert done.code == 0, done.err
    return str(lab.jobs()[0]["job"])


def explained(lab: GatedDatacenters, job: str) -> str:
    return lab.squall("why", job, *lab.reach).out


def state_of(lab: GatedDatacenters, job: str) -> str:
    return next(each["state"] for each in lab.jobs() if each["job"] == job)


def test_nodes_shows_datacenters_and_the_nodes_of_one(lab: GatedDatacenters) -> None:
    shown = lab.squall("nodes", *lab.reach).out.splitlines()
    assert [line.split()[:2] for line in shown[1:3]] == [["eu", "healthy"], ["us", "healthy"]]
    assert shown[3] == "gates: g1 leads"
    names = [each["name"] for each in lab.ask("nodes", "--dc", "us")["nodes"]]
    assert names == ["us/us-m1", "us/us-w1"]
    wrong = lab.squall("nodes", "--dc", "mars", *lab.reach)
    assert wrong.code != 0
    assert "no datacenter mars; there are eu, us" in wrong.err


def test_a_job_without_a_datacenter_is_routed_and_why_says_how(lab: GatedDatacenters) -> None:
    job = submitted(lab)
    wait_for(lambda: state_of(lab, job) == "completed", "the job ends")
    text = explained(lab, job)
    assert "part, try 1, completed: chosen of eu, us" in text
    assert text.count(" healthy  score ") == 2
    assert text.count("   chosen") == 1


@pytest.mark.nightly
def test_a_lost_datacenter_gets_no_job_until_it_is_back(lab: GatedDatacenters) -> None:
    for name in lab.nodes_of("us"):
        lab.kill(name)
    wait_for(lambda: health_of(lab, "us") == "unreachable", "us is unreachable")
    named, routed = submitted(lab, "--dc", "us"), submitted(lab)
    wait_for(lambda: state_of(lab, routed) == "completed", "the routed job ends")
    text = explained(lab, routed)
    assert "eu part, try 1, completed: chosen of eu, us" in text
    assert "  us  unreachable  no manager heard for " in text
    # It is not run elsewhere: where load comes from is part of a test.
    wait_for(lambda: state_of(lab, named) == "failed", "the job of us fails")
    assert "us cannot run its part: is unreachable: no manager heard for" in explained(lab, named)
    for name in lab.nodes_of("us"):
        lab.start(name)
    wait_for(lambda: health_of(lab, "us") == "healthy", "us is back")
    again = submitted(lab, "--dc", "us")
    wait_for(lambda: state_of(lab, again) == "completed", "the next job of us ends")
