"""The only agent dies: the submitter learns that load was lost."""

from __future__ import annotations

import time
from pathlib import Path

from tests.cluster.lab.chaos_rows import CLOSED
from tests.lab.exit_codes import losses
from tests.lab.target import TargetHandle
from tests.store_mode.lab.agents import RedisPlace, StoreLab

SECONDS = 4


def test_load_that_no_agent_could_take_over_is_98_and_no_mistake_of_the_author(
    tmp_path: Path, counting: TargetHandle
) -> None:
    with StoreLab(tmp_path, counting, RedisPlace(tmp_path), agents=1) as lab:
        command = lab.run(lab.write(CLOSED.format(users=2, seconds=SECONDS)))
        lab.wait_load(20)
        lab.kill("a1")
        # Its plan is over when an agent is back: no agent can make up for the load.
        time.sleep(SECONDS + 1.0)
        lab.start("a1")
        ended = command.end()
        assert ended.code == 98, ended.err
        document = ended.document
        assert document["status"] == "failed" and document["verdict"]["state"] == "INVALID"
        (loss,) = losses(document)
        assert (loss["worker"], loss["refilled_by"]) == ("a1", "")
        assert loss["below_target_s"] > 0.0
        assert any("worker a1 " in reason for reason in document["verdict"]["reasons"])
        counted = document["workflows"][0]["requests"]["sent"]
        total = counting.counts()["total"]
        assert counted <= total <= counted + loss["unknown_requests"]
