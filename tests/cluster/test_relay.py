"""A client and a worker that can reach one manager only, and it does not lead: it relays."""

from __future__ import annotations

from pathlib import Path

from squall.cluster.protocol.job_keys import JobId
from squall.cluster.protocol.messages import AdjustJob, CancelJob, GetJob, ListNodes, WhyJob
from tests.cluster.lab.group import asked, leader, states, until
from tests.cluster.lab.nodes import Cluster
from tests.lab.exit_codes import check_code
from tests.lab.target import TargetHandle

RATE_PER_S = 20
SECONDS = 8
LOAD = """
class Load(Workflow):
    rate = {rate}
    max_vus = 20
    duration = "{seconds}s"

    @step()
    async def get(self, url: URL = "/?delay=20ms") -> HTTPResponse:
        return await self.client.http.get(url, headers=SENDER)
"""


def test_any_manager_relays_for_a_client_and_a_worker_that_reach_no_other(
    tmp_path: Path, cluster_target: TargetHandle
) -> None:
    cluster_target.reset()
    # No lease may end, however long the machine keeps one of the processes waiting.
    made = Cluster(tmp_path, cluster_target, managers=3, workers=1, meshed=True, least_factor=2.0)
    worker = made.nodes.pop("w1")
    with made:
        until(lambda: set(states(made).values()) == {"leads", "follows"}, "all members answer")
        names = made.managers()
        # The view after the next is its own, so that it rarely leads when the primary is dead.
        near = names[(names.index(leader(made)) + 2) % len(names)]
        address = dict(zip(names, made.addresses.split(","), strict=True))[near]
        managers = [made.main_pid(name) for name in names]
        for name in names:
            if name != near:
                made.mesh[name].only(managers)
        worker.words[worker.words.index("--managers") + 1] = address
        made.nodes["w1"] = worker
        made.start("w1")
        until(lambda: "w1" in nodes(made, near), "the worker registers")

        submitted = made.squall(
            "submit", made.write(LOAD.format(rate=RATE_PER_S, seconds=600), "long.py"),
            "--to", address, "--host", cluster_target.url,
        )  # fmt: skip
        assert submitted.code == 0, submitted.err
        job = JobId(submitted.out.split()[0])
        made.wait_load(RATE_PER_S)
        watch = made.begin("watch", job, "--to", address)
        assert asked(made, GetJob(job), of=[near]).view.state == "running"
        assert asked(made, WhyJob(job), of=[near]).lines
        change = AdjustJob(job=job, rate_per_s=2.0 * RATE_PER_S, request_id="once")
        assert asked(made, change, of=[near]).adjust_seq == 1
        assert asked(made, CancelJob(job), of=[near]).state == "stopping"
        watched = watch.end()
        assert watched.code == 105 and job in watched.out, watched.err

        before = cluster_target.counts()["total"]
        run = made.run(made.write(LOAD.format(rate=RATE_PER_S, seconds=SECONDS)), to=address)
        made.wait_load(before + RATE_PER_S)
        made.kill(leader(made))
        ended = run.end()
        check_code(ended)
        sent = ended.document["workflows"][0]["requests"]["sent"]
        assert sent == cluster_target.counts()["total"] - before
        until(lambda: "w1" in nodes(made, near), "the worker takes part")


def nodes(made: Cluster, near: str) -> list[str]:
    return [node.name for node in asked(made, ListNodes(), of=[near]).nodes]
