"""The only agent dies: its submitter hears so, and later what became of the job."""

from __future__ import annotations

import json
import time
from pathlib import Path

from store_cases import CLOSED
from store_lab import RedisPlace, StoreLab

from target_fixture import TargetHandle

SECONDS = 8
PATIENCE = "5s"


def test_nobody_left_is_exit_3_and_load_that_was_lost_is_98_never_a_mistake_of_the_author(
    tmp_path: Path, counting: TargetHandle
) -> None:
    with StoreLab(tmp_path, counting, RedisPlace(tmp_path), agents=1) as lab:
        file = lab.write(CLOSED.format(users=2, seconds=SECONDS))
        began = time.monotonic()
        command = lab.run(file, "--patience", PATIENCE)
        lab.wait_load(20)
        lab.kill("a1")
        ended = command.end()
        assert ended.code == 3, ended.err
        line = ended.err.strip().splitlines()[-1]
        assert line.startswith(f"{lab.place.url}: no agent coordinates at the moment; job "), line
        job = line.partition("; job ")[2].split()[0]
        assert line.endswith(f"squall watch {job} --store {lab.place.url}"), line

        # Its plan is over when an agent comes again: nobody can make up for the load.
        time.sleep(max(began + SECONDS + 4.0 - time.monotonic(), 0.0))
        lab.start("a1")
        lab.wait_ready()
        watched = lab.squall("watch", job, *lab.reach, "--json", within_s=120.0)
        assert watched.code == 98, watched.err
        document = json.loads(watched.out)
        assert document["status"] == "failed" and document["verdict"]["state"] == "INVALID"
        (loss,) = document["losses"]
        assert (loss["worker"], loss["refilled_by"]) == ("a1", "")
        assert loss["below_target_s"] > 0.0
        counted = document["workflows"][0]["requests"]["sent"]
        total = counting.counts()["total"]
        assert counted <= total <= counted + loss["unknown_requests"]
