"""What happens to a job when its surroundings change at an awkward moment: a result that
cannot be delivered, a worker that dies while others queue, a job that needs more time.
"""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from tests.cluster.lab.nodes import SQUALL, Cluster, cluster
from tests.lab.exit_codes import check_code, losses
from tests.lab.target import TargetHandle

LOAD = """
class Load(Workflow):
    vus = 2
    duration = "{seconds}s"
    {more}

    @step()
    async def get(self, url: URL = "/?delay=10ms") -> HTTPResponse:
        return await self.client.http.get(url, headers=SENDER)
"""


def load(seconds: float, more: str = "") -> str:
    return LOAD.format(seconds=seconds, more=more)


def sent(document: dict[str, Any]) -> int:
    return sum(each["requests"]["sent"] for each in document["workflows"] if each["requests"])


def submitted(dc: Cluster, text: str, *words: str) -> str:
    file = dc.write(text)
    ended = dc.squall("submit", file, "--to", dc.addresses, "--host", dc.target.url, *words)
    assert ended.code == 0, ended.err
    return ended.out.split()[-1]


def waited(dc: Cluster, job: str, *states: str, within_s: float = 60.0) -> dict[str, Any]:
    until = time.monotonic() + within_s
    while (view := dc.ask("status", job))["state"] not in states:
        assert time.monotonic() < until, view
        time.sleep(0.1)
    return view


def test_a_result_that_cannot_be_delivered_waits_and_the_cores_are_free_meanwhile(
    tmp_path: Path, cluster_target: TargetHandle
) -> None:
    cluster_target.reset()
    # The lease outlasts the load by far: a worker that is given up has two seconds to come back.
    options = {"workers": 1, "proxied": True, "least_factor": 4.0}
    with cluster(tmp_path, cluster_target, **options) as dc:
        assert dc.proxy is not None
        running = dc.run(dc.write(load(6.0)))
        dc.wait_load(1)
        dc.proxy.hold()
        until = time.monotonic() + 60.0
        while dc.busy_cores("w1"):
            assert time.monotonic() < until, "its cores are still busy"
            time.sleep(0.05)
        (job,) = dc.jobs()
        assert job["state"] == "running"
        dc.proxy.heal()
        ended = running.end()
        assert ended.document["status"] == "completed", ended.err
        assert sent(ended.document) == cluster_target.counts()["total"]
        assert losses(ended.document) == []
        dc.wait_free()


def test_a_queued_exclusive_job_runs_on_the_workers_that_are_left(
    tmp_path: Path, cluster_target: TargetHandle
) -> None:
    cluster_target.reset()
    with cluster(tmp_path, cluster_target, workers=2) as dc:
        first = submitted(dc, load(120))
        waited(dc, first, "running")
        exclusive = submitted(dc, load(1, 'priority = "exclusive"'))
        view = dc.ask("status", exclusive)
        assert (view["state"], view["position"]) == ("queued", 1)
        dc.kill("w2")
        dc.ask("cancel", first, "--now")
        assert waited(dc, exclusive, "completed")["workflows"][0]["cores"] == 1
        waited(dc, first, "cancelled")
        assert dc.leftovers() == []


def test_a_job_gets_more_time_within_its_cap_and_a_repeat_adds_nothing(dc: Cluster) -> None:
    job = submitted(dc, load(300))
    waited(dc, job, "running")
    for wanted, has in (("20s", 20.0), ("20s", 20.0), ("10s", 20.0), ("2h", 60.0)):
        assert dc.ask("adjust", job, "--extend", wanted)["extended_s"] == has
    said = dc.squall("adjust", job, "--extend", "30s", "--to", dc.addresses)
    assert said.code == 0 and "1m00s past its timeout" in said.out, said.out
    dc.ask("cancel", job, "--now")
    waited(dc, job, "cancelled")
    late = dc.squall("adjust", job, "--extend", "30s", "--to", dc.addresses)
    assert late.code == 2 and "is over" in late.err, late.err


