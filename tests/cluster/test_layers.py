"""Layers of a job on a datacenter of real processes, and files whose layers cannot be made."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cluster.lab.nodes import Cluster
from tests.lab.exit_codes import check_code

GET = "return await self.client.http.get(url, headers=SENDER)"
LAYERS = f"""
class Setup(Workflow):
    @step()
    async def prepare(self, url: URL = "/setup") -> None:
        # It has no end without the other workflow of its layer.
        while "/load" not in (await self.client.http.get("/counts")).json()["paths"]:
            await asyncio.sleep(0.05)
        await self.client.http.get(url, headers=SENDER)

class LoadTest(Workflow):
    vus = 2
    duration = "1s"

    @step()
    async def load(self, url: URL = "/load?delay=10ms") -> HTTPResponse:
        {GET}

@depends("LoadTest")
class Validate(Workflow):
    vus = 2
    duration = "1s"

    @step()
    async def validate(self, url: URL = "/validate?delay=10ms") -> HTTPResponse:
        {GET}

@depends("Validate", "LoadTest")
class Report(Workflow):
    @step()
    async def report(self, url: URL = "/report") -> None:
        await self.client.http.get(url, headers=SENDER)
"""


def times_of(counts: dict[str, Any], workflow: str) -> tuple[float, float]:
    """When the first and the last request of a workflow arrived."""
    found = [times for name, times in counts["attempt_times"].items() if workflow in name]
    assert found, counts["attempt_times"]
    return min(each["first_s"] for each in found), max(each["last_s"] for each in found)


def test_a_layer_begins_when_the_one_before_is_over(dc: Cluster) -> None:
    ended = dc.run(dc.write(LAYERS), "--key", "layers").end()
    check_code(ended)
    assert {each["status"] for each in ended.document["workflows"]} == {"completed"}
    (job,) = [each["job"] for each in dc.jobs() if each["key"] == "layers"]
    layers = {each["name"]: each["layer"] for each in dc.ask("status", job)["workflows"]}
    assert layers == {"Setup": 0, "LoadTest": 0, "Validate": 1, "Report": 2}
    counts = dc.target.counts()
    assert counts["paths"]["/setup"] == counts["paths"]["/report"] == 1
    setup, load, validate, report = (times_of(counts, name) for name in layers)
    assert load[0] <= setup[0], "the first layer runs at the same time"
    assert load[1] <= validate[0] and setup[1] <= validate[0]
    assert validate[1] <= report[0]


STEP = f"""
    @step()
    async def get(self, url: URL = "/") -> HTTPResponse:
        {GET}
"""
MISTAKES = {
    "cycle": (
        f"@depends('B')\nclass A(Workflow):{STEP}\n@depends('A')\nclass B(Workflow):{STEP}",
        "A -> B -> A",
    ),
    "itself": (f"@depends('A')\nclass A(Workflow):{STEP}", "A: depends on itself"),
    "unknown": (
        f"@depends('Setpu')\nclass A(Workflow):{STEP}\nclass Setup(Workflow):{STEP}",
        'A: no workflow "Setpu"; did you mean "Setup"?',
    ),
    "duplicate": (
        f"class A(Workflow):{STEP}\nclass A(Workflow):{STEP}",
        "flow.py:8  A: a second class of this name replaces the workflow of line 3",
    ),
    "step of another class": (
        "class A(Workflow):"
        + STEP.replace("get(self", "login(self")
        + "\nclass B(Workflow):"
        + STEP.replace("@step()", '@step("login")'),
        'B.get: no step "login"',
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_file_whose_layers_cannot_be_made_is_refused_with_its_culprit(
    dc: Cluster, mistake: str
) -> None:
    text, culprit = MISTAKES[mistake]
    before = len(dc.jobs())
    file = dc.write(text)
    ended = dc.squall("submit", file, "--to", dc.addresses, "--host", dc.target.url)
    assert ended.code == 104, ended.err
    (line,) = ended.err.strip().splitlines()
    assert culprit in line
    assert len(dc.jobs()) == before and dc.target.counts()["total"] == 0
