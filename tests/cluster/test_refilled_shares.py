"""A share that goes on elsewhere: where its rows go on, who begins anew, what is told."""

from __future__ import annotations

import os
import signal

from cluster_lab import Cluster

ROWS = 500
DONE = (0, 98)
"""Done, on a machine that was perhaps too busy for its measurements to be valid."""
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
    """Of a core that is killed no row is given again but those that it had not told of."""
    rows = [f"r{n}" for n in range(ROWS)]
    (dc.folder / "rows.csv").write_text("\n".join(["row", *rows]) + "\n")
    command = dc.run(dc.write(TEXT))
    dc.wait_load(100)
    (victim, *_) = dc.busy_cores("w1")
    os.kill(victim, signal.SIGKILL)
    ended = command.end()
    assert ended.code in DONE, ended.err
    document, counts = ended.document, dc.target.counts()
    (loss,) = document["losses"]
    given: dict[str, int] = counts["fields"]["row"]
    again = [row for row, count in given.items() if count > 1]
    assert set(given) == set(rows) and max(given.values()) <= 2
    assert all(int(row[1:]) % 4 == loss["share"] for row in again), "it went on in its stripe"
    assert len(again) <= loss["unknown_iterations"]
    # What had begun and was not over when it told of itself for the last time.
    (workflow,) = document["workflows"]
    iteration = workflow["iteration"]
    assert loss["rows"] == iteration["started"] - iteration["count"] - iteration["interrupted"]
    # Four users, and the one of the share that went on.
    assert counts["paths"]["/begin"] == 5
    requests = workflow["requests"]
    # All were heard of, but perhaps one whose iteration had only just begun.
    assert 0 <= iteration["started"] + counts["paths"]["/begin"] - requests["sent"] <= 1
    assert requests["sent"] <= counts["total"] <= requests["sent"] + loss["unknown_requests"]