def test_why_tells_the_whole_story_of_a_job_that_is_over(dc: Cluster) -> None:
    job = submitted(dc, load(1))
    waited(dc, job, "completed")
    answer = dc.ask("why", job)
    told = "\n".join(answer["events"])
    assert "Load placed: 2 shares on 2 workers" in told and "completed" in told, answer
    assert any("completed" in line for line in answer["lines"]), answer


def test_one_share_is_told_in_the_singular(dc: Cluster) -> None:
    job = submitted(dc, load(1).replace("vus = 2", "vus = 1"))
    waited(dc, job, "completed")
    assert any("1 share on 1 worker" in line for line in dc.ask("why", job)["events"])


def test_names_that_nobody_could_write_are_refused(dc: Cluster) -> None:
    words = ("--managers", dc.addresses, "--timers", "fast")
    for flags in (("--dc", "a b/.."), ("--dc", "lab", "--name", "../w")):
        ended = dc.squall("worker", *flags, *words)
        assert ended.code == 2, ended.err
        assert len(ended.err.strip().splitlines()) == 1 and "a name has" in ended.err, ended.err
    wrong = dc.squall("worker", "--dc", "elsewhere", *words)
    last = wrong.err.strip().splitlines()[-1]
    assert wrong.code == 1 and "this is datacenter lab, not elsewhere" in last, wrong.err


def test_a_dev_datacenter_with_a_folder_keeps_its_secret_and_its_jobs(
    tmp_path: Path, cluster_target: TargetHandle
) -> None:
    cluster_target.reset()
    flow = tmp_path / "flow.py"
    flow.write_text("from squall import URL, HTTPResponse, Workflow, step\nSENDER = {}\n" + load(1))
    secret = tmp_path / "data" / "secret"
    secrets: list[str] = []
    jobs: list[list[str]] = []
    for _ in range(2):
        words = [str(SQUALL), "dev", "--data", str(tmp_path / "data"), "--workers", "1", "--json"]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            to = ["--to", json.loads(process.stdout.readline())["to"], "--secret-file", str(secret)]
            if not jobs:
                run = [str(SQUALL), "submit", str(flow), "--host", cluster_target.url, *to]
                subprocess.run(run, check=True, capture_output=True, cwd=tmp_path)
            listed = subprocess.run(
                [str(SQUALL), "jobs", "--json", *to], check=True, capture_output=True, text=True
            )
            jobs.append([each["job"] for each in json.loads(listed.stdout)["jobs"]])
            secrets.append(secret.read_text())
            process.send_signal(signal.SIGINT)
            assert process.wait(90) == 0
    assert secrets[0] == secrets[1] and jobs[0] == jobs[1] != []
    assert secret.stat().st_mode & 0o077 == 0


def test_the_sums_of_three_workers_are_those_of_the_target(
    tmp_path: Path, cluster_target: TargetHandle
) -> None:
    """Every share has its own users, every request counts once, and merged percentiles are
    those of the delays that the target gave, apart from the width of a bucket and the way."""
    text = LOAD.replace('"/?delay=10ms"', '"/slow?delay=lognormal:200ms,0.3"')
    text = text.replace("vus = 2", "vus = 31").format(seconds=6, more='priority = "high"')
    cluster_target.reset()
    with cluster(tmp_path, cluster_target, workers=3, cores=2) as dc:
        ended = dc.run(dc.write(text)).end()
    check_code(ended)
    (workflow,) = ended.document["workflows"]
    counts = cluster_target.counts()
    assert workflow["requests"]["sent"] == counts["total"] > 300
    shares = counts["attempts"]
    assert len(shares) == 6
    assert 15 < counts["max_concurrent_requests"] <= 31
    assert workflow["vus"] == 31
    own, ours = counts["delays"]["/slow"], workflow["steps"][0]["service_ms"]
    for name in ("p50", "p95", "p99"):
        told_ms, given_ms = ours[name], own[f"{name}_ms"]
        assert 0.98 * given_ms <= told_ms <= 1.15 * given_ms + 20.0, (name, ours, own)
