"""More workflows in a layer than there are cores: those of one core run in one process."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.lab.nodes import Cluster, children_of
from tests.lab.exit_codes import check_code, losses
from tests.lab.target import TargetHandle

PER_S = 2
SECONDS = 5
WORKFLOW = """
class W{number}(Workflow):
    rate = "{rate}/s"
    duration = "{seconds}s"

    @step()
    async def get(self, url: URL = "/w{number}") -> HTTPResponse:
        return await self.client.http.get(url)
"""


def text_of(workflows: int, seconds: int) -> str:
    return "".join(
        WORKFLOW.format(number=number, rate=PER_S, seconds=seconds) for number in range(workflows)
    )


def core_processes(cluster: Cluster, name: str) -> list[int]:
    return [
        pid
        for pid in children_of(cluster.main_pid(name))
        if b"squall.engine.process.core" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]


def memory_mb(pid: int) -> float:
    """Proportional: pages that processes have in common count in parts."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    raise AssertionError("the kernel does not say")


def check_all_ran(document: dict[str, Any], counts: dict[str, Any], seconds: int) -> None:
    """Every workflow ran to its end and made its plan, less what a busy machine dropped."""
    for number, workflow in enumerate(document["workflows"]):
        starts, requests = workflow["starts"], workflow["requests"]
        assert workflow["status"] == "completed"
        assert starts["planned"] == PER_S * seconds
        assert starts["made"] + starts["dropped"] == starts["planned"]
        assert requests["sent"] == starts["made"] == counts["paths"][f"/w{number}"]
    assert document["losses"] == []


def test_forty_workflows_run_on_four_cores(dc: Cluster) -> None:
    run = dc.run(dc.write(text_of(40, SECONDS)))
    dc.wait_load(40)
    for name in ("w1", "w2"):
        assert len(core_processes(dc, name)) == dc.cores
    ended = run.end()
    check_code(ended)
    check_all_ran(ended.document, dc.target.counts(), SECONDS)


@pytest.mark.nightly
def test_two_hundred_workflows_run_on_two_cores(
    tmp_path: Path, cluster_target: TargetHandle
) -> None:
    cluster_target.reset()
    seconds = 20
    with Cluster(tmp_path, cluster_target, workers=2, cores=1, timers="lan") as made:
        cores = [pid for name in ("w1", "w2") for pid in core_processes(made, name)]
        idle_mb = sum(map(memory_mb, cores))
        run = made.run(made.write(text_of(200, seconds)))
        made.wait_load(200)
        time.sleep(2.0)
        busy = [pid for name in ("w1", "w2") for pid in core_processes(made, name)]
        assert sorted(busy) == sorted(cores), "no process was added"
        assert sum(map(memory_mb, busy)) < 4 * idle_mb
        ended = run.end(within_s=300.0)
        check_code(ended)
        check_all_ran(ended.document, cluster_target.counts(), seconds)


def test_the_death_of_a_process_loses_each_of_its_shares_once(dc: Cluster) -> None:
    workflows, seconds = 12, 15
    run = dc.run(dc.write(text_of(workflows, seconds)))
    dc.wait_load(3 * workflows)
    victim = dc.busy_cores("w1")[0]
    os.kill(victim, signal.SIGKILL)
    ended = run.end()
    document, counts = ended.document, dc.target.counts()
    lost = losses(document)
    names = [(loss["workflow"], loss["share"]) for loss in lost]
    assert len(lost) > 1 and len(names) == len(set(names))
    assert {loss["attempt"] for loss in lost} == {1}
    assert all(loss["worker"] == "w1" and loss["refilled_by"] for loss in lost)
    for number, workflow in enumerate(document["workflows"]):
        mine = [loss for loss in lost if loss["workflow"] == workflow["name"]]
        starts, sent = workflow["starts"], workflow["requests"]["sent"]
        unknown = sum(loss["unknown_requests"] for loss in mine)
        assert workflow["status"] == "completed"
        assert starts["planned"] == PER_S * seconds
        assert sent <= counts["paths"][f"/w{number}"] <= sent + unknown
