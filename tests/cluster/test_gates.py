"""One run through a gate and two datacenters of real processes; the commands against a gate."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from squall.cluster.protocol.job_keys import JobId
from squall.cluster.protocol.messages import JobView
from tests.cluster.lab.gates import GatedDatacenters, wait_for
from tests.lab.exit_codes import check_code
from tests.lab.target import running_target

ROWS = """
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


@pytest.fixture(scope="module")
def gated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatedDatacenters]:
    counted = ["--count-field", "row", "--count-field", "user"]
    with (
        running_target(counted) as target,
        GatedDatacenters(tmp_path_factory.mktemp("gated"), target, gates=1) as made,
    ):
        yield made


@pytest.fixture
def gate(gated: GatedDatacenters) -> GatedDatacenters:
    gated.target.reset()
    return gated


def by_datacenter(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in document["datacenters"]}


def until_state(gate: GatedDatacenters, job: str, *states: str, within_s: float = 60.0) -> str:
    end = time.monotonic() + within_s
    while (state := str(gate.ask("status", job)["state"])) not in states:
        assert time.monotonic() < end, f"{job} is {state}"
        time.sleep(0.1)
    return state


def sent_of(gate: GatedDatacenters, job: str) -> int:
    """The requests of the job so far, as its status counts them."""
    view: JobView = gate.asked(lambda client: client.counted_status(JobId(job)))
    return sum(each.counters.sent for each in view.workflows if each.counters is not None)


def test_a_run_over_two_datacenters_has_every_row_and_user_once(gate: GatedDatacenters) -> None:
    ended = gate.run(gate.write(ROWS), "--dc", "eu=60%,us=40%").end()
    check_code(ended)
    counts = gate.target.counts()
    assert counts["total"] == 60
    assert counts["fields"]["row"] == {str(row): 1 for row in range(60)}
    assert len(counts["fields"]["user"]) == 5
    parts = by_datacenter(ended.document)
    assert {name: part["requests"]["sent"] for name, part in parts.items()} == {
        "eu": 36,
        "us": 24,
    }
    assert "BY DATACENTER" in ended.out
    for dc in ("eu", "us"):
        assert all(node.free == node.cores for node in gate.datacenter_nodes(dc) if node.cores)


def test_a_run_that_names_no_datacenter_is_routed_to_one(gate: GatedDatacenters) -> None:
    ended = gate.run(gate.write(ROWS)).end()
    check_code(ended)
    assert gate.target.counts()["total"] == 60
    (part,) = ended.document["datacenters"]
    job = gate.jobs()[0]["job"]
    why = gate.squall("why", job, *gate.reach)
    assert f"{part['name']} " in why.out and "score" in why.out, why.out


def test_a_change_of_the_load_is_apportioned_and_a_cancel_stops_all(gate: GatedDatacenters) -> None:
    running = gate.run(gate.write(STEADY), "--dc", "eu=60%,us=40%")
    gate.wait_load(40)
    job = gate.jobs()[0]["job"]
    adjusted = gate.squall("adjust", job, "--rate", "10/s", *gate.reach)
    assert adjusted.code == 0, adjusted.err
    shown = gate.ask("status", job)
    assert shown["adjustments"], shown
    wait_for(lambda: sent_of(gate, job) >= 40, "the gate shows the counts of both")
    cancelled = gate.squall("cancel", job, *gate.reach)
    assert cancelled.code == 0, cancelled.err
    assert until_state(gate, job, "cancelled") == "cancelled"
    ended = running.end()
    gate.wait_quiet()
    parts = by_datacenter(ended.document)
    assert all(part["requests"]["sent"] for part in parts.values()), "both have run"
    sent = sum(part["requests"]["sent"] for part in parts.values())
    assert sent == gate.target.counts()["total"]


def test_what_a_gate_cannot_do_is_said_in_one_line(gate: GatedDatacenters) -> None:
    for words, text in (
        (("run", gate.write(ROWS), "--dc", "ap"), "no datacenter ap; there are eu, us"),
        (("run", gate.write(ROWS), "--dc", "eu=60%,us=50%"), "add up to 110 %"),
        (("drain", "w1"), "no worker w1: name its datacenter, as in eu/w1"),
    ):
        ended = gate.squall(*words, *gate.reach)
        assert ended.code not in (0, None)
        assert text in ended.err, ended.err
        assert len(ended.err.strip().splitlines()) == 1, ended.err


def test_workers_are_named_with_their_datacenter_and_drained_through_the_gate(
    gate: GatedDatacenters,
) -> None:
    drained = gate.squall("drain", "eu/eu-w1", *gate.reach)
    assert drained.code == 0, drained.err
    (worker,) = [node for node in gate.datacenter_nodes("eu") if node.role == "worker"]
    assert worker.state == "drained"
    resumed = gate.squall("drain", "eu/eu-w1", "--resume", *gate.reach)
    assert resumed.code == 0, resumed.err
    assert [node.state for node in gate.datacenter_nodes("eu") if node.role == "worker"] == ["idle"]


def test_a_manager_sends_new_jobs_to_its_gates_unless_an_operator_insists(
    gate: GatedDatacenters,
) -> None:
    managers = gate.addresses_of("eu")
    ended = gate.run(gate.write(ROWS), to=managers).end()
    check_code(ended)
    assert len(by_datacenter(ended.document)) == 1, "the gates chose a datacenter"
    assert gate.target.counts()["total"] == 60
    direct = gate.run(gate.write(ROWS), "--direct", to=managers).end()
    check_code(direct)
    assert not by_datacenter({"datacenters": [], **direct.document})
    assert gate.target.counts()["total"] == 120
