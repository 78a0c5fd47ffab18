"""A server that is killed and started again in the middle of a run: failures by reason, recovery,
and counts that agree with the server's."""

from __future__ import annotations

import threading
from contextlib import suppress

from tests.lab.redis_server import OwnRedis, running_redis
from tests.runs.lab.command import CommandLab, wait_until

FILE = """
from squall import RedisResponse, URL, Workflow, step

class Load(Workflow):
    vus = 20
    duration = "1.5s"
    timeout = "5s"

    @step()
    async def count(self, url: URL = "{url}") -> RedisResponse:
        return await self.client.redis.incr(url, "n")
"""


def _restarted(server: OwnRedis) -> list[int]:
    """Kills the server once it has work, and starts it again. Returns what it counted before."""
    before: list[int] = []

    def has_work() -> bool:
        with suppress(OSError):
            before[:] = [server.calls().get("incrby", 0)]
        return before != [0] and before != []

    wait_until(has_work)
    server.stop()
    server.start()
    return before


def test_a_server_that_is_restarted_costs_failures_and_nothing_else(command: CommandLab) -> None:
    with running_redis() as server:
        (command.folder / "load.py").write_text(FILE.format(url=server.url), encoding="utf-8")
        before: list[int] = []
        killer = threading.Thread(target=lambda: before.extend(_restarted(server)))
        killer.start()
        ended = command.load("load.py")
        killer.join()
        after = server.calls()["incrby"]
    (workflow,) = ended.document["workflows"]
    (row,) = workflow["steps"]
    requests = workflow["requests"]
    assert before[0] > 0 and after > 0
    # Calls that were under way are lost; the others were counted by one server or the other.
    assert before[0] + after <= requests["answered"] + requests["failed"]
    assert requests["answered"] >= after
    reasons = {each["key"] for each in row["outcomes"] if not each["ok"]}
    where = f": 127.0.0.1:{server.port}"
    assert reasons and reasons <= {
        "connection closed by the server",
        "connection reset",
        "connection refused" + where,
        "connection reset" + where,
        "connection closed before a response",
    }
    # Nothing is left open, and nobody waited for a timeout.
    assert row["failed"] + row["ok"] + row["interrupted"] == row["started"]
    assert max(requests["sent"] - requests["answered"] - requests["failed"], 0) <= 20
