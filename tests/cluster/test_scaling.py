"""What operators do to all of a datacenter while it runs a job: workers come and go, managers
leave, the secret changes. The load must not notice."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.lab.chaos_cases import RATE_PER_S
from tests.cluster.lab.chaos_rows import OPEN
from tests.cluster.lab.group import leader, pauses, states, status, until
from tests.cluster.lab.judge import Load, problems
from tests.cluster.lab.nodes import Cluster
from tests.lab.exit_codes import check_code, losses
from tests.lab.target import TargetHandle, running_target

LONGER_THAN_ALL_OF_IT_S = 900


class Scaled(Cluster):
    """Three managers and two workers; a third worker joins later."""

    def __init__(self, folder: Path, target: TargetHandle) -> None:
        super().__init__(folder, target, managers=3, workers=3, least_factor=2.0)
        self.changed: dict[str, dict[str, str]] = {}
        self._third = self.nodes.pop("w3")

    def environment_of(self, name: str) -> dict[str, str]:
        return super().environment_of(name) | self.changed.get(name, {})

    def join(self, secret: Path) -> None:
        self.nodes["w3"] = self._third
        self.changed["w3"] = {"SQUALL_SECRET_FILE": str(secret)}
        self.start("w3")
        until(lambda: self.state("w3") == "idle", "w3 is there")

    def state(self, name: str) -> str:
        return {node["name"]: node["state"] for node in self.ask("nodes")["nodes"]}.get(name, "")

    def restart(self, name: str) -> None:
        assert self.stop(name) == 0
        until(lambda: status(self).leader not in ("", name), "another one leads")
        self.start(name)
        until(lambda: set(states(self).values()) == {"leads", "follows"}, f"{name} is back")


@pytest.mark.nightly
def test_workers_managers_and_the_secret_change_while_a_job_runs(
    tmp_path: Path, cluster_target: TargetHandle
) -> None:
    cluster_target.reset()
    with (
        running_target(["--seed", "8"]) as another,
        Scaled(tmp_path, cluster_target) as made,
    ):
        until(lambda: set(states(made).values()) == {"leads", "follows"}, "all members answer")
        text = OPEN.format(rate=RATE_PER_S, seconds=LONGER_THAN_ALL_OF_IT_S)
        run = made.run(made.write(text))
        made.wait_load()
        (job,) = [each["job"] for each in made.jobs()]

        # A worker joins: it has the only free core, and the next job runs there.
        made.join(made.secret)
        short = ("run", made.write(OPEN.format(rate=20, seconds=1), "short.py"))
        began = made.begin(*short, "--to", made.addresses, "--host", another.url)
        began.end()
        assert 0 < another.counts()["total"] <= 20
        # It is drained, and leaves.
        assert made.squall("drain", "w3", "--to", made.addresses).code == 0
        until(lambda: made.state("w3") == "drained", "w3 has no work")
        assert made.stop("w3") == 0

        # The managers learn another secret, the primary first.
        new = tmp_path / "new-secret"
        new.write_text("the next secret of this laboratory")
        primary = leader(made)
        for name in [primary, *(each for each in made.managers() if each != primary)]:
            made.changed[name] = {"SQUALL_CLUSTER__ACCEPTED_SECRET_FILES": str(new)}
            made.restart(name)
        asked = made.squall("jobs", "--to", made.addresses, "--secret-file", str(new))
        assert asked.code == 0, asked.err
        assert made.squall("drain", "w3", "--resume", "--to", made.addresses).code == 0
        made.join(new)

        made.ask("cancel", job)
        ended = run.end()
        check_code(ended, 105)
        counts = cluster_target.counts()
        load = Load(rate_per_s=RATE_PER_S)
        assert problems(ended.document, counts, load, worker_lost=False) == []
        assert pauses(ended.document, counts) == []
        assert losses(ended.document) == []
        assert {name.rpartition("#")[2] for name in counts["attempts"]} == {"1"}, "no lease ended"
