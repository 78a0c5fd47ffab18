"""A worker that is asked to stop hands its shares over, to the last row, and leaves."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

from tests.cluster.lab.nodes import Cluster
from tests.lab.exit_codes import check_code, losses
from tests.lab.target import TargetHandle

ROWS = 300
LIMIT_S = 60.0
"""For a machine that is several times slower."""
INTERRUPTED = 105
ONCE_EACH = f"""
class Load(Workflow):
    vus = 2
    iterations = {ROWS}
    rows = Feed("rows.csv", take="once")

    @step()
    async def get(self) -> HTTPResponse:
        where = f"/row?delay=20ms&row={{self.rows['row']}}&count_field=row"
        return await self.client.http.get(where, headers=SENDER)
"""
LONG = """
class Load(Workflow):
    vus = 1
    duration = "10m"

    @step()
    async def get(self, url: URL = "/?delay=20ms") -> HTTPResponse:
        return await self.client.http.get(url, headers=SENDER)
"""


def test_a_stopped_worker_loses_nothing_and_a_second_signal_ends_it_at_once(
    tmp_path: Path, cluster_target: TargetHandle
) -> None:
    cluster_target.reset()
    with Cluster(tmp_path, cluster_target, workers=2, launcher=True) as made:
        rows = [f"r{n}" for n in range(ROWS)]
        (made.folder / "rows.csv").write_text("\n".join(["row", *rows]) + "\n")
        command = made.run(made.write(ONCE_EACH))
        made.wait_load(40)
        assert made.stop("w1", LIMIT_S) == 0
        assert "worker_drains" in made.nodes["w1"].said()
        ended = command.end()
        check_code(ended)
        assert ended.document["status"] == "completed" and losses(ended.document) == []
        counts = cluster_target.counts()
        assert counts["fields"]["row"] == dict.fromkeys(rows, 1)
        (workflow,) = ended.document["workflows"]
        assert workflow["requests"]["sent"] == counts["total"] == ROWS
        attempts = sorted(name.rpartition("#")[2] for name in counts["attempts"])
        assert attempts == ["1", "1", "2"], "one share went on elsewhere"

        # Nobody can continue the share of the last worker: it drains for its whole time, unless
        # it is asked again.
        words = ("submit", made.write(LONG, "long.py"), "--host", cluster_target.url)
        assert made.squall(*words, "--to", made.addresses).code == 0
        made.wait_load(ROWS + 10)
        process = made.nodes["w2"].process
        assert process is not None
        assert asked_until_it_ends(process) == INTERRUPTED


def asked_until_it_ends(process: subprocess.Popen[bytes]) -> int:
    until = time.monotonic() + LIMIT_S
    while process.poll() is None:
        assert time.monotonic() < until, "it does not end"
        process.terminate()
        time.sleep(0.3)
    return process.returncode
