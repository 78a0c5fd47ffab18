"""A share that continues on another worker: its rows, the users that start again, the report of the
loss."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.cluster.lab.group import until
from tests.cluster.lab.nodes import Cluster
from tests.lab.exit_codes import losses
from tests.lab.target import TargetHandle

ROWS = 500
TEXT = f"""
class Load(Workflow):
    vus = 4
    iterations = {ROWS}
    rows = Feed("rows.csv", take="once")

    @action(at="start")
    async def begin(self) -> None:
        await self.client.http.get("/begin", headers=SENDER)

    @step()
    async def get(self, url: URL = "/row") -> HTTPResponse:
        row = self.rows["row"]
        where = f"/row?delay=50ms&row={{row}}&count_field=row"
        return await self.client.http.get(where, headers=SENDER)
"""


def test_rows_go_on_in_their_stripe_and_users_begin_anew(dc: Cluster) -> None:
    """A killed core repeats no row except those that it had not reported."""
    rows = [f"r{n}" for n in range(ROWS)]
    (dc.folder / "rows.csv").write_text("\n".join(["row", *rows]) + "\n")
    command = dc.run(dc.write(TEXT))
    dc.wait_load(100)
    (victim, *_) = dc.busy_cores("w1")
    os.kill(victim, signal.SIGKILL)
    ended = command.end()
    # The killed core may make the run INVALID, as may a busy machine; nothing else may be wrong.
    is_invalid = ended.document["verdict"]["state"] == "INVALID"
    assert ended.code == (98 if is_invalid else 0), ended.err
    document, counts = ended.document, dc.target.counts()
    assert document["status"] == "completed", ended.err
    (loss,) = losses(document)
    given: dict[str, int] = counts["fields"]["row"]
    again = [row for row, count in given.items() if count > 1]
    assert set(given) == set(rows) and max(given.values()) <= 2
    assert all(int(row[1:]) % 4 == loss["share"] for row in again), "it went on in its stripe"
    assert len(again) <= loss["unknown_iterations"]
    # The iterations that had begun and not ended at its last report.
    (workflow,) = document["workflows"]
    iteration = workflow["iteration"]
    assert loss["rows"] == iteration["started"] - iteration["count"] - iteration["interrupted"]
    # Four users, and the one of the share that went on.
    assert counts["paths"]["/begin"] == 5
    requests = workflow["requests"]
    # All were heard of, but perhaps one whose iteration had only just begun. Requests that only
    # the surviving counters of the killed core know belong to no iteration.
    assert iteration["started"] + counts["paths"]["/begin"] - requests["sent"] <= 1
    assert requests["sent"] <= counts["total"] <= requests["sent"] + loss["unknown_requests"]


RATE_PER_S = 40
OPEN = """
class Load(Workflow):
    rate = "{rate}/s"
    duration = "{seconds}s"

    @step()
    async def get(self, url: URL = "/") -> HTTPResponse:
        return await self.client.http.get(url, headers=SENDER)
"""


def test_a_worker_that_stood_still_beyond_its_lease_planned_no_more_than_its_time(
    tmp_path: Path, cluster_target: TargetHandle
) -> None:
    """The attempts at its share are disjoint: what one planned, no other planned too (R8)."""
    cluster_target.reset()
    with Cluster(tmp_path, cluster_target, workers=2) as made:
        seconds = int(18 * made.factor)
        run = made.run(made.write(OPEN.format(rate=RATE_PER_S, seconds=seconds)))
        made.wait_load(2 * RATE_PER_S)
        stopped = time.monotonic()
        made.freeze("w1")
        until(lambda: any("#2" in name for name in cluster_target.counts()["attempts"]), "a refill")
        refilled = time.monotonic()
        made.thaw("w1")
        ended = run.end(within_s=seconds + 120.0)
        document, counts = ended.document, cluster_target.counts()
    (loss,) = losses(document)
    assert (loss["worker"], loss["refilled_by"]) == ("w1", "w2")
    (workflow,) = document["workflows"]
    starts = workflow["starts"]
    assert starts["planned"] == RATE_PER_S * seconds
    # The plan of the gap, and of nothing else: from the end of the lease to the refill.
    share_per_s = RATE_PER_S / 2
    assert loss["starts"] == pytest.approx(loss["below_target_s"] * share_per_s, abs=2)
    assert loss["below_target_s"] < refilled - stopped
    assert starts["made"] + starts["dropped"] + loss["starts"] == starts["planned"]
    # It sent its last record when it went on, so nothing is unknown.
    assert loss["unknown_requests"] == 0
    assert workflow["requests"]["sent"] == counts["total"]
    assert workflow["elapsed_s"] == pytest.approx(seconds, abs=2.0)
